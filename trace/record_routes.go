package trace

// This file writes what routers read and chose: the rows of the hidden and route tables. The warm-up,
// which uses all experts, has none.

import (
	"tensorcast/event"
	"tensorcast/trace/tables"
)

// recordRouterInput writes a row of the hidden table, unless the event fits no step or contradicts
// itself or earlier ones.
func (r *Recorder) recordRouterInput(e event.RouterInput) error {
	if r.meta.Hidden == nil {
		r.meta.Hidden = &tables.Hidden{}
	}
	h := r.meta.Hidden
	s := r.steps.find(e.TID, e.Decode)
	switch {
	case s == nil || s.Phase == tables.PhaseWarmup,
		e.Layer < 0,
		len(e.Values) == 0 || len(e.Values) > tables.MaxHidden,
		e.Row < 0 || e.Row >= e.Rows || e.Rows > maxTokens,
		h.Values != 0 && h.Values != len(e.Values):
		h.LeftOut++
		return nil
	}
	s.noteReport(reportKey{layer: e.Layer, point: e.Point}, e.Graph, e.Rows)
	if r.w == nil {
		h.LeftOut++
		return nil
	}
	h.Values = len(e.Values)
	h.Rows++
	return r.w.Hidden(&tables.HiddenRow{
		Step: s.Step, Token: s.Token, Layer: e.Layer, Point: e.Point,
		Position: s.batchPosition(e.Row, e.Rows), Values: e.Values,
	})
}

// writeRoutes writes the routing of a layer, once per part of the batch: the ops of gate, up and down
// use the same choice.
func (r *Recorder) writeRoutes(o *event.Op, s *step, layer int32) error {
	if o.IDRows == 0 || s.noteReport(reportKey{layer: layer, experts: true}, o.Graph, o.IDRows) {
		return nil
	}
	if r.w == nil || s.Phase == tables.PhaseWarmup {
		return nil
	}
	slots := max(len(o.IDs)/o.IDRows, 1)
	for i, expert := range o.IDs {
		if expert < 0 {
			continue
		}
		row := tables.Route{
			Step: s.Step, Token: s.Token, Layer: layer, Slot: int32(i % slots), Expert: expert,
			Position: s.batchPosition(i/slots, o.IDRows),
		}
		if err := r.w.Route(&row); err != nil {
			return err
		}
	}
	return nil
}
