package prefetch

// This file checks what a target says it reads: nothing is read ahead or held that is no weight of a model file.

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/pattern"
)

// Weights is where the weights of a file lie, in order. They do not overlap.
type Weights []Weight

// Weight is the extent of one tensor in its file, in bytes.
type Weight struct{ Offset, End int64 }

// ReadWeights reads the table of the GGUF file at path, which must be the file with this id. Its error wraps gguf.ErrNotGGUF if it is no GGUF file, and
// proc.ErrOtherFile if path leads to another file by now.
func ReadWeights(path string, id event.FileID) (Weights, error) {
	m, err := OpenPart(path, id)
	if err != nil {
		return nil, err
	}
	var w Weights
	for i := range m.Files[0].Tensors {
		t := &m.Files[0].Tensors[i]
		w = append(w, Weight{t.Offset, t.Offset + t.Size})
	}
	return w, nil
}

// OpenPart reads the structure of the file at path, which must be the file with this id. Its errors are those of ReadWeights.
func OpenPart(path string, id event.FileID) (*gguf.Model, error) {
	m, err := gguf.OpenPart(path)
	if err != nil {
		return nil, fmt.Errorf("read the structure of a file that the target maps: %w", err)
	}
	if event.FileID(proc.IDOf(m.Files[0].Info())) != id {
		return nil, fmt.Errorf("read the structure of %s: %w", path, proc.ErrOtherFile)
	}
	return m, nil
}

// Hold says whether all bytes from offset to end belong to one tensor.
func (w Weights) Hold(offset, end int64) bool {
	i, found := slices.BinarySearchFunc(w, offset, func(t Weight, at int64) int { return cmp.Compare(t.Offset, at) })
	if !found {
		i--
	}
	return i >= 0 && end <= w[i].End
}

// maxCycleBytes bounds what a token reads, each read counted. It is a thousand times the largest model's size; sums of it do not wrap.
const maxCycleBytes = 1 << 50

// knownFile is what is known about a file of the model.
type knownFile struct {
	id      event.FileID
	path    string // as it was opened
	size    int64
	weights Weights
	checked bool // weights is what the file says; else only its size bounds what is read of it
}

// open makes a file known, once.
func (c *Controller) open(path string, id event.FileID) (file int, err error) {
	file, size, err := c.pages.Open(path, id)
	if err != nil || file < len(c.known) {
		return file, err
	}
	f := knownFile{id: id, path: path, size: size}
	if c.opts.Weights != nil {
		f.weights, err = c.opts.Weights(path, id)
		if err != nil && !errors.Is(err, gguf.ErrNotGGUF) { // of another file nothing is a weight
			return 0, err
		}
		f.checked = true
	}
	c.known = append(c.known, f)
	return file, nil
}

// holds says whether what is read lies within its file, and within one of the weights that the file says it has.
func (f *knownFile) holds(r *pattern.CycleRead) bool {
	return r.Offset >= 0 && r.Length > 0 && r.Length <= f.size && r.Offset <= f.size-r.Length && (!f.checked || f.weights.Hold(r.Offset, r.End()))
}
