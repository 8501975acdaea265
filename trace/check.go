package trace

// This file rejects rows and descriptions that no tracer writes. Consumers may rely on what is checked
// here.

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"tensorcast/trace/tables"
)

const (
	maxName = 255 // bytes of a name; ggml cuts tensors' at 63
	maxDims = 8   // of a tensor; ggml has 4
	// maxTime in ns is 36 years. Differences of times, and sums of a few, do not overflow.
	maxTime = 1 << 60
	// maxSize in bytes bounds what a tensor, a file or a model may have, 1 PiB, so that many can be
	// added up.
	maxSize = 1 << 50
)

// checkStructure returns what is wrong with a tensor. The other check functions do the same for a row of
// their table.
func checkStructure(r *tables.StructureRow) error {
	switch {
	case r.Name == "" || max(len(r.Name), len(r.Component), len(r.File), len(r.Type)) > maxName:
		return fmt.Errorf("tensor %.100q has no name, or one that is too long", r.Name)
	case r.Offset < 0 || r.Size < 0 || r.Offset > maxSize || r.Size > maxSize:
		return fmt.Errorf("tensor %.100q has %d bytes at %d", r.Name, r.Size, r.Offset)
	case r.Experts < 0 || r.ExpertStride < 0 || r.Experts > 0 && r.ExpertStride > r.Size/int64(r.Experts):
		return fmt.Errorf("tensor %.100q has %d experts of %d bytes in %d", r.Name, r.Experts, r.ExpertStride, r.Size)
	case len(r.Shape) > maxDims || slices.ContainsFunc(r.Shape, func(n int64) bool { return n < 0 }):
		return fmt.Errorf("tensor %.100q has %d dimensions: %d", r.Name, len(r.Shape),
			r.Shape[:min(maxDims, len(r.Shape))])
	}
	return nil
}

// checkExtents returns an error if a tensor lies outside its file, as far as the description tells of
// the files. That of an incomplete capture may not tell of all files yet.
func checkExtents(structure []tables.StructureRow, m *tables.Meta) error {
	sizes := make([]map[string]int64, len(m.Models)) // of the files
	for i := range m.Models {
		sizes[i] = map[string]int64{}
		for _, f := range m.Models[i].Files {
			sizes[i][f.Name] = max(sizes[i][f.Name], f.Bytes)
		}
	}
	for i := range structure {
		r := &structure[i]
		if int(r.Model) >= len(sizes) || len(sizes[r.Model]) == 0 {
			continue
		}
		size, listed := sizes[r.Model][r.File]
		switch {
		case !listed && !m.Complete:
		case !listed:
			return fmt.Errorf("tensor %.100q is in file %.100q, of which %s does not tell", r.Name, r.File, MetaFile)
		case r.Size > size || r.Offset > size-r.Size:
			return fmt.Errorf("tensor %.100q has %d bytes at %d of %.100q, which has %d", r.Name, r.Size, r.Offset,
				r.File, size)
		}
	}
	return nil
}

func checkAccess(a *tables.Access, t *tables.StructureRow) error {
	switch {
	case a.Step < 0 || a.Token < -1 || a.Context < 0:
		return fmt.Errorf("it is of step %d, token %d, context %d", a.Step, a.Token, a.Context)
	case !isTime(a.Timestamp) || !isDuration(a.Duration) || !isDuration(a.Stall):
		return fmt.Errorf("it is at %d ns, for %d ns, and stalls for %d ns", a.Timestamp, a.Duration, a.Stall)
	case a.Bytes < 0 || a.Bytes > t.Size || a.Offset < t.Offset || a.Offset-t.Offset > t.Size:
		return fmt.Errorf("it reads %d bytes at %d of tensor %.100q, which has %d at %d", a.Bytes, a.Offset, t.Name,
			t.Size, t.Offset)
	}
	return nil
}

func checkRoute(r *tables.Route) error {
	if r.Step < 0 || r.Token < -1 || r.Slot < 0 || r.Position < tables.NoPosition {
		return fmt.Errorf("it is of step %d, token %d, slot %d, position %d", r.Step, r.Token, r.Slot, r.Position)
	}
	return nil
}

func checkStep(s *tables.StepRow) error {
	switch {
	case s.Step < 0 || s.Token < -1 || s.Context < 0 || s.Tokens < -1:
		return fmt.Errorf("it is step %d of context %d, with token %d, of %d", s.Step, s.Context, s.Token, s.Tokens)
	case !isTime(s.Begin) || s.End != tables.NotObserved && !isTime(s.End):
		return fmt.Errorf("it begins at %d ns and ends at %d ns", s.Begin, s.End)
	}
	return nil
}

