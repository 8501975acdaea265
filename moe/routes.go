package moe

// This file reads the route table of a capture.

import (
	"fmt"
	"iter"

	"tensorcast/trace/tables"
)

// Step is what a capture tells of a decode call.
type Step struct {
	Phase Phase
	IDs   []int32 // of the batch's tokens; nil if they were not observed
}

// Steps are the steps of one context of a capture, by number, without the warm-up, which uses all experts. The context is that with most
// tokens in decode, then most in the prompt, then the first, if context is -1.
func Steps(rows iter.Seq2[*tables.StepRow, error], context int32) (map[int32]Step, error) {
	type size struct{ decode, prompt int64 }
	all := map[int32]map[int32]Step{}
	sizes := map[int32]size{}
	for r, err := range rows {
		if err != nil {
			return nil, err
		}
		if r.Phase == tables.PhaseWarmup {
			continue
		}
		s := Step{Phase: Prompt, IDs: append([]int32(nil), r.TokenIDs...)}
		n := sizes[r.Context]
		if r.Phase == tables.PhaseGeneration {
			s.Phase = Decode
			n.decode++
		} else {
			n.prompt++
		}
		sizes[r.Context] = n
		if all[r.Context] == nil {
			all[r.Context] = map[int32]Step{}
		}
		all[r.Context][r.Step] = s
	}
	if context >= 0 {
		return all[context], nil
	}
	best := int32(-1)
	for c, n := range sizes {
		b, first := sizes[best], best < 0
		if first || n.decode > b.decode || n.decode == b.decode && (n.prompt > b.prompt || n.prompt == b.prompt && c < best) {
			best = c
		}
	}
	return all[best], nil
}

// OfStructure is an empty trace of a model: its layers with experts, and how large these are. It is nil if the model has none, or layers that
// differ in the number of experts. Rows are as package trace reads them.
func OfStructure(name string, structure []tables.StructureRow, model int32) *Trace {
	t := &Trace{Model: name}
	index := map[int32]int{}
	for i := range structure {
		s := &structure[i]
		if s.Model != model || s.Experts == 0 || s.Layer < 0 {
			continue
		}
		if t.Experts == 0 {
			t.Experts = int(s.Experts)
		}
		if int(s.Experts) != t.Experts {
			return nil
		}
		at, ok := index[s.Layer]
		if !ok {
			at = len(t.Layers)
			index[s.Layer] = at
			t.Layers = append(t.Layers, Layer{Number: s.Layer})
		}
		t.Layers[at].Bytes += s.ExpertStride
	}
	if t.Experts == 0 {
		return nil
	}
	return t
}

// FromRoutes fills an empty trace with the rows of the route table that belong to steps. Errors name the row, from 0; they wrap ErrNoRoutes,
// or what rows failed with.
func FromRoutes(t *Trace, rows iter.Seq2[tables.Route, error], steps map[int32]Step) (*Trace, error) {
	b, err := newBuilder(t)
	if err != nil {
		return nil, err
	}
	n := -1
	for r, err := range rows {
		n++
		if err != nil {
			return nil, err
		}
		s, ok := steps[r.Step]
		if !ok {
			continue
		}
		id := int32(UnknownID)
		if int(r.Position) < len(s.IDs) {
			id = s.IDs[r.Position]
		}
		err = b.add(row{step: r.Step, position: r.Position, layer: r.Layer, slot: r.Slot, expert: r.Expert, phase: s.Phase, id: id})
		if err != nil {
			return nil, fmt.Errorf("row %d of the routes: %w", n, err)
		}
	}
	return b.finish()
}
