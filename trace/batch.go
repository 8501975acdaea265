package trace

// This file reads the batches of a table, and gives typed access to their columns. Arrow checks the
// bounds of a column only when a value is taken, and then it panics. Here a column is checked as a whole
// before any value is taken.

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"

	"tensorcast/gguf/half"
	"tensorcast/trace/tables"
)

// readRecords yields the complete batches of a table's file. A record is valid until the next one is
// requested. The records end where the file does. If that is before the stream's end mark, it is an error
// only if the file should be whole.
func readRecords(path string, whole bool) iter.Seq2[arrow.Record, error] {
	return func(yield func(arrow.Record, error) bool) {
		m, err := openMessages(path)
		if err != nil {
			yield(nil, err)
			return
		}
		defer m.close()
		var r *ipc.Reader
		err = recoverDamage(func() (err error) {
			r, err = ipc.NewReaderFromMessageReader(m)
			return err
		})
		for err == nil {
			var rec arrow.Record
			err = recoverDamage(func() error {
				if r.Next() {
					rec = r.Record()
				}
				return r.Err()
			})
			if err != nil || rec == nil {
				break
			}
			if !yield(rec, nil) {
				r.Release()
				return
			}
		}
		if err := m.endError(err, whole); err != nil {
			yield(nil, fmt.Errorf("%s is %w", filepath.Base(path), err))
		}
		if r != nil {
			r.Release()
		}
	}
}

// endError returns what was wrong with a stream that has ended, nil if nothing was. refused is Arrow's
// error if Arrow refused a message.
func (m *messageReader) endError(refused error, whole bool) error {
	switch {
	case errors.Is(m.err, io.EOF):
		return nil
	case errors.Is(m.err, io.ErrUnexpectedEOF) && whole:
		return damageError("it ends within a batch, after %d bytes: copy the whole capture again, or capture again",
			m.size)
	case errors.Is(m.err, io.ErrUnexpectedEOF):
		return nil // its tracer was killed
	case m.err != nil:
		return m.err
	case errors.Is(refused, ErrDamaged):
		return refused
	case refused != nil:
		return damageError("%.300w", refused)
	}
	return damageError("it ends before its end")
}

// columns gives typed access to the columns of a batch by name. err is about the first column that is
// missing, has a wrong type, or fails a check.
type columns struct {
	rec    arrow.Record
	fields []arrow.Field // as this program writes them
	err    error
}

// columnsIn calls open with the columns of a batch, and returns the error of columns.
func columnsIn(rec arrow.Record, fields []arrow.Field, open func(*columns)) error {
	return recoverDamage(func() error {
		b := &columns{rec: rec, fields: fields}
		open(b)
		return b.err
	})
}

func checkedColumn[A arrow.Array](b *columns, name string) A {
	var none A
	fail := func(format string, args ...any) A {
		if b.err == nil {
			b.err = fmt.Errorf("column "+name+" "+format, args...)
		}
		return none
	}
	want := b.fields[slices.IndexFunc(b.fields, func(f arrow.Field) bool { return f.Name == name })]
	found := b.rec.Schema().FieldIndices(name)
	if len(found) != 1 {
		return fail("is missing")
	}
	got := b.rec.Column(found[0])
	if !isReadable(got.DataType(), want.Type) {
		return fail("is %s, which this program does not read", got.DataType())
	}
	if err := checkArray(got, want.Nullable); err != nil {
		return fail("%w", err)
	}
	return got.(A)
}

// isReadable reports whether a column has the wanted type. Lists of a fixed size may have another size.
func isReadable(got, want arrow.DataType) bool {
	g, ok := got.(*arrow.FixedSizeListType)
	w, also := want.(*arrow.FixedSizeListType)
	if ok && also {
		return g.Len() > 0 && g.Len() <= tables.MaxHidden && arrow.TypeEqual(g.Elem(), w.Elem())
	}
	return arrow.TypeEqual(got, want)
}

