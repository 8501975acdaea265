package pattern

// This file makes a cycle from a capture.

import (
	"errors"
	"fmt"
	"slices"

	"tensorcast/internal/stats"
	"tensorcast/trace/tables"
)

// ErrNoFiles means that a capture lacks the sizes and fingerprints of the model's files, so that no
// cycle can be made from it. An earlier version made it, of a split model.
var ErrNoFiles = errors.New("the capture does not say of which files the model consists (it was made by an " +
	"earlier version): capture again")

// Cycle returns what a step of the pattern's phase reads as it goes through the model once: its reference
// sequence, with the shortest times over the steps that follow it. A step of several tokens gathers slices
// for all of them. The number of slices is the median over the steps. Of a step that goes through the model
// several times it is the longest pass, with the median and the shortest times over passes that read the
// same.
//
// It fails with ErrNoFiles, and with ErrInvalid where the capture contradicts itself.
func (p *Pattern) Cycle(meta *tables.Meta) (*Cycle, error) {
	files, err := p.files(meta)
	if err != nil {
		return nil, err
	}
	ref := p.reference[p.Phase]
	index := map[string]int{} // of files
	for i := range files {
		if _, twice := index[files[i].Name]; !twice {
			index[files[i].Name] = i
		}
	}
	pass, begins := p.referencePass()
	c := &Cycle{Files: files, Reads: make([]CycleRead, len(pass))}
	nanos := p.leastTimes(ref)
	bytes := make([]int64, 0, len(ref.steps)*len(begins))
	for i, read := range pass {
		row := &p.Structure[read.Tensor]
		bytes = bytes[:0]
		least := []int64{tables.NotObserved}
		for _, begin := range begins {
			for _, step := range ref.steps {
				bytes = append(bytes, p.Steps[step].Reads[begin+i].Bytes)
			}
			keepLeast(least, nanos[begin+i:begin+i+1])
		}
		n := int64(stats.Median(bytes))
		file, ok := index[row.File]
		if !ok {
			file = -1
		}
		r := &c.Reads[i]
		*r = CycleRead{
			File: file, Tensor: row.Name, Op: read.Op,
			Offset: p.offsets[ref.sequence][begins[0]+i], Length: n, Nanos: least[0],
		}
		if gather, ok := gatherOf(read.Op); ok {
			r.Offset, r.Length = row.Offset, row.Size
			if slice := sliceBytes(row, gather.Dim); slice > 0 {
				r.setGather(slice, max(n/slice, 1), gather.Experts)
			}
		}
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("make a cycle of the capture: %w", err)
	}
	return c, nil
}

// files returns the files of the model.
func (p *Pattern) files(meta *tables.Meta) ([]CycleFile, error) {
	if int(p.Model) >= len(meta.Models) {
		return nil, fmt.Errorf("%w: its tensors are of model %d of %d", ErrInvalid, p.Model, len(meta.Models))
	}
	info := &meta.Models[p.Model]
	var files []CycleFile
	for _, f := range info.Files {
		files = append(files, CycleFile{Name: f.Name, Size: f.Bytes, Fingerprint: f.Fingerprint})
	}
	if files != nil {
		return files, nil
	}
	// For a model in one file, captures of earlier versions hold the same elsewhere.
	for i := range p.Structure {
		row := &p.Structure[i]
		if row.Model != p.Model {
			continue
		}
		if files != nil && files[0].Name != row.File {
			return nil, ErrNoFiles
		}
		files = []CycleFile{{Name: row.File, Size: info.Bytes, Fingerprint: info.Fingerprint}}
	}
	return files, nil
}

// leastTimes returns, for each read of a reference, the shortest time over the steps that follow
// it.
func (p *Pattern) leastTimes(ref reference) []int64 {
	var least []int64
	seen := map[int]bool{}
	for _, i := range ref.steps {
		s := &p.Steps[i]
		if seen[s.sequence] {
			continue
		}
		seen[s.sequence] = true
		times := p.compute[computeKey{s.sequence, s.context, s.Phase}]
		if least == nil {
			least = slices.Clone(times)
		} else {
			keepLeast(least, times)
		}
	}
	return least
}

// sliceBytes returns how many bytes one index of a tensor's dimension dim spans. Tensors in files
// are contiguous.
func sliceBytes(row *tables.StructureRow, dim int) int64 {
	if dim >= len(row.Shape) {
		return row.Size // there is one slice
	}
	n := int64(1)
	for _, d := range row.Shape[dim:] {
		n *= d
	}
	if n <= 0 {
		return 0
	}
	return row.Size / n
}
