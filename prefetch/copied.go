package prefetch

// This file frees the file's pages of weights that the target has copied when it loaded its model, as llama.cpp does
// where it repacks them for its processor. The copy is read from then on. What is in memory of the file serves nobody,
// and makes memory short.

import (
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// evictCopied pages out what is in memory of weights of the target's models with these names. It returns how many
// bytes that freed. Weights that the target reads in their file, too, stay (of an embedding it may have copied only
// what it multiplies with), and so do parts for which another control group pays. A name that several files have says
// nothing: a draft model may read its own weight where the large model reads a copy. reads may be nil.
func (s *session) evictCopied(names map[string]bool, reads *pattern.Cycle) (freed int64, err error) {
	m, err := s.models()
	if err != nil || len(names) == 0 {
		return 0, err
	}
	isRead := map[pages.Range]bool{} // by where a weight begins
	if reads != nil {
		for i := range reads.Reads {
			isRead[pages.Range{File: reads.Reads[i].File, Offset: reads.Reads[i].Offset}] = true
		}
	}
	files := map[string]int{} // by name: how many have such a weight
	for _, part := range m.Parts {
		for i := range part.Tensors {
			files[part.Tensors[i].Name]++
		}
	}
	for i, part := range m.Parts {
		at := m.Mapped[i]
		if at.Base == 0 {
			continue
		}
		file, err := s.openFile(at.Path, at.ID)
		if err != nil {
			return freed, err
		}
		s.levers.Map(file, at.Base)
		for j := range part.Tensors {
			t := &part.Tensors[j]
			if !names[t.Name] || files[t.Name] > 1 || isRead[pages.Range{File: file, Offset: t.Offset}] {
				continue
			}
			n, err := s.evictWhole(pages.Range{File: file, Offset: t.Offset, Length: t.Size})
			if err != nil {
				return freed, err
			}
			freed += n
		}
	}
	if freed > 0 {
		s.log.Info("the target has copied weights: what was in memory of them in its file was paged out", "bytes", freed)
	}
	s.work.copied += freed
	return freed, nil
}

// evictWhole pages out the whole pages of a range, and returns how many bytes of them had been in memory.
func (s *session) evictWhole(r pages.Range) (freed int64, err error) {
	first, end := (r.Offset+pages.PageSize-1)&^(pages.PageSize-1), r.End()&^(pages.PageSize-1)
	if first >= end {
		return 0, nil
	}
	r.Offset, r.Length = first, end-first
	before, err := s.levers.ResidentBytes(r)
	if err != nil || before == 0 {
		return 0, err
	}
	if err := s.levers.PageOut(r); err != nil {
		return 0, err
	}
	left, err := s.levers.ResidentBytes(r)
	return max(before-left, 0), err
}
