package trace

// This file reads a capture directory, even an incomplete one.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"tensorcast/event"
	"tensorcast/trace/tables"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
)

// Capture is a capture directory opened for reading. Its methods yield the rows of the tables in the order of capture, over all segments.
// If a stream was cut short, the rows end after its last complete batch; that is no error (Meta.Complete tells). A table that was not
// written has no rows. A Capture may be used concurrently.
type Capture struct {
	Dir       string
	Meta      *tables.Meta
	Structure []tables.StructureRow // ordered by model, file and offset

	byName []map[string]int32 // structure rows by tensor name, for each model
}

// Open reads the description and the structure of the capture in dir. It fails with ErrNoCapture if there is none.
func Open(dir string) (*Capture, error) {
	meta, err := readMeta(dir)
	if err != nil {
		return nil, err
	}
	c := &Capture{Dir: dir, Meta: meta}
	for rec, err := range records(filepath.Join(dir, StructureFile)) {
		if err != nil {
			return nil, err
		}
		rows, err := structureRows(rec)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", StructureFile, err)
		}
		c.Structure = append(c.Structure, rows...)
	}
	for i, r := range c.Structure {
		if r.Model < 0 || int(r.Model) > len(c.byName) {
			return nil, fmt.Errorf("%s: row %d is of model %d", StructureFile, i, r.Model)
		}
		if int(r.Model) == len(c.byName) {
			c.byName = append(c.byName, map[string]int32{})
		}
		c.byName[r.Model][r.Name] = int32(i)
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
			tensor, err := c.tensor(model.Value(i), name.value(i))
			if err != nil {
				return err
			}
			p, err := tables.ParsePhase(phase.value(i))
			if err != nil {
				return err
			}
			*a = tables.Access{
				Timestamp: timestamp.Value(i), Step: step.Value(i), Token: token.Value(i), Phase: p, Thread: thread.Value(i),
				Op: op.value(i), Tensor: tensor, DataPtr: data.Value(i), Offset: offset.Value(i), Bytes: bytes.Value(i),
				Layer: layer.Value(i), Duration: observed(duration, i), Experts: experts.value(i), Context: llama.Value(i), Stall: observed(stall, i),
			}
			return nil
		}
	})
}

// Routes yields the route table. A capture of a dense model has no rows.
func (c *Capture) Routes() iter.Seq2[tables.Route, error] {
	return values(rowsOf(c, RouteFile, func(b *columns) func(int, *tables.Route) error {
		step, token, layer, slot, expert, position := b.int32("step"), b.int32("token"), b.int32("layer"), b.int32("slot"), b.int32("expert"), b.int32("position")
		return func(i int, r *tables.Route) error {
			*r = tables.Route{Step: step.Value(i), Token: token.Value(i), Layer: layer.Value(i), Slot: slot.Value(i), Expert: expert.Value(i), Position: position.Value(i)}
			return nil
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
				Step: step.Value(i), PID: pid.Value(i), Thread: thread.Value(i), Context: llama.Value(i), Phase: p, Tokens: tokens.Value(i), Token: token.Value(i),
				TokenIDs: ids.value(i), Sequences: sequences.value(i), Begin: begin.Value(i), End: observed(end, i), Derived: derived.Value(i),
			}
			return nil
		}
	})
}

// PageIns yields the pagein table. The row is reused: copy it to keep it.
func (c *Capture) PageIns() iter.Seq2[*tables.PageInRow, error] {
	return rowsOf(c, PageInFile, func(b *columns) func(int, *tables.PageInRow) error {
		var (
			timestamp, step, offset, bytes = b.int64("timestamp"), b.int32("step"), b.int64("offset_bytes"), b.int64("bytes")
			name, expert, pid, thread      = b.text("tensor_name"), b.int32("expert"), b.int32("pid"), b.int32("thread")
			cause, rereads, op             = b.text("cause"), b.int32("rereads"), b.text("op")
			file, model                    = b.text("file"), b.int32("model")
		)
		return func(i int, r *tables.PageInRow) error {
			*r = tables.PageInRow{
				Timestamp: timestamp.Value(i), Step: step.Value(i), File: file.value(i), Offset: offset.Value(i), Bytes: bytes.Value(i), Tensor: -1,
				Expert: expert.Value(i), PID: pid.Value(i), Thread: thread.Value(i), Rereads: rereads.Value(i), Op: op.value(i), Model: model.Value(i),
			}
			var err error
			if r.Cause, err = event.ParseCause(cause.value(i)); err != nil || name.isNull(i) {
				return err
			}
			r.Tensor, err = c.tensor(r.Model, name.value(i))
			return err
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
				Timestamp: timestamp.Value(i), Step: step.Value(i), Op: op.value(i), Seq: seq.Value(i), Buffer: buffer.value(i), Root: root.value(i),
				Kind: k, Write: write.Value(i), DataPtr: data.Value(i), Bytes: bytes.Value(i),
			}
			return nil
		}
	})
}

