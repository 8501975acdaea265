package trace

// This file reads a capture directory, even an incomplete one.

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"path/filepath"

	"tensorcast/event"
	"tensorcast/trace/tables"
)

// Capture is a capture directory opened for reading. Its methods yield the rows of the tables in the
// order of capture, over all segments. If the capture is not complete (Meta.Complete) and a stream was
// cut short, the rows end after its last complete batch. That is no error. A table that was not written
// has no rows. A Capture may be used concurrently.
//
// The directory may come from somebody else, so nothing in it is believed unchecked. Only regular files
// in the directory itself are opened. Time and memory for reading are bounded by their sizes. A row that
// contradicts itself, or the structure, is an error that names the table and the row. All such errors
// wrap ErrDamaged or ErrMixed.
type Capture struct {
	Dir       string
	Meta      *tables.Meta
	Structure []tables.StructureRow // ordered by model, file and offset
	// Doubts are contradictions between capture.json and the tables, a line each. Only an incomplete
	// capture may have some: its tracer was killed between two writes, or is still writing.
	Doubts []string

	byName []map[string]int32 // structure rows by tensor name, for each model
}

// Open reads the description and the structure of the capture in dir, and compares the tables with the
// description. It fails with ErrNoCapture if dir holds no capture, and with ErrDamaged or ErrMixed if it
// holds a bad one.
func Open(dir string) (*Capture, error) {
	meta, err := readMeta(dir)
	if err != nil {
		return nil, err
	}
	c := &Capture{Dir: dir, Meta: meta}
	if err := c.readStructure(); err != nil {
		return nil, err
	}
	if err := c.compareTables(); err != nil {
		return nil, err
	}
	return c, nil
}

// Accesses yields the access table. The row is reused: copy it, and Experts, to keep it.
func (c *Capture) Accesses() iter.Seq2[*tables.Access, error] {
	return rowsOf(c, AccessFile, func(b *columns) func(int, *tables.Access) error {
		var (
			timestamp, step, token, phase = b.int64("timestamp"), b.int32("step"), b.int32("token"), b.text("phase")
			thread, op, name              = b.int32("thread"), b.text("op"), b.text("tensor_name")
			data, offset, bytes           = b.uint64("data_ptr"), b.int64("offset_bytes"), b.int64("bytes_accessed")
			layer, duration, experts      = b.int32("layer"), b.int64("duration_ns"), b.list("experts")
			llama, stall, model           = b.int32("context"), b.int64("stall_ns"), b.int32("model")
		)
		return func(i int, a *tables.Access) error {
			tensor, err := c.tensorRow(model.Value(i), name.value(i))
			if err != nil {
				return err
			}
			p, err := tables.ParsePhase(phase.value(i))
			if err != nil {
				return err
			}
			*a = tables.Access{
				Timestamp: timestamp.Value(i), Step: step.Value(i), Token: token.Value(i), Phase: p,
				Thread: thread.Value(i), Op: op.value(i), Tensor: tensor, DataPtr: data.Value(i),
				Offset: offset.Value(i), Bytes: bytes.Value(i), Layer: layer.Value(i),
				Duration: timeOrNotObserved(duration, i), Experts: experts.value(i), Context: llama.Value(i),
				Stall: timeOrNotObserved(stall, i),
			}
			return checkAccess(a, &c.Structure[tensor])
		}
	})
}

// Routes yields the route table. A capture of a dense model has no rows.
func (c *Capture) Routes() iter.Seq2[tables.Route, error] {
	return copyRows(rowsOf(c, RouteFile, func(b *columns) func(int, *tables.Route) error {
		var (
			step, token, layer     = b.int32("step"), b.int32("token"), b.int32("layer")
			slot, expert, position = b.int32("slot"), b.int32("expert"), b.int32("position")
		)
		return func(i int, r *tables.Route) error {
			*r = tables.Route{
				Step: step.Value(i), Token: token.Value(i), Layer: layer.Value(i), Slot: slot.Value(i),
				Expert: expert.Value(i), Position: position.Value(i),
			}
			return checkRoute(r)
		}
	}))
}

