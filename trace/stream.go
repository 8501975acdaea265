package trace

// This file owns one table as an Arrow IPC stream: rows are collected, batches written, segments follow one another.

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

const (
	// batchRows is the number of rows that are held in memory before a batch is written.
	batchRows = 32768
	// dictionaryLimit bounds a dictionary: beyond it, a batch's is forgotten, and the next batch's replaces it.
	dictionaryLimit = 1 << 16
)

// stream writes one table. A row is appended column by column, in the schema's order, and ended.
type stream struct {
	dir, name string
	schema    *arrow.Schema
	columns   []array.Builder // indices, where the column has a dictionary
	dicts     []*dictionary   // nil where it has none
	at        int             // the column that comes next
	rows      int             // that are not written yet

	file *os.File
	w    *ipc.Writer
	size int64 // bytes of this segment
}

func createStream(dir, table string, segment int, fingerprint string) (*stream, error) {
	fields := columnsOf[table]
	s := &stream{dir: dir, name: table, schema: arrow.NewSchema(fields, tableMetadata(fingerprint)), dicts: make([]*dictionary, len(fields))}
	for i, f := range fields {
		typ := f.Type
		if d, ok := typ.(*arrow.DictionaryType); ok {
			typ, s.dicts[i] = d.IndexType, newDictionary()
		}
		s.columns = append(s.columns, array.NewBuilder(memory.DefaultAllocator, typ))
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
	s.w = ipc.NewWriter(counting{s}, ipc.WithSchema(s.schema), ipc.WithZstd())
	return s.writeBatch()
}

// counting writes to the segment's file.
type counting struct{ s *stream }

func (c counting) Write(b []byte) (int, error) {
	n, err := c.s.file.Write(b)
	c.s.size += int64(n)
	return n, err
}

// dictionary returns the dictionary of a column.
func (s *stream) dictionary(column string) *dictionary {
	return s.dicts[s.schema.FieldIndices(column)[0]]
}

func (s *stream) next() array.Builder {
	b := s.columns[s.at]
	s.at++
	return b
}

func (s *stream) int32(v int32)   { s.next().(*array.Int32Builder).Append(v) }
func (s *stream) int64(v int64)   { s.next().(*array.Int64Builder).Append(v) }
func (s *stream) uint64(v uint64) { s.next().(*array.Uint64Builder).Append(v) }
func (s *stream) bool(v bool)     { s.next().(*array.BooleanBuilder).Append(v) }
func (s *stream) null()           { s.next().AppendNull() }

// observed is a time or null.
func (s *stream) observed(v int64) {
	if v == NotObserved {
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
	b := s.next().(*array.ListBuilder)
	b.Append(true)
	b.ValueBuilder().(*array.Int32Builder).AppendValues(values, nil)
}

// text looks v up in the column's dictionary.
func (s *stream) text(v string) { s.int32(s.dicts[s.at].index(v)) }

// textOrNull is null if v is empty.
func (s *stream) textOrNull(v string) {
	if v == "" {
		s.null()
		return
	}
	s.text(v)
}

// short is a value of a small dictionary that is filled from the start.
func (s *stream) short(v uint8) { s.next().(*array.Int8Builder).Append(int8(v)) }

func (s *stream) endRow() error {
	s.at = 0
	if s.rows++; s.rows >= batchRows {
		return s.flush()
	}
	return nil
}

// flush writes the rows that are held.
func (s *stream) flush() error {
	if s.rows == 0 {
		return nil
	}
	return s.writeBatch()
}

func (s *stream) writeBatch() error {
	arrays := make([]arrow.Array, len(s.columns))
	for i, b := range s.columns {
		arrays[i] = b.NewArray()
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
	defer rec.Release()
	s.rows = 0
	if err := s.w.Write(rec); err != nil {
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
	if e := s.w.Close(); err == nil && e != nil {
		err = fmt.Errorf("end %s: %w", s.file.Name(), e)
	}
	if e := s.file.Close(); err == nil && e != nil {
		err = fmt.Errorf("close %s: %w", s.file.Name(), e)
	}
	return err
}

func (s *stream) release() {
	for _, b := range s.columns {
		b.Release()
	}
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
