package trace

// This file appends rows to the tables of a capture.

import (
	"fmt"

	"tensorcast/event"
	"tensorcast/trace/tables"
)

// Access appends a row.
func (w *Writer) Access(a *tables.Access) error {
	if w.err != nil {
		return w.err
	}
	s := w.access
	w.rows++
	w.segmentRows[len(w.segmentRows)-1]++
	s.int64(a.Timestamp)
	s.int32(a.Step)
	s.int32(a.Token)
	s.shortIndex(uint8(a.Phase))
	s.int32(a.Thread)
	s.text(a.Op)
	s.int32(w.names[a.Tensor])
	s.uint64(a.DataPtr)
	s.int64(a.Offset)
	s.int64(a.Bytes)
	s.int32(a.Layer)
	s.timeOrNull(a.Duration)
	s.list(a.Experts)
	s.int32(a.Context)
	s.timeOrNull(a.Stall)
	s.int32(w.structure[a.Tensor].Model)
	return w.noteError(s.endRow())
}

// Route appends a row.
func (w *Writer) Route(r *tables.Route) error {
	s, err := w.streamOf(RouteFile)
	if err != nil {
		return err
	}
	for _, v := range [...]int32{r.Step, r.Token, r.Layer, r.Slot, r.Expert, r.Position} {
		s.int32(v)
	}
	return w.noteError(s.endRow())
}

// Step appends a row.
func (w *Writer) Step(r *tables.StepRow) error {
	s, err := w.streamOf(StepFile)
	if err != nil {
		return err
	}
	s.int32(r.Step)
	s.int32(r.PID)
	s.int32(r.Thread)
	s.int32(r.Context)
	s.shortIndex(uint8(r.Phase))
	s.int32(r.Tokens)
	s.int32(r.Token)
	s.list(r.TokenIDs)
	s.list(r.Sequences)
	s.int64(r.Begin)
	s.timeOrNull(r.End)
	s.bool(r.Derived)
	return w.noteError(s.endRow())
}

// PageIn appends a row. The table is created with the first row, or by PageIns.
func (w *Writer) PageIn(r *tables.PageInRow) error {
	s, err := w.streamOf(PageInFile)
	if err != nil {
		return err
	}
	s.int64(r.Timestamp)
	s.int32(r.Step)
	s.int64(r.Offset)
	s.int64(r.Bytes)
	if r.Tensor < 0 {
		s.null()
	} else {
		s.int32(w.names[r.Tensor])
	}
	s.int32(r.Expert)
	s.int32(r.PID)
	s.int32(r.Thread)
	s.shortIndex(uint8(min(r.Cause, event.CauseOther)))
	s.int32(r.Rereads)
	s.textOrNull(r.Op)
	s.text(r.File)
	s.int32(r.Model)
	return w.noteError(s.endRow())
}

// PageIns creates the pagein table, which shows that page-ins are observed even if there are none.
func (w *Writer) PageIns() error {
	_, err := w.streamOf(PageInFile)
	return err
}

// Buffer appends a row. The table is created with the first row.
func (w *Writer) Buffer(r *tables.BufferRow) error {
	s, err := w.streamOf(BufferFile)
	if err != nil {
		return err
	}
	s.int64(r.Timestamp)
	s.int32(r.Step)
	s.text(r.Op)
	s.int64(r.Seq)
	s.text(r.Buffer)
	s.textOrNull(r.Root)
	s.shortIndex(uint8(r.Kind))
	s.bool(r.Write)
	s.uint64(r.DataPtr)
	s.int64(r.Bytes)
	return w.noteError(s.endRow())
}

// Hidden appends a row. The table is created with the first one; the others must have as many
// values, at most tables.MaxHidden.
func (w *Writer) Hidden(r *tables.HiddenRow) error {
	if w.hiddenValues == 0 {
		w.hiddenValues = len(r.Values)
	}
	if n := len(r.Values); n == 0 || n > tables.MaxHidden || n != w.hiddenValues {
		return w.noteError(fmt.Errorf("write table %s: a row has %d values, the first had %d", HiddenFile, n,
			w.hiddenValues))
	}
	s, err := w.streamOf(HiddenFile)
	if err != nil {
		return err
	}
	s.int32(r.Step)
	s.int32(r.Token)
	s.int32(r.Layer)
	s.shortIndex(uint8(min(r.Point, event.PointAttention)))
	s.int32(r.Position)
	s.halfValues(r.Values)
	return w.noteError(s.endRow())
}