// Steps yields the steps table. The row is reused: copy it, and its slices, to keep it.
func (c *Capture) Steps() iter.Seq2[*tables.StepRow, error] {
	return rowsOf(c, StepFile, func(b *columns) func(int, *tables.StepRow) error {
		var (
			step, pid, thread, llama = b.int32("step"), b.int32("pid"), b.int32("thread"), b.int32("context")
			phase, tokens, token     = b.text("phase"), b.int32("tokens"), b.int32("token")
			ids, sequences           = b.list("token_ids"), b.list("sequences")
			begin, end, derived      = b.int64("begin"), b.int64("end"), b.bool("derived")
		)
		return func(i int, s *tables.StepRow) error {
			p, err := tables.ParsePhase(phase.value(i))
			if err != nil {
				return err
			}
			*s = tables.StepRow{
				Step: step.Value(i), PID: pid.Value(i), Thread: thread.Value(i), Context: llama.Value(i), Phase: p,
				Tokens: tokens.Value(i), Token: token.Value(i), TokenIDs: ids.value(i),
				Sequences: sequences.value(i), Begin: begin.Value(i), End: timeOrNotObserved(end, i),
				Derived: derived.Value(i),
			}
			return checkStep(s)
		}
	})
}

// PageIns yields the pagein table. The row is reused: copy it to keep it.
func (c *Capture) PageIns() iter.Seq2[*tables.PageInRow, error] {
	return rowsOf(c, PageInFile, func(b *columns) func(int, *tables.PageInRow) error {
		var (
			timestamp, step, offset  = b.int64("timestamp"), b.int32("step"), b.int64("offset_bytes")
			bytes, name, expert      = b.int64("bytes"), b.text("tensor_name"), b.int32("expert")
			pid, thread, cause       = b.int32("pid"), b.int32("thread"), b.text("cause")
			rereads, op, file, model = b.int32("rereads"), b.text("op"), b.text("file"), b.int32("model")
		)
		return func(i int, r *tables.PageInRow) error {
			*r = tables.PageInRow{
				Timestamp: timestamp.Value(i), Step: step.Value(i), File: file.value(i), Offset: offset.Value(i),
				Bytes: bytes.Value(i), Tensor: -1, Expert: expert.Value(i), PID: pid.Value(i),
				Thread: thread.Value(i), Rereads: rereads.Value(i), Op: op.value(i), Model: model.Value(i),
			}
			var err error
			if r.Cause, err = event.ParseCause(cause.value(i)); err != nil {
				return err
			}
			if !name.isNull(i) {
				if r.Tensor, err = c.tensorRow(r.Model, name.value(i)); err != nil {
					return err
				}
			}
			return checkPageIn(r)
		}
	})
}

// Buffers yields the buffers table. The row is reused: copy it to keep it.
func (c *Capture) Buffers() iter.Seq2[*tables.BufferRow, error] {
	return rowsOf(c, BufferFile, func(b *columns) func(int, *tables.BufferRow) error {
		var (
			timestamp, step, op, seq = b.int64("timestamp"), b.int32("step"), b.text("op"), b.int64("seq")
			buffer, root, kind       = b.text("buffer"), b.text("root"), b.text("kind")
			write, data, bytes       = b.bool("write"), b.uint64("data_ptr"), b.int64("bytes")
		)
		return func(i int, r *tables.BufferRow) error {
			k, err := tables.ParseBufferKind(kind.value(i))
			if err != nil {
				return err
			}
			*r = tables.BufferRow{
				Timestamp: timestamp.Value(i), Step: step.Value(i), Op: op.value(i), Seq: seq.Value(i),
				Buffer: buffer.value(i), Root: root.value(i), Kind: k, Write: write.Value(i),
				DataPtr: data.Value(i), Bytes: bytes.Value(i),
			}
			return checkBuffer(r)
		}
	})
}

// Hidden yields the hidden table. The row is reused: copy it, and Values, to keep it.
func (c *Capture) Hidden() iter.Seq2[*tables.HiddenRow, error] {
	return rowsOf(c, HiddenFile, func(b *columns) func(int, *tables.HiddenRow) error {
		var (
			step, token, layer      = b.int32("step"), b.int32("token"), b.int32("layer")
			point, position, values = b.text("point"), b.int32("position"), b.halves("values")
		)
		return func(i int, r *tables.HiddenRow) error {
			p, err := event.ParsePoint(point.value(i))
			if err != nil {
				return err
			}
			*r = tables.HiddenRow{
				Step: step.Value(i), Token: token.Value(i), Layer: layer.Value(i), Point: p,
				Position: position.Value(i), Values: values.value(i, r.Values[:0]),
			}
			return checkHidden(r)
		}
	})
}

