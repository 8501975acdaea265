package trace

// This file owns one table as an Arrow IPC stream: rows are collected, batches written, segments follow one another.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"tensorcast/trace/tables"
)

const (
	// batchRows is the number of rows that are held in memory before a batch is written.
	batchRows = 32768
	// dictionaryLimit bounds a dictionary: beyond it, a batch's is forgotten, and the next batch's replaces it.
	dictionaryLimit = 1 << 16
)

// stream writes one table. A row is appended column by column, in the schema's order, and ended. What has not the columns of the schema (too few
// values in a row, too many, or of another type) is an error: it is not written, nor is anything after it.
type stream struct {
	dir, name string
	schema    *arrow.Schema
	columns   []columnBuffer // indices, where the column has a dictionary
	dicts     []*dictionary  // nil where it has none
	beyond    columnBuffer   // takes the values for which there is no column, and all of them after an error
	at        int            // the column that comes next
	err       error          // rows were not as the schema has them
	rows      int            // that are not written yet

	file *os.File
	w    *ipc.Writer
	out  []byte // of w, not in the file yet
	size int64  // bytes of this segment
}

func createStream(dir, table string, segment int, fingerprint string) (*stream, error) {
	fields := columnsOf[table]
	s := &stream{dir: dir, name: table, schema: arrow.NewSchema(fields, tableMetadata(fingerprint)), dicts: make([]*dictionary, len(fields)),
		beyond: newColumnBuffer(arrow.PrimitiveTypes.Int8, false)}
	for i, f := range fields {
		typ := f.Type
		if d, ok := typ.(*arrow.DictionaryType); ok {
			typ, s.dicts[i] = d.IndexType, newDictionary()
		}
		s.columns = append(s.columns, newColumnBuffer(typ, f.Nullable))
	}
	if err := s.begin(segment); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

// begin starts a segment. A batch without rows carries the schema: a table is readable from the start.
func (s *stream) begin(segment int) error {
	f, err := os.Create(filepath.Join(s.dir, segmentFile(s.name, segment)))
	if err != nil {
		return fmt.Errorf("create table: %w", err)
	}
	s.file, s.size = f, 0
	s.w = ipc.NewWriter(collecting{s}, ipc.WithSchema(s.schema), ipc.WithZstd())
	return s.writeBatch()
}

// collecting takes what the writer writes in many pieces.
type collecting struct{ s *stream }

func (c collecting) Write(b []byte) (int, error) {
	c.s.out = append(c.s.out, b...)
	return len(b), nil
}

// writeOut writes what was collected to the segment's file.
func (s *stream) writeOut() error {
	n, err := s.file.Write(s.out)
	s.size += int64(n)
	s.out = s.out[:0]
	return err
}

// dictionary returns the dictionary of a column.
func (s *stream) dictionary(column string) *dictionary {
	return s.dicts[s.schema.FieldIndices(column)[0]]
}

func (s *stream) next() *columnBuffer {
	if s.at >= len(s.columns) {
		return s.noColumn()
	}
	c := &s.columns[s.at]
	s.at++
	return c
}

// noColumn takes a value that endRow will complain of.
func (s *stream) noColumn() *columnBuffer {
	s.at++
	s.beyond.reset()
	return &s.beyond
}

func (s *stream) int32(v int32) {
	c := s.next()
	c.mark(s.rows, true)
	c.values = binary.NativeEndian.AppendUint32(c.values, uint32(v))
}

func (s *stream) uint64(v uint64) {
	c := s.next()
	c.mark(s.rows, true)
	c.values = binary.NativeEndian.AppendUint64(c.values, v)
}

func (s *stream) int64(v int64) { s.uint64(uint64(v)) }

func (s *stream) bool(v bool) {
	c := s.next()
	c.mark(s.rows, true)
	c.values = appendBit(c.values, s.rows, v)
}

func (s *stream) null() { s.next().null(s.rows) }

// observed is a time or null.
func (s *stream) observed(v int64) {
	if v == tables.NotObserved {
		s.null()
		return
	}
	s.int64(v)
}

// list is null if values is nil.
func (s *stream) list(values []int32) {
	if values == nil {
		s.null()
		return
	}
	s.next().list(s.rows, values)
}

// text looks v up in the column's dictionary.
func (s *stream) text(v string) {
	if s.at >= len(s.dicts) {
		s.next()
		return
	}
	if s.dicts[s.at] == nil {
		s.fail(fmt.Errorf("column %s has no dictionary, and gets a text", s.schema.Field(s.at).Name))
		return
	}
	s.int32(s.dicts[s.at].index(v))
}

// textOrNull is null if v is empty.
func (s *stream) textOrNull(v string) {
	if v == "" {
		s.null()
		return
	}
	s.text(v)
}

// short is a value of a small dictionary that is filled from the start.
func (s *stream) short(v uint8) {
	c := s.next()
	c.mark(s.rows, true)
	c.values = append(c.values, v)
}

// endRow ends a row, of which all columns must have been set, and writes a batch now and then.
func (s *stream) endRow() error {
	if s.err == nil && s.at != len(s.columns) {
		s.fail(fmt.Errorf("a row sets %d of %d columns", s.at, len(s.columns)))
	}
	if s.err != nil {
		return s.err
	}
	s.at = 0
	if s.rows++; s.rows >= batchRows {
		return s.flush()
	}
	return nil
}

// fail keeps a mistake in how rows are made: no batch is written from now on.
func (s *stream) fail(err error) {
	if s.err == nil {
		s.err = fmt.Errorf("write table %s: %w", s.name, err)
	}
	s.at = len(s.columns)
}

// flush writes the rows that are held.
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
		return fmt.Errorf("write %s: %w", s.file.Name(), err)
	}
	for _, d := range s.dicts {
		if d != nil && len(d.values) > dictionaryLimit && !d.kept {
			d.clear()
		}
	}
	return nil
}

// end writes what is held and ends the segment.
func (s *stream) end() error {
	err := s.flush()
	if e := errors.Join(s.w.Close(), s.writeOut()); err == nil && e != nil {
		err = fmt.Errorf("end %s: %w", s.file.Name(), e)
	}
	if e := s.file.Close(); err == nil && e != nil {
		err = fmt.Errorf("close %s: %w", s.file.Name(), e)
	}
	return err
}

func (s *stream) release() {
	for _, d := range s.dicts {
		if d != nil {
			d.clear()
		}
	}
}

// dictionary holds the distinct strings of a column in the order in which they came. A batch that meets a new one replaces the
// stream's dictionary; an array that has not changed is not written again.
type dictionary struct {
	values []string
	known  map[string]int32
	built  arrow.Array // of values; nil if it is to be made
	kept   bool        // others hold its indices: it is not forgotten
}

func newDictionary() *dictionary { return &dictionary{known: map[string]int32{}} }

func (d *dictionary) index(v string) int32 {
	i, ok := d.known[v]
	if !ok {
		i = int32(len(d.values))
		d.known[v] = i
		d.values = append(d.values, v)
		d.drop()
	}
	return i
}

func (d *dictionary) array() arrow.Array {
	if d.built == nil {
		d.built = stringArray(d.values)
	}
	return d.built
}

func (d *dictionary) drop() {
	if d.built != nil {
		d.built.Release()
		d.built = nil
	}
}

func (d *dictionary) clear() {
	d.drop()
	clear(d.known)
	d.values = d.values[:0]
}

func stringArray(values []string) arrow.Array {
	b := array.NewStringBuilder(memory.DefaultAllocator)
	defer b.Release()
	b.AppendValues(values, nil)
	return b.NewArray()
}
