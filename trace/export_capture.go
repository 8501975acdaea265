package trace

// This file exports the tables of a capture as they are, for programs that read Parquet and no
// Arrow streams.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"tensorcast/internal/outfile"
	"tensorcast/trace/tables"
)

// ErrNoTable means that a capture lacks a table, because what it would hold was not observed.
var ErrNoTable = errors.New("the capture has no such table")

// TableNames are the names of a capture's tables, in alphabetical order. Not every capture has all
// of them.
func TableNames() []string {
	names := []string{strings.TrimSuffix(StructureFile, ".arrows")}
	for _, file := range streamFiles {
		names = append(names, strings.TrimSuffix(file, ".arrows"))
	}
	slices.Sort(names)
	return names
}

// HasTable reports whether the capture has a table, even if it has no rows.
func (c *Capture) HasTable(name string) bool {
	if name+".arrows" == StructureFile {
		return true
	}
	if !slices.Contains(TableNames(), name) {
		return false
	}
	files, err := c.segments(name + ".arrows")
	return err != nil || len(files) > 0 // the error is returned when the table is read
}

// WriteTable writes a table as one Parquet file: all its segments that are left, with the columns of the
// Arrow streams. Columns with a dictionary become plain text. It fails with ErrNoTable if there is none,
// with the reader's errors, with ctx's error if ctx is done first, or with w's.
func (c *Capture) WriteTable(ctx context.Context, name string, w io.Writer) error {
	if !c.HasTable(name) {
		return ErrNoTable
	}
	return WriteParquetBatches(w, c.TableColumns(ctx, name),
		tables.Field{Key: metadataModels, Value: joinFingerprints(c.Meta)})
}

const parquetSuffix = ".parquet"

// isExport reports whether a name is that of a table's Parquet file.
func isExport(name string) bool {
	table, ok := strings.CutSuffix(name, parquetSuffix)
	return ok && slices.Contains(TableNames(), table)
}

// ExportTables writes each table that the capture has as Parquet beside its streams, and returns the
// files' paths. An export that cannot be made leaves the capture as it was.
func (c *Capture) ExportTables(ctx context.Context, path string) (written []string, err error) {
	dir, err := outfile.OpenDir(path, dirMode)
	if err != nil {
		return nil, fmt.Errorf("capture directory: %w", err)
	}
	defer dir.Close()
	for _, table := range TableNames() {
		if !c.HasTable(table) {
			continue
		}
		name := table + parquetSuffix
		err := dir.Write(name, fileMode, func(w io.Writer) error { return c.WriteTable(ctx, table, w) })
		if err != nil {
			return written, fmt.Errorf("write %s: %w", dir.Path(name), err)
		}
		written = append(written, dir.Path(name))
	}
	return written, nil
}

// TableColumns yields the columns of one of [TableNames], some rows at a time. What it yields is valid until the next.
// If there are no rows it yields empty columns once. It fails with the reader's errors, or with ctx's error if ctx is
// done first.
func (c *Capture) TableColumns(ctx context.Context, name string) iter.Seq2[[]tables.Column, error] {
	switch name + ".arrows" {
	case AccessFile:
		return c.accessColumns(ctx)
	case RouteFile:
		return c.routeColumns(ctx)
	case StepFile:
		return c.stepColumns(ctx)
	case PageInFile:
		return c.pageInColumns(ctx)
	case BufferFile:
		return c.bufferColumns(ctx)
	case HiddenFile:
		return c.hiddenTableColumns(ctx)
	}
	return c.structureColumns(ctx)
}

// tensorOf returns the name and model of a structure row; "" and -1 for none.
func (c *Capture) tensorOf(row int32) (name string, model int32) {
	if row < 0 {
		return "", -1
	}
	return c.Structure[row].Name, c.Structure[row].Model
}