func checkPageIn(r *tables.PageInRow) error {
	switch {
	case r.Step < -1 || r.Rereads < 0 || r.Model < 0:
		return fmt.Errorf("it is of step %d, read %d times before, of model %d", r.Step, r.Rereads, r.Model)
	case !isTime(r.Timestamp):
		return fmt.Errorf("it is at %d ns", r.Timestamp)
	case r.Offset < 0 || r.Bytes < 0 || r.Offset > maxSize || r.Bytes > maxSize:
		return fmt.Errorf("it is of %d bytes at %d", r.Bytes, r.Offset)
	}
	return nil
}

func checkBuffer(r *tables.BufferRow) error {
	if r.Step < 0 || !isTime(r.Timestamp) || r.Bytes < 0 {
		return fmt.Errorf("it is of step %d, at %d ns, of %d bytes", r.Step, r.Timestamp, r.Bytes)
	}
	return nil
}

func checkHidden(r *tables.HiddenRow) error {
	if r.Step < 0 || r.Token < -1 || r.Layer < 0 || r.Position < tables.NoPosition {
		return fmt.Errorf("it is of step %d, token %d, layer %d, position %d", r.Step, r.Token, r.Layer, r.Position)
	}
	return nil
}

func isTime(ns int64) bool     { return ns >= -maxTime && ns <= maxTime }
func isDuration(ns int64) bool { return ns >= tables.NotObserved && ns <= maxTime }

// What capture.json may hold.
const (
	maxMeta        = 4 << 20 // bytes: a command line may take 2 MiB
	maxModels      = 1 << 12 // also of the files of all models
	maxDescription = 1 << 12 // bytes of a text that is shown: a path has no more
)

// checkMeta returns what is wrong with a description.
func checkMeta(m *tables.Meta) error {
	type number struct {
		name string
		n    int64
	}
	numbers := []number{
		{"pid", int64(m.PID)}, {"parent", int64(m.Parent)}, {"contexts", int64(m.Contexts)},
		{"steps", int64(m.Steps)}, {"tokens", int64(m.Tokens)}, {"rows", m.Rows},
		{"memory_bytes", m.Host.MemoryBytes}, {"cpus", int64(m.Host.CPUs)}, {"page_size", int64(m.Host.PageSize)},
		{"outside_mapping.tensors", int64(m.Outside.Tensors)}, {"outside_mapping.bytes", m.Outside.Bytes},
	}
	if h := m.Hidden; h != nil {
		numbers = append(numbers, number{"hidden.every", int64(h.Every)}, number{"hidden.values", int64(h.Values)},
			number{"hidden.rows", h.Rows}, number{"hidden.left_out", h.LeftOut})
	}
	texts := []string{m.Detail, m.Outside.Example}
	files := 0
	for i := range m.Models {
		mod := &m.Models[i]
		numbers = append(numbers, number{"the bytes of a model", mod.Bytes},
			number{"the tensors of a model", int64(mod.Tensors)}, number{"the layers of a model", int64(mod.Layers)})
		texts = append(texts, mod.Path, mod.Fingerprint, mod.LayersSeen, mod.LayersElsewhere)
		files += len(mod.Files)
		for _, f := range mod.Files {
			numbers = append(numbers, number{"the bytes of a file", f.Bytes})
			texts = append(texts, f.Name, f.Fingerprint)
		}
	}
	for _, x := range numbers {
		if x.n < 0 || x.n > maxSize {
			return fmt.Errorf("%s is %d", x.name, x.n)
		}
	}
	for name, n := range reflect.ValueOf(m.Counters).Fields() {
		if n.CanUint() && n.Uint() > maxSize { // their sums do not overflow
			return fmt.Errorf("the counter %s is %d", name.Name, n.Uint())
		}
	}
	s := m.Segments
	switch {
	case len(m.Models) > maxModels || files > maxModels:
		return fmt.Errorf("it tells of %d models in %d files", len(m.Models), files)
	case slices.ContainsFunc(texts, func(t string) bool { return len(t) > maxDescription }):
		return errors.New("a name in it is too long")
	case s.First < 0 || s.Last < s.First || s.Last >= maxSegments || s.Deleted != s.First || s.DeletedRows < 0 ||
		s.DeletedRows > m.Rows:
		return fmt.Errorf("of segments up to %d it says that %d were deleted and %d is the first, with %d rows of %d",
			s.Last, s.Deleted, s.First, s.DeletedRows, m.Rows)
	}
	return nil
}
