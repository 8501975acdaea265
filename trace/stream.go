package trace

// This file writes one table as an Arrow IPC stream: it collects rows, writes them in batches, and
// continues in segments.

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"tensorcast/internal/outfile"
	"tensorcast/trace/tables"
)

const (
	// batchRows is how many rows are buffered before a batch is written.
	batchRows = 32768
	// batchBytes is the same limit for a column's bytes. It matters for the values of the hidden table,
	// where a row has up to 128 KiB.
	batchBytes = 8 << 20
	// dictionaryLimit bounds a dictionary's entries. A dictionary that exceeds it is dropped after a
	// batch, and the next batch starts a new one.
	dictionaryLimit = 1 << 16
)

// stream writes one table. A row is appended column by column in the schema's order, and ended with
// endRow. If the values of a row do not match the schema (too few, too many, or of another type),
// endRow returns an error. After an error nothing is written any more, so the table ends with the last
// batch before it. The same error is returned from then on.
type stream struct {
	dir     *outfile.Dir
	name    string
	schema  *arrow.Schema
	columns []columnBuffer // the indices if the column has a dictionary
	dicts   []*dictionary  // nil for columns without dictionary
	surplus columnBuffer   // receives values for which there is no column, and all values after an error
	column  int            // the next column
	err     error          // a row did not match the schema, or a batch could not be written
	torn    bool           // the latter: the table may end in a part of a batch
	rows    int            // rows that are buffered
	maxRows int            // of them

	file *os.File
	w    *ipc.Writer
	out  []byte // bytes from w that are not yet in the file
	size int64  // bytes of this segment
}