func (c *Capture) accessColumns(ctx context.Context) iter.Seq2[[]tables.Column, error] {
	return inBatches(ctx, c.Accesses(),
		values64("timestamp", func(r *tables.Access) int64 { return r.Timestamp }),
		values32("step", func(r *tables.Access) int32 { return r.Step }),
		values32("token", func(r *tables.Access) int32 { return r.Token }),
		texts("phase", func(r *tables.Access) string { return r.Phase.String() }),
		values32("thread", func(r *tables.Access) int32 { return r.Thread }),
		texts("op", func(r *tables.Access) string { return r.Op }),
		texts("tensor_name", func(r *tables.Access) string { name, _ := c.tensorOf(r.Tensor); return name }),
		columnOf("data_ptr", func(r *tables.Access) uint64 { return r.DataPtr }),
		values64("offset_bytes", func(r *tables.Access) int64 { return r.Offset }),
		values64("bytes_accessed", func(r *tables.Access) int64 { return r.Bytes }),
		values32("layer", func(r *tables.Access) int32 { return r.Layer }),
		columnOf("duration_ns", func(r *tables.Access) *int64 { return timeOrNil(r.Duration) }),
		columnOf("experts", func(r *tables.Access) []int32 { return slices.Clone(r.Experts) }),
		values32("context", func(r *tables.Access) int32 { return r.Context }),
		columnOf("stall_ns", func(r *tables.Access) *int64 { return timeOrNil(r.Stall) }),
		values32("model", func(r *tables.Access) int32 { _, model := c.tensorOf(r.Tensor); return model }))
}

func (c *Capture) routeColumns(ctx context.Context) iter.Seq2[[]tables.Column, error] {
	return inBatches(ctx, pointers(c.Routes()),
		values32("step", func(r *tables.Route) int32 { return r.Step }),
		values32("token", func(r *tables.Route) int32 { return r.Token }),
		values32("layer", func(r *tables.Route) int32 { return r.Layer }),
		values32("slot", func(r *tables.Route) int32 { return r.Slot }),
		values32("expert", func(r *tables.Route) int32 { return r.Expert }),
		values32("position", func(r *tables.Route) int32 { return r.Position }))
}

func (c *Capture) stepColumns(ctx context.Context) iter.Seq2[[]tables.Column, error] {
	return inBatches(ctx, c.Steps(),
		values32("step", func(r *tables.StepRow) int32 { return r.Step }),
		values32("pid", func(r *tables.StepRow) int32 { return r.PID }),
		values32("thread", func(r *tables.StepRow) int32 { return r.Thread }),
		values32("context", func(r *tables.StepRow) int32 { return r.Context }),
		texts("phase", func(r *tables.StepRow) string { return r.Phase.String() }),
		values32("tokens", func(r *tables.StepRow) int32 { return r.Tokens }),
		values32("token", func(r *tables.StepRow) int32 { return r.Token }),
		columnOf("token_ids", func(r *tables.StepRow) []int32 { return slices.Clone(r.TokenIDs) }),
		columnOf("sequences", func(r *tables.StepRow) []int32 { return slices.Clone(r.Sequences) }),
		values64("begin", func(r *tables.StepRow) int64 { return r.Begin }),
		columnOf("end", func(r *tables.StepRow) *int64 { return timeOrNil(r.End) }),
		columnOf("derived", func(r *tables.StepRow) bool { return r.Derived }))
}

func (c *Capture) pageInColumns(ctx context.Context) iter.Seq2[[]tables.Column, error] {
	return inBatches(ctx, c.PageIns(),
		values64("timestamp", func(r *tables.PageInRow) int64 { return r.Timestamp }),
		values32("step", func(r *tables.PageInRow) int32 { return r.Step }),
		values64("offset_bytes", func(r *tables.PageInRow) int64 { return r.Offset }),
		values64("bytes", func(r *tables.PageInRow) int64 { return r.Bytes }),
		columnOf("tensor_name", func(r *tables.PageInRow) *string {
			name, _ := c.tensorOf(r.Tensor)
			return textOrNil(name)
		}),
		values32("expert", func(r *tables.PageInRow) int32 { return r.Expert }),
		values32("pid", func(r *tables.PageInRow) int32 { return r.PID }),
		values32("thread", func(r *tables.PageInRow) int32 { return r.Thread }),
		texts("cause", func(r *tables.PageInRow) string { return r.Cause.String() }),
		values32("rereads", func(r *tables.PageInRow) int32 { return r.Rereads }),
		columnOf("op", func(r *tables.PageInRow) *string { return textOrNil(strings.Clone(r.Op)) }),
		texts("file", func(r *tables.PageInRow) string { return r.File }),
		values32("model", func(r *tables.PageInRow) int32 { return r.Model }))
}