// HasPageIns reports whether page-ins were observed, even if none happened.
func (c *Capture) HasPageIns() bool {
	files, err := c.segments(PageInFile)
	return err == nil && len(files) > 0
}

// Rereads sums up what was read from disk more than once. It computes this from the tables; of a rotated capture, from the segments that
// are left. At most top tensors are listed. It returns nil if page-ins were not observed, and ctx's error if ctx is done first.
func (c *Capture) Rereads(ctx context.Context, top int) (*tables.Rereads, error) {
	if !c.HasPageIns() {
		return nil, nil
	}
	var account rereadAccount
	for r, err := range c.PageIns() {
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		account.pageIn(r)
	}
	for a, err := range c.Accesses() {
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		if a.Stall > 0 {
			account.stall(a.Tensor, a.Stall)
		}
	}
	return account.summary(c.Structure, top), nil
}

func (c *Capture) tensor(model int32, name string) (int32, error) {
	if model >= 0 && int(model) < len(c.byName) {
		if row, ok := c.byName[model][name]; ok {
			return row, nil
		}
	}
	return 0, fmt.Errorf("a row names tensor %.100q of model %d, which the structure table lacks", name, model)
}

// segments lists the files of a table in order.
func (c *Capture) segments(table string) ([]string, error) {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("read capture directory: %w", err)
	}
	var numbers []int
	for _, e := range entries {
		if t, n, ok := segmentOf(e.Name()); ok && t == table {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	files := make([]string, len(numbers))
	for i, n := range numbers {
		files[i] = filepath.Join(c.Dir, segmentFile(table, n))
	}
	return files, nil
}

// rowsOf yields the rows of a table. For each batch, open looks up the columns and returns the function that fills a row from them.
func rowsOf[R any](c *Capture, table string, open func(*columns) func(int, *R) error) iter.Seq2[*R, error] {
	return func(yield func(*R, error) bool) {
		files, err := c.segments(table)
		if err != nil {
			yield(nil, err)
			return
		}
		var row R
		for _, path := range files {
			for rec, err := range records(path) {
				if err != nil {
					yield(nil, err)
					return
				}
				b := &columns{rec: rec}
				fill := open(b)
				if err := errors.Join(b.errs...); err != nil {
					yield(nil, fmt.Errorf("%s: %w", filepath.Base(path), err))
					return
				}
				for i := range int(rec.NumRows()) {
					if err := fill(i, &row); err != nil {
						yield(nil, fmt.Errorf("%s: %w", filepath.Base(path), err))
						return
					}
					if !yield(&row, nil) {
						return
					}
				}
			}
		}
	}
}

// values yields a copy of each row.
func values[R any](rows iter.Seq2[*R, error]) iter.Seq2[R, error] {
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

// records yields the complete batches of an Arrow stream. A record is valid until the next one is requested.
func records(path string) iter.Seq2[arrow.Record, error] {
	return func(yield func(arrow.Record, error) bool) {
		f, err := os.Open(path)
		if err != nil {
			yield(nil, fmt.Errorf("open table: %w", err))
			return
		}
		defer f.Close()
		r, err := ipc.NewReader(f)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return // killed before the first batch was complete
		}
		if err != nil {
			yield(nil, fmt.Errorf("read %s: %w", path, err))
			return
		}
		defer r.Release()
		for r.Next() {
			if !yield(r.Record(), nil) {
				return
			}
		}
		// A truncated stream ends inside a message; the complete batches have been yielded.
		if err := r.Err(); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			yield(nil, fmt.Errorf("read %s: %w", path, err))
		}
	}
}

// columns gives typed access to the columns of a batch by name. Missing columns and wrong types are collected in errs.
type columns struct {
	rec  arrow.Record
	errs []error
}