// createStream creates a table with these columns.
func createStream(
	dir *outfile.Dir, table string, fields []arrow.Field, segment int, fingerprint string,
) (*stream, error) {
	s := &stream{
		dir: dir, name: table, schema: arrow.NewSchema(fields, tableMetadata(fingerprint)),
		dicts:   make([]*dictionary, len(fields)),
		surplus: newColumnBuffer(arrow.PrimitiveTypes.Int8, false), maxRows: batchRows,
	}
	for i, f := range fields {
		typ := f.Type
		if d, ok := typ.(*arrow.DictionaryType); ok {
			typ, s.dicts[i] = d.IndexType, newDictionary()
		}
		c := newColumnBuffer(typ, f.Nullable)
		s.maxRows = min(s.maxRows, batchBytes/max(c.width, 1))
		s.columns = append(s.columns, c)
	}
	if err := s.beginSegment(segment); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

// beginSegment starts a segment. It writes an empty batch with the schema, so that the table is readable
// from the start.
func (s *stream) beginSegment(segment int) error {
	f, err := s.dir.Create(segmentFile(s.name, segment), fileMode)
	if err != nil {
		return err
	}
	s.file, s.size = f, 0
	s.w = ipc.NewWriter(collecting{s}, ipc.WithSchema(s.schema), ipc.WithZstd())
	return s.writeBatch()
}

// collecting buffers the many small pieces that the Arrow writer writes.
type collecting struct{ s *stream }

func (c collecting) Write(b []byte) (int, error) {
	c.s.out = append(c.s.out, b...)
	return len(b), nil
}

// writeOut writes the bytes that collecting buffered to the segment's file.
func (s *stream) writeOut() error {
	n, err := s.file.Write(s.out)
	s.size += int64(n)
	s.out = s.out[:0]
	return err
}

// dictionaryOf returns the dictionary of a column.
func (s *stream) dictionaryOf(column string) *dictionary {
	return s.dicts[s.schema.FieldIndices(column)[0]]
}

func (s *stream) nextColumn() *columnBuffer {
	if s.column >= len(s.columns) {
		return s.surplusColumn()
	}
	c := &s.columns[s.column]
	s.column++
	return c
}

// surplusColumn takes a value for which there is no column. endRow reports it.
func (s *stream) surplusColumn() *columnBuffer {
	s.column++
	s.surplus.reset()
	return &s.surplus
}

func (s *stream) int32(v int32) {
	c := s.nextColumn()
	c.markValid(s.rows, true)
	c.values = binary.NativeEndian.AppendUint32(c.values, uint32(v))
}

func (s *stream) uint64(v uint64) {
	c := s.nextColumn()
	c.markValid(s.rows, true)
	c.values = binary.NativeEndian.AppendUint64(c.values, v)
}

func (s *stream) int64(v int64) { s.uint64(uint64(v)) }

func (s *stream) bool(v bool) {
	c := s.nextColumn()
	c.markValid(s.rows, true)
	c.values = appendBit(c.values, s.rows, v)
}

func (s *stream) null() { s.nextColumn().null(s.rows) }

// timeOrNull appends a time, or null for NotObserved.
func (s *stream) timeOrNull(v int64) {
	if v == tables.NotObserved {
		s.null()
		return
	}
	s.int64(v)
}

// list appends a list, or null if values is nil.
func (s *stream) list(values []int32) {
	if values == nil {
		s.null()
		return
	}
	s.nextColumn().list(s.rows, values)
}

// halfValues appends a row of values.
func (s *stream) halfValues(values []float32) { s.nextColumn().halves(s.rows, values) }

// text appends a string as its index in the column's dictionary.
func (s *stream) text(v string) {
	if s.column >= len(s.dicts) {
		s.nextColumn()
		return
	}
	if s.dicts[s.column] == nil {
		s.fail(fmt.Errorf("column %s has no dictionary, and gets a text", s.schema.Field(s.column).Name))
		return
	}
	s.int32(s.dicts[s.column].indexOf(v))
}

// textOrNull appends a string, or null if v is empty.
func (s *stream) textOrNull(v string) {
	if v == "" {
		s.null()
		return
	}
	s.text(v)
}

// shortIndex appends an index into a small dictionary that was filled at the start.
func (s *stream) shortIndex(v uint8) {
	c := s.nextColumn()
	c.markValid(s.rows, true)
	c.values = append(c.values, v)
}

// endRow ends a row, for which all columns must have been set. It writes a batch when enough rows
// are buffered.
func (s *stream) endRow() error {
	if s.err == nil && s.column != len(s.columns) {
		s.fail(fmt.Errorf("a row sets %d of %d columns", s.column, len(s.columns)))
	}
	if s.err != nil {
		return s.err
	}
	s.column = 0
	if s.rows++; s.rows >= s.maxRows {
		return s.flush()
	}
	return nil
}

// fail records that a row did not match the schema. No batch is written from now on.
func (s *stream) fail(err error) {
	if s.err == nil {
		s.err = fmt.Errorf("write table %s: %w", s.name, err)
	}
	s.column = len(s.columns)
}

// flush writes the buffered rows.
func (s *stream) flush() error {
	if s.err != nil {
		return s.err
	}
	if s.rows == 0 {
		return nil
	}
	return s.writeBatch()
}

func (s *stream) writeBatch() error {
	for i := range s.columns {
		if err := s.columns[i].check(s.rows); err != nil {
			s.fail(fmt.Errorf("column %s: %w", s.schema.Field(i).Name, err))
			return s.err
		}
	}
	arrays := make([]arrow.Array, len(s.columns))
	for i := range s.columns {
		arrays[i] = s.columns[i].array(s.rows)
		if s.dicts[i] != nil {
			indices := arrays[i]
			arrays[i] = array.NewDictionaryArray(s.schema.Field(i).Type, indices, s.dicts[i].array())
			indices.Release()
		}
	}
	rec := array.NewRecord(s.schema, arrays, int64(s.rows))
	for _, a := range arrays {
		a.Release()
	}
	err := s.w.Write(rec)
	rec.Release()
	s.rows = 0
	for i := range s.columns {
		s.columns[i].reset()
	}
	if err == nil {
		err = s.writeOut()
	}
	if err != nil {
		s.err, s.torn = err, true
		return err
	}
	for _, d := range s.dicts {
		if d != nil && len(d.values) > dictionaryLimit && !d.isKept {
			d.reset()
		}
	}
	return nil
}

// endSegment writes the buffered rows and ends the segment.
func (s *stream) endSegment() error {
	err := s.flush()
	if !s.torn {
		err = cmp.Or(err, s.w.Close(), s.writeOut())
	}
	err = cmp.Or(err, s.file.Close())
	s.err = cmp.Or(s.err, err)
	return err
}

func (s *stream) release() {
	for _, d := range s.dicts {
		if d != nil {
			d.reset()
		}
	}
}

// dictionary holds the distinct strings of a column in the order in which they first occurred. A batch
// with a new string replaces the stream's dictionary. An unchanged array is not written again.
type dictionary struct {
	values []string
	known  map[string]int32
	built  arrow.Array // array of values; nil if it must be rebuilt
	isKept bool        // other code holds its indices, so it must not be dropped
}

func newDictionary() *dictionary { return &dictionary{known: map[string]int32{}} }

func (d *dictionary) indexOf(v string) int32 {
	i, ok := d.known[v]
	if !ok {
		i = int32(len(d.values))
		d.known[v] = i
		d.values = append(d.values, v)
		d.dropArray()
	}
	return i
}

func (d *dictionary) array() arrow.Array {
	if d.built == nil {
		d.built = stringArray(d.values)
	}
	return d.built
}

func (d *dictionary) dropArray() {
	if d.built != nil {
		d.built.Release()
		d.built = nil
	}
}

func (d *dictionary) reset() {
	d.dropArray()
	clear(d.known)
	d.values = d.values[:0]
}

func stringArray(values []string) arrow.Array {
	b := array.NewStringBuilder(memory.DefaultAllocator)
	defer b.Release()
	b.AppendValues(values, nil)
	return b.NewArray()
}