func (c *Capture) bufferColumns(ctx context.Context) iter.Seq2[[]tables.Column, error] {
	return inBatches(ctx, c.Buffers(),
		values64("timestamp", func(r *tables.BufferRow) int64 { return r.Timestamp }),
		values32("step", func(r *tables.BufferRow) int32 { return r.Step }),
		texts("op", func(r *tables.BufferRow) string { return r.Op }),
		values64("seq", func(r *tables.BufferRow) int64 { return r.Seq }),
		texts("buffer", func(r *tables.BufferRow) string { return r.Buffer }),
		columnOf("root", func(r *tables.BufferRow) *string { return textOrNil(strings.Clone(r.Root)) }),
		texts("kind", func(r *tables.BufferRow) string { return r.Kind.String() }),
		columnOf("write", func(r *tables.BufferRow) bool { return r.Write }),
		columnOf("data_ptr", func(r *tables.BufferRow) uint64 { return r.DataPtr }),
		values64("bytes", func(r *tables.BufferRow) int64 { return r.Bytes }))
}

// hiddenTableColumns is HiddenColumns, but yields empty columns if the table has no rows.
func (c *Capture) hiddenTableColumns(ctx context.Context) iter.Seq2[[]tables.Column, error] {
	return func(yield func([]tables.Column, error) bool) {
		for columns, err := range c.HiddenColumns(ctx) {
			if errors.Is(err, ErrNoHidden) { // the table has no rows
				err = nil
				columns = []tables.Column{
					{Name: "step", Values: []int32{}}, {Name: "token", Values: []int32{}},
					{Name: "layer", Values: []int32{}}, {Name: "point", Values: []string{}},
					{Name: "position", Values: []int32{}}, {Name: "values", Values: [][]float32{}},
				}
			}
			if !yield(columns, err) {
				return
			}
		}
	}
}

func (c *Capture) structureColumns(ctx context.Context) iter.Seq2[[]tables.Column, error] {
	return inBatches(ctx, func(yield func(*tables.StructureRow, error) bool) {
		for i := range c.Structure {
			if !yield(&c.Structure[i], nil) {
				return
			}
		}
	},
		texts("tensor_name", func(r *tables.StructureRow) string { return r.Name }),
		values64("offset_bytes", func(r *tables.StructureRow) int64 { return r.Offset }),
		values64("size_bytes", func(r *tables.StructureRow) int64 { return r.Size }),
		texts("type", func(r *tables.StructureRow) string { return r.Type }),
		values32("layer", func(r *tables.StructureRow) int32 { return r.Layer }),
		texts("component", func(r *tables.StructureRow) string { return r.Component }),
		texts("file", func(r *tables.StructureRow) string { return r.File }),
		columnOf("shape", func(r *tables.StructureRow) []int64 { return r.Shape }),
		values32("expert_count", func(r *tables.StructureRow) int32 { return r.Experts }),
		values64("expert_stride_bytes", func(r *tables.StructureRow) int64 { return r.ExpertStride }),
		values32("model", func(r *tables.StructureRow) int32 { return r.Model }))
}

// timeOrNil returns nil for a time that was not observed.
func timeOrNil(ns int64) *int64 {
	if ns == tables.NotObserved {
		return nil
	}
	return &ns
}

// textOrNil returns nil for an empty string.
func textOrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// pointers yields a pointer to each row.
func pointers[R any](rows iter.Seq2[R, error]) iter.Seq2[*R, error] {
	return func(yield func(*R, error) bool) {
		for r, err := range rows {
			if !yield(&r, err) {
				return
			}
		}
	}
}