func column[A arrow.Array](b *columns, name string) A {
	var none A
	found := b.rec.Schema().FieldIndices(name)
	if len(found) != 1 {
		b.errs = append(b.errs, fmt.Errorf("column %s is missing", name))
		return none
	}
	a, ok := b.rec.Column(found[0]).(A)
	if !ok {
		b.errs = append(b.errs, fmt.Errorf("column %s is %s, which this program does not read", name, b.rec.Column(found[0]).DataType()))
	}
	return a
}

func (b *columns) int32(name string) *array.Int32   { return column[*array.Int32](b, name) }
func (b *columns) int64(name string) *array.Int64   { return column[*array.Int64](b, name) }
func (b *columns) uint64(name string) *array.Uint64 { return column[*array.Uint64](b, name) }
func (b *columns) bool(name string) *array.Boolean  { return column[*array.Boolean](b, name) }
func (b *columns) string(name string) *array.String { return column[*array.String](b, name) }

// observed returns a value, or NotObserved for null.
func observed(a *array.Int64, i int) int64 {
	if a.IsNull(i) {
		return tables.NotObserved
	}
	return a.Value(i)
}

// textColumn is a column of strings with a dictionary.
type textColumn struct {
	indices *array.Dictionary
	values  *array.String
}

func (b *columns) text(name string) textColumn {
	t := textColumn{indices: column[*array.Dictionary](b, name)}
	if t.indices == nil {
		return t
	}
	var ok bool
	if t.values, ok = t.indices.Dictionary().(*array.String); !ok {
		b.errs = append(b.errs, fmt.Errorf("the dictionary of column %s holds %s, which this program does not read", name, t.indices.Dictionary().DataType()))
	}
	return t
}

func (t textColumn) isNull(i int) bool { return t.indices.IsNull(i) }

// value is empty if the column is null or its index is not in the dictionary.
func (t textColumn) value(i int) string {
	if t.indices.IsNull(i) {
		return ""
	}
	at := t.indices.GetValueIndex(i)
	if at < 0 || at >= t.values.Len() {
		return ""
	}
	return t.values.Value(at)
}

// listColumn is a column of lists of int32.
type listColumn struct {
	lists  *array.List
	values *array.Int32
}

func (b *columns) list(name string) listColumn {
	l := listColumn{lists: column[*array.List](b, name)}
	if l.lists == nil {
		return l
	}
	var ok bool
	if l.values, ok = l.lists.ListValues().(*array.Int32); !ok {
		b.errs = append(b.errs, fmt.Errorf("column %s holds lists of %s, which this program does not read", name, l.lists.ListValues().DataType()))
	}
	return l
}

// value is nil if the column is null.
func (l listColumn) value(i int) []int32 {
	if l.lists.IsNull(i) {
		return nil
	}
	from, to := l.lists.ValueOffsets(i)
	return l.values.Int32Values()[from:to:to]
}

func structureRows(rec arrow.Record) ([]tables.StructureRow, error) {
	b := &columns{rec: rec}
	var (
		name, offset, size, typ = b.string("tensor_name"), b.int64("offset_bytes"), b.int64("size_bytes"), b.string("type")
		layer, component, file  = b.int32("layer"), b.string("component"), b.string("file")
		shape                   = column[*array.List](b, "shape")
		experts, stride, model  = b.int32("expert_count"), b.int64("expert_stride_bytes"), b.int32("model")
	)
	if err := errors.Join(b.errs...); err != nil {
		return nil, err
	}
	dims, ok := shape.ListValues().(*array.Int64)
	if !ok {
		return nil, fmt.Errorf("column shape holds %s, want int64", shape.ListValues().DataType())
	}
	rows := make([]tables.StructureRow, rec.NumRows())
	for i := range rows {
		from, to := shape.ValueOffsets(i)
		rows[i] = tables.StructureRow{
			Name: name.Value(i), Offset: offset.Value(i), Size: size.Value(i), Type: typ.Value(i), Layer: layer.Value(i),
			Component: component.Value(i), File: file.Value(i), Shape: slices.Clone(dims.Int64Values()[from:to]),
			Experts: experts.Value(i), ExpertStride: stride.Value(i), Model: model.Value(i),
		}
	}
	return rows, nil
}
