package moe

// This file reads the route table of a capture.

import (
	"fmt"
	"iter"
	"slices"

	"tensorcast/trace/tables"
)

// Step is what a capture tells of a decode call.
type Step struct {
	Phase Phase
	IDs   []int32 // of the batch's tokens; nil if they were not observed
}

// Steps are the steps of one context of a capture, by number. The warm-up is left out, as it uses all
// experts.
func Steps(rows iter.Seq2[*tables.StepRow, error], context int32) (map[int32]Step, error) {
	all := map[int32]Step{}
	for r, err := range rows {
		if err != nil {
			return nil, err
		}
		if r.Context != context || r.Phase == tables.PhaseWarmup {
			continue
		}
		s := Step{Phase: Prompt, IDs: slices.Clone(r.TokenIDs)}
		if r.Phase == tables.PhaseGeneration {
			s.Phase = Decode
		}
		all[r.Step] = s
	}
	return all, nil
}

// ChoosingContext is one of a capture's contexts (llama_context), and its model: that whose accesses name
// chosen experts most often, or, of several, that with the least number. If context is not -1 it is that
// one. It fails with ErrNoRoutes if no access of that context names experts. Rows are as package trace
// reads them.
func ChoosingContext(
	rows iter.Seq2[*tables.Access, error], structure []tables.StructureRow, context int32,
) (chosen, model int32, err error) {
	type chooser struct {
		rows  int
		model int32
	}
	choosers := map[int32]chooser{}
	best := int32(-1)
	for a, err := range rows {
		if err != nil {
			return 0, 0, err
		}
		if len(a.Experts) == 0 {
			continue
		}
		now := choosers[a.Context]
		now.rows++
		now.model = structure[a.Tensor].Model
		choosers[a.Context] = now
		if most := choosers[best].rows; best < 0 || now.rows > most || now.rows == most && a.Context < best {
			best = a.Context
		}
	}
	if context >= 0 {
		best = context
	}
	found, ok := choosers[best]
	if !ok {
		return 0, 0, ErrNoRoutes
	}
	return best, found.model, nil
}

// EmptyTrace is an empty trace of a model, with its layers that have experts, and the sizes of these. It
// is nil if the model has none, or if layers differ in the number of experts. Rows are as package trace
// reads them.
func EmptyTrace(name string, structure []tables.StructureRow, model int32) *Trace {
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

// FromRoutes fills an empty trace with the rows of the route table that belong to steps. Rows whose token
// is not known are left out. Errors name the row, from 0. They wrap ErrNoRoutes, or the error of a row.
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
		if !ok || r.Position == tables.NoPosition {
			continue
		}
		id := int32(UnknownID)
		if int(r.Position) < len(s.IDs) {
			id = s.IDs[r.Position]
		}
		err = b.addRow(row{
			step: r.Step, position: r.Position, layer: r.Layer, slot: r.Slot, expert: r.Expert, phase: s.Phase,
			id: id,
		})
		if err != nil {
			return nil, fmt.Errorf("row %d of the routes: %w", n, err)
		}
	}
	return b.finish()
}