// exportColumn collects one column of the rows that are added to it.
type exportColumn[R any] interface {
	add(*R)
	column() tables.Column
	reset()
}

type typedColumn[R, V any] struct {
	name   string
	of     func(*R) V
	values []V
}

func (c *typedColumn[R, V]) add(r *R) { c.values = append(c.values, c.of(r)) }
func (c *typedColumn[R, V]) column() tables.Column {
	return tables.Column{Name: c.name, Values: c.values}
}
func (c *typedColumn[R, V]) reset() { c.values = c.values[:0] }

func columnOf[R, V any](name string, of func(*R) V) exportColumn[R] {
	return &typedColumn[R, V]{name: name, of: of, values: []V{}}
}

func values32[R any](name string, of func(*R) int32) exportColumn[R] { return columnOf(name, of) }
func values64[R any](name string, of func(*R) int64) exportColumn[R] { return columnOf(name, of) }

// texts is columnOf for texts that are valid only until the next row. It keeps one copy of each.
func texts[R any](name string, of func(*R) string) exportColumn[R] {
	known := map[string]string{}
	return columnOf(name, func(r *R) string {
		s := of(r)
		kept, ok := known[s]
		if !ok {
			if len(known) > dictionaryLimit {
				clear(known)
			}
			kept = strings.Clone(s)
			known[kept] = kept
		}
		return kept
	})
}

// exportRows is how many rows are exported together.
const exportRows = 1 << 16

// inBatches yields rows as columns, some at a time. What it yields is valid until the next. If there
// are no rows, it yields empty columns once.
func inBatches[R any](ctx context.Context, rows iter.Seq2[*R, error], all ...exportColumn[R]) iter.Seq2[[]tables.Column,
	error] {
	return func(yield func([]tables.Column, error) bool) {
		n, yielded := 0, false
		columns := make([]tables.Column, len(all))
		flush := func() bool {
			for i, c := range all {
				columns[i] = c.column()
			}
			n, yielded = 0, true
			more := yield(columns, nil)
			for _, c := range all {
				c.reset()
			}
			return more
		}
		for r, err := range rows {
			if n == 0 {
				err = cmp.Or(err, ctx.Err())
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for _, c := range all {
				c.add(r)
			}
			if n++; n == exportRows && !flush() {
				return
			}
		}
		if n > 0 || !yielded {
			flush()
		}
	}
}

// exportBytes bounds the values of the hidden table that are exported together.
const exportBytes = 4 << 20

// ErrNoHidden means that a capture has no hidden table, or that the table has no row.
var ErrNoHidden = errors.New("no routers' inputs were recorded")

// HiddenColumns yields the columns of the hidden table, some rows at a time, for an export. It fails
// with ErrNoHidden if there is none, and with ctx's error if ctx is done first.
func (c *Capture) HiddenColumns(ctx context.Context) iter.Seq2[[]tables.Column, error] {
	return func(yield func([]tables.Column, error) bool) {
		var (
			step, token, layer, position []int32
			point                        []string
			values                       [][]float32
			hasRows                      bool
		)
		flush := func() bool {
			more := yield([]tables.Column{
				{Name: "step", Values: step}, {Name: "token", Values: token}, {Name: "layer", Values: layer},
				{Name: "point", Values: point},
				{Name: "position", Values: position}, {Name: "values", Values: values},
			}, nil)
			step, token, layer, position, point, values = nil, nil, nil, nil, nil, nil
			return more
		}
		for r, err := range c.Hidden() {
			if err := cmp.Or(err, ctx.Err()); err != nil {
				yield(nil, err)
				return
			}
			hasRows = true
			step, token, layer = append(step, r.Step), append(token, r.Token), append(layer, r.Layer)
			point, position = append(point, r.Point.String()), append(position, r.Position)
			values = append(values, slices.Clone(r.Values))
			if len(values)*len(r.Values)*4 >= exportBytes && !flush() {
				return
			}
		}
		switch {
		case !hasRows:
			yield(nil, ErrNoHidden)
		case len(values) > 0:
			flush()
		}
	}
}