// checkArray checks that all values of an array can be taken without a panic.
func checkArray(a arrow.Array, nullable bool) error {
	n := a.Len()
	if bits := a.NullBitmapBytes(); bits != nil && len(bits) < (n+7)/8 {
		return fmt.Errorf("says in %d bytes which of %d values are null", len(bits), n)
	}
	if !nullable && a.NullN() != 0 {
		return errors.New("has nulls, which it may not")
	}
	// Without this check Arrow would read behind a buffer that is too short, if it has memory there.
	if f, ok := a.DataType().(arrow.FixedWidthDataType); ok && n > 0 {
		if values := a.Data().Buffers()[1]; values == nil || values.Len() < (n*f.BitWidth()+7)/8 {
			return fmt.Errorf("has not as many values as rows, %d", n)
		}
	}
	switch a := a.(type) {
	case *array.String:
		if n > 0 {
			return checkOffsets(n, a.ValueOffset, len(a.ValueBytes()))
		}
	case *array.List:
		if n > 0 {
			offsets := a.Offsets()
			if len(offsets) <= n {
				return fmt.Errorf("has offsets for %d lists of %d", len(offsets)-1, n)
			}
			if err := checkOffsets(n, func(i int) int { return int(offsets[i]) }, a.ListValues().Len()); err != nil {
				return err
			}
		}
		return checkArray(a.ListValues(), false)
	case *array.FixedSizeList:
		if size := int(a.DataType().(*arrow.FixedSizeListType).Len()); a.ListValues().Len() < n*size {
			return fmt.Errorf("has %d values for %d rows of %d", a.ListValues().Len(), n, size)
		}
		return checkArray(a.ListValues(), false)
	case *array.Dictionary:
		return checkText(a)
	}
	return nil
}

// checkOffsets checks that the n+1 offsets of n values ascend, and end within items (bytes of text, or
// items of lists).
func checkOffsets(n int, offset func(int) int, items int) error {
	before := 0
	for i := range n + 1 {
		at := offset(i)
		if at < before || at > items {
			return fmt.Errorf("has value %d at %d, after one at %d, of %d", i, at, before, items)
		}
		before = at
	}
	return nil
}

// checkText checks a column of strings with a dictionary.
func checkText(a *array.Dictionary) error {
	if a.Len() == 0 {
		return nil // and perhaps no dictionary
	}
	values, ok := a.Dictionary().(*array.String)
	if !ok {
		return fmt.Errorf("has a dictionary of %s", a.Dictionary().DataType())
	}
	if err := errors.Join(checkArray(a.Indices(), true), checkArray(values, false)); err != nil {
		return err
	}
	for i := range values.Len() {
		if name := values.Value(i); len(name) > maxName {
			return fmt.Errorf("has a name of %d bytes", len(name))
		}
	}
	for i := range a.Len() {
		// An index is never negative, as it is taken for unsigned.
		if !a.IsNull(i) && a.GetValueIndex(i) >= values.Len() {
			return fmt.Errorf("has value %d of a dictionary of %d in its row %d", a.GetValueIndex(i), values.Len(), i)
		}
	}
	return nil
}

func (b *columns) int32(name string) *array.Int32   { return checkedColumn[*array.Int32](b, name) }
func (b *columns) int64(name string) *array.Int64   { return checkedColumn[*array.Int64](b, name) }
func (b *columns) uint64(name string) *array.Uint64 { return checkedColumn[*array.Uint64](b, name) }
func (b *columns) bool(name string) *array.Boolean  { return checkedColumn[*array.Boolean](b, name) }
func (b *columns) string(name string) *array.String { return checkedColumn[*array.String](b, name) }

// timeOrNotObserved returns a value, or NotObserved for null.
func timeOrNotObserved(a *array.Int64, i int) int64 {
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
	t := textColumn{indices: checkedColumn[*array.Dictionary](b, name)}
	if t.indices != nil && t.indices.Len() > 0 {
		t.values = t.indices.Dictionary().(*array.String) // see soundText
	}
	return t
}

func (t textColumn) isNull(i int) bool { return t.indices.IsNull(i) }

// value returns the text in row i, empty for null.
func (t textColumn) value(i int) string {
	if t.indices.IsNull(i) {
		return ""
	}
	return t.values.Value(t.indices.GetValueIndex(i))
}

// listColumn is a column of lists of int32.
type listColumn struct {
	lists  *array.List
	values *array.Int32
}

func (b *columns) list(name string) listColumn {
	l := listColumn{lists: checkedColumn[*array.List](b, name)}
	if l.lists != nil {
		l.values = l.lists.ListValues().(*array.Int32)
	}
	return l
}

// value returns the list in row i, nil for null. It shares memory with the batch.
func (l listColumn) value(i int) []int32 {
	if l.lists.IsNull(i) {
		return nil
	}
	from, to := l.lists.ValueOffsets(i)
	return l.values.Int32Values()[from:to:to]
}

// halfColumn is a column of lists of halves, all of the same size.
type halfColumn struct {
	size   int
	values *array.Float16
}

func (b *columns) halves(name string) halfColumn {
	lists := checkedColumn[*array.FixedSizeList](b, name)
	if lists == nil {
		return halfColumn{}
	}
	return halfColumn{int(lists.DataType().(*arrow.FixedSizeListType).Len()), lists.ListValues().(*array.Float16)}
}

// value appends a row's values to out.
func (h halfColumn) value(i int, out []float32) []float32 {
	for _, v := range h.values.Values()[i*h.size : (i+1)*h.size] {
		out = append(out, half.Float32(v.Uint16()))
	}
	return out
}