// HasPageIns reports whether page-ins were observed, even if none happened.
func (c *Capture) HasPageIns() bool {
	files, err := c.segments(PageInFile)
	return err == nil && len(files) > 0
}

// Rereads sums up what was read from disk more than once. It computes this from the tables. A rotated
// capture contributes only the segments that are left. At most top tensors are listed. It returns nil if
// page-ins were not observed, and ctx's error if ctx is done first.
func (c *Capture) Rereads(ctx context.Context, top int) (*tables.Rereads, error) {
	if !c.HasPageIns() {
		return nil, nil
	}
	var account rereadAccount
	var bytes, stall int64 // sums over all rows: if these do not overflow, no partial sum does
	for r, err := range c.PageIns() {
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		if bytes += r.Bytes; bytes < 0 {
			return nil, fmt.Errorf("%s is %w", PageInFile, damageError("its rows together are of too many bytes"))
		}
		account.addPageIn(r)
	}
	for a, err := range c.Accesses() {
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		if a.Stall > 0 {
			if stall += a.Stall; stall < 0 {
				return nil, fmt.Errorf("%s is %w", AccessFile, damageError("its rows together stall for too long"))
			}
			account.addStall(a.Tensor, a.Stall)
		}
	}
	return account.summary(c.Structure, top), nil
}

// tensorRow returns the structure row of a model's tensor.
func (c *Capture) tensorRow(model int32, name string) (int32, error) {
	if model >= 0 && int(model) < len(c.byName) {
		if row, ok := c.byName[model][name]; ok {
			return row, nil
		}
	}
	return 0, fmt.Errorf("a row names tensor %.100q of model %d, which the structure table lacks", name, model)
}

// segments returns the paths of a table's files in order, see hasSegment.
func (c *Capture) segments(table string) ([]string, error) {
	all, err := c.segmentNumbers()
	if err != nil {
		return nil, err
	}
	var files []string
	for _, n := range all[table] {
		if c.hasSegment(n) {
			files = append(files, filepath.Join(c.Dir, segmentFile(table, n)))
		}
	}
	return files, nil
}

// hasSegment reports whether a segment is part of the capture: capture.json lists it and does not list
// it as deleted. An incomplete capture may have one segment more, because its tracer may have been
// killed before it listed that one.
func (c *Capture) hasSegment(segment int) bool {
	last := c.Meta.Segments.Last
	if !c.Meta.Complete {
		last++
	}
	return segment >= c.Meta.Segments.First && segment <= last
}

// rowsOf yields the rows of a table. For each batch, open looks up the columns and returns the
// function that fills a row from them.
func rowsOf[R any](c *Capture, table string, open func(*columns) func(int, *R) error) iter.Seq2[*R, error] {
	return func(yield func(*R, error) bool) {
		files, err := c.segments(table)
		if err != nil {
			yield(nil, err)
			return
		}
		var row R
		for _, path := range files {
			before := int64(0) // rows of the file's earlier batches
			for rec, err := range readRecords(path, c.Meta.Complete) {
				if err != nil {
					yield(nil, err)
					return
				}
				var fill func(int, *R) error
				err := columnsIn(rec, columnsOf[table], func(b *columns) { fill = open(b) })
				if err != nil {
					yield(nil, fmt.Errorf("%s is %w: rows from %d on: %w", filepath.Base(path), ErrDamaged, before,
						err))
					return
				}
				for i := range int(rec.NumRows()) {
					if err := fill(i, &row); err != nil {
						yield(nil, fmt.Errorf("%s is %w: row %d: %w", filepath.Base(path), ErrDamaged,
							before+int64(i), err))
						return
					}
					if !yield(&row, nil) {
						return
					}
				}
				before += rec.NumRows()
			}
		}
	}
}

// copyRows yields a copy of each row.
func copyRows[R any](rows iter.Seq2[*R, error]) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		for r, err := range rows {
			if err != nil {
				var none R
				yield(none, err)
				return
			}
			if !yield(*r, nil) {
				return
			}
		}
	}
}
