package models

// This file says where the weights of a file lie, so that nothing else is read ahead or held, whatever a
// target says.

import (
	"cmp"
	"fmt"
	"slices"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
)

// Weights is where the weights of a file lie, in order. They do not overlap.
type Weights []Weight

// Weight is the extent of one tensor in its file, in bytes.
type Weight struct {
	Offset, End int64
	IsTable     bool // tokens only look up rows of it, as far as this file tells
}

// ReadWeights reads the table of the GGUF file at path, which must be the file with this id. Its error wraps
// gguf.ErrNotGGUF if it is no GGUF file, and proc.ErrOtherFile if path leads to another file by now.
func ReadWeights(path string, id event.FileID) (Weights, error) {
	m, err := OpenPart(path, id)
	if err != nil {
		return nil, err
	}
	var w Weights
	_, hasOutput := m.Files[0].Lookup("output.weight")
	for i := range m.Files[0].Tensors {
		t := &m.Files[0].Tensors[i]
		w = append(w, Weight{t.Offset, t.End(), t.IsTable(hasOutput)})
	}
	return w, nil
}

// OpenPart reads the structure of the file at path, which must be the file with this id. Its errors are those
// of ReadWeights.
func OpenPart(path string, id event.FileID) (*gguf.Model, error) {
	m, err := gguf.OpenPart(path)
	if err != nil {
		return nil, fmt.Errorf("read the structure of a file that the target maps: %w", err)
	}
	if proc.IDOf(m.Files[0].Info()) != id {
		return nil, fmt.Errorf("read the structure of %s: %w", path, proc.ErrOtherFile)
	}
	return m, nil
}

// Tables are those weights of which tokens only look up rows, and that have at least so many bytes.
func (w Weights) Tables(least int64) (tables []Weight) {
	for _, t := range w {
		if t.IsTable && t.End-t.Offset >= least {
			tables = append(tables, t)
		}
	}
	return tables
}

// Hold says whether all bytes from offset to end belong to one tensor.
func (w Weights) Hold(offset, end int64) bool {
	i := w.find(offset)
	return i >= 0 && end <= w[i].End
}

// find is the index of the last weight that begins at an offset or before; -1 if there is none.
func (w Weights) find(offset int64) int {
	i, found := slices.BinarySearchFunc(w, offset, func(t Weight, at int64) int { return cmp.Compare(t.Offset, at) })
	if !found {
		i--
	}
	return i
}
