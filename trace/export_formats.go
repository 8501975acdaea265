package trace

// This file writes tables as Parquet, Arrow or CSV, for other programs (pandas, polars, DuckDB).
// Callers pass plain slices, so that Arrow stays inside this package.

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"
	"slices"
	"strconv"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/csv"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/compress"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"

	"tensorcast/gguf"
	"tensorcast/trace/tables"
)

// WriteParquet writes a table as one Parquet file, compressed with Zstandard. The fields become the
// file's key-value metadata, which pandas and DuckDB show. It does not close w.
func WriteParquet(w io.Writer, columns []tables.Column, fields ...tables.Field) error {
	codec := compress.Codecs.Zstd
	if len(columns) > 0 && reflect.ValueOf(columns[0].Values).Len() < fewRows {
		codec = compress.Codecs.Snappy
	}
	return writeParquet(w, codec, func(yield func([]tables.Column, error) bool) { yield(columns, nil) }, fields)
}

// fewRows is the size below which a table is not worth a zstd encoder, which takes megabytes.
const fewRows = 1 << 14

// WriteParquetBatches is WriteParquet for a table that comes some rows at a time, each time with the
// same columns. Each batch becomes a row group. An error among the batches ends it.
func WriteParquetBatches(w io.Writer, batches iter.Seq2[[]tables.Column, error], fields ...tables.Field) error {
	return writeParquet(w, compress.Codecs.Zstd, batches, fields)
}

func writeParquet(
	w io.Writer, codec compress.Compression, batches iter.Seq2[[]tables.Column, error],
	fields []tables.Field,
) error {
	dst := newLatched(w)
	err := writeRecords(dst, batches, fields, func(schema *arrow.Schema) (recordWriter, error) {
		// By default the schema's root is marked as repeated. Readers that take this literally fail
		// on every column.
		props := parquet.NewWriterProperties(parquet.WithRootRepetition(parquet.Repetitions.Required),
			parquet.WithCompression(codec), parquet.WithCreatedBy("tensorcast"))
		return pqarrow.NewFileWriter(schema, dst, props, pqarrow.DefaultWriterProps())
	})
	if err != nil {
		return fmt.Errorf("write Parquet: %w", err)
	}
	return nil
}

// WriteArrowBatches writes a table that comes some rows at a time, each time with the same columns,
// as one Arrow IPC file (Feather version 2). The fields become the schema's metadata. It does not
// close w.
func WriteArrowBatches(w io.Writer, batches iter.Seq2[[]tables.Column, error], fields ...tables.Field) error {
	dst := newLatched(w)
	err := writeRecords(dst, batches, fields, func(schema *arrow.Schema) (recordWriter, error) {
		return ipc.NewFileWriter(&positionWriter{w: dst}, ipc.WithSchema(schema))
	})
	if err != nil {
		return fmt.Errorf("write Arrow: %w", err)
	}
	return nil
}

type recordWriter interface {
	Write(arrow.Record) error
	Close() error
}

// latched buffers the many small pieces that Arrow writes. Arrow's Parquet writer panics after an error,
// so latched keeps the first error of w to itself until end. Nothing is written after an error. It has no
// Close method, because Arrow's writers close destinations that have one, and closing is the caller's
// task.
type latched struct {
	w   *bufio.Writer
	err error
}

func newLatched(w io.Writer) *latched { return &latched{w: bufio.NewWriterSize(w, 64<<10)} }

func (l *latched) Write(b []byte) (int, error) {
	if l.err == nil {
		_, l.err = l.w.Write(b)
	}
	return len(b), nil
}

// end writes what is buffered, and returns the first error.
func (l *latched) end() error {
	if l.err == nil {
		l.err = l.w.Flush()
	}
	return l.err
}

// writeRecords opens a writer to dst when the first batch tells the schema, and passes all batches to it.
func writeRecords(
	dst *latched, batches iter.Seq2[[]tables.Column, error], fields []tables.Field,
	open func(*arrow.Schema) (recordWriter, error),
) error {
	var out recordWriter
	writeOne := func(columns []tables.Column) error {
		rec, err := buildRecord(columns, fields)
		if err != nil {
			return err
		}
		defer rec.Release()
		if out == nil {
			if out, err = open(rec.Schema()); err != nil {
				return err
			}
		}
		err = out.Write(rec)
		return cmp.Or(dst.err, err)
	}
	for columns, err := range batches {
		if err == nil {
			err = writeOne(columns)
		}
		if err != nil {
			if out != nil {
				_ = out.Close() // frees its memory; the file is not whole anyway
			}
			return err
		}
	}
	if out == nil {
		return errors.New("a table needs a column")
	}
	err := out.Close()
	return cmp.Or(dst.end(), err)
}

// positionWriter counts the bytes written. Arrow's file writer seeks only to learn its position, so this
// suffices to write a file to a pipe.
type positionWriter struct {
	w   io.Writer
	pos int64
}

func (p *positionWriter) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	p.pos += int64(n)
	return n, err
}

func (p *positionWriter) Seek(offset int64, whence int) (int64, error) {
	if offset != 0 || whence != io.SeekCurrent {
		return 0, errors.New("a stream cannot seek")
	}
	return p.pos, nil
}

// WriteCSV writes a table as CSV (RFC 4180, but lines end in a line feed; with a header). Numbers read
// back as the same value. Text that a spreadsheet would take for a formula gets a leading apostrophe. A
// list is one text, with a space between its values. It does not close w.
func WriteCSV(w io.Writer, columns []tables.Column) error {
	return WriteCSVBatches(w, func(yield func([]tables.Column, error) bool) { yield(columns, nil) })
}

// WriteCSVBatches is WriteCSV for a table that comes some rows at a time, each time with the same
// columns.
func WriteCSVBatches(w io.Writer, batches iter.Seq2[[]tables.Column, error]) error {
	texts := func(yield func([]tables.Column, error) bool) {
		for columns, err := range batches {
			if !yield(toCells(columns), err) {
				return
			}
		}
	}
	dst := newLatched(w)
	err := writeRecords(dst, texts, nil, func(schema *arrow.Schema) (recordWriter, error) {
		return csvRecordWriter{csv.NewWriter(dst, schema, csv.WithHeader(true))}, nil
	})
	if err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}

// csvRecordWriter is a csv.Writer that is closed like other writers.
type csvRecordWriter struct{ *csv.Writer }

func (l csvRecordWriter) Close() error { return l.Flush() }

// toCells converts columns of text and lists to what the cells of a spreadsheet hold. It leaves numbers.
func toCells(columns []tables.Column) []tables.Column {
	columns = slices.Clone(columns)
	for i, c := range columns {
		var text []string
		switch v := c.Values.(type) {
		case []string:
			for _, s := range v {
				text = append(text, gguf.SpreadsheetCell(s))
			}
		case []*string:
			for _, s := range v {
				if s == nil {
					text = append(text, "")
				} else {
					text = append(text, gguf.SpreadsheetCell(*s))
				}
			}
		case [][]int32:
			text = listCells(v)
		case [][]int64:
			text = listCells(v)
		case [][]float32:
			var b []byte
			for _, row := range v {
				b = b[:0]
				for j, x := range row {
					if j > 0 {
						b = append(b, ' ')
					}
					b = strconv.AppendFloat(b, float64(x), 'g', -1, 32)
				}
				text = append(text, string(b))
			}
		default:
			continue
		}
		columns[i].Values = text
	}
	return columns
}

// listCells formats each list as one text.
func listCells[N int32 | int64](rows [][]N) []string {
	text := make([]string, len(rows))
	for i, row := range rows {
		var b []byte
		for j, n := range row {
			if j > 0 {
				b = append(b, ' ')
			}
			b = strconv.AppendInt(b, int64(n), 10)
		}
		text[i] = string(b)
	}
	return text
}

// buildRecord builds an Arrow record. The caller releases it.
func buildRecord(columns []tables.Column, fields []tables.Field) (arrow.Record, error) {
	if len(columns) == 0 {
		return nil, errors.New("a table needs a column")
	}
	var (
		schema = make([]arrow.Field, len(columns))
		arrays = make([]arrow.Array, 0, len(columns))
	)
	defer func() {
		for _, a := range arrays {
			a.Release()
		}
	}()
	for i, c := range columns {
		a, err := buildArray(c)
		if err != nil {
			return nil, err
		}
		arrays = append(arrays, a)
		nullable := false
		switch c.Values.(type) {
		case []*int64, []*string, [][]int32:
			nullable = true
		}
		schema[i] = arrow.Field{Name: c.Name, Type: a.DataType(), Nullable: nullable}
		if a.Len() != arrays[0].Len() {
			return nil, fmt.Errorf("column %s has %d rows, column %s has %d", c.Name, a.Len(), columns[0].Name,
				arrays[0].Len())
		}
	}
	var keys, values []string
	for _, f := range fields {
		keys, values = append(keys, f.Key), append(values, f.Value)
	}
	meta := arrow.NewMetadata(keys, values)
	return array.NewRecord(arrow.NewSchema(schema, &meta), arrays, int64(arrays[0].Len())), nil
}

func buildArray(c tables.Column) (arrow.Array, error) {
	mem := memory.DefaultAllocator
	switch v := c.Values.(type) {
	case []int32:
		b := array.NewInt32Builder(mem)
		defer b.Release()
		b.AppendValues(v, nil)
		return b.NewArray(), nil
	case []int64:
		b := array.NewInt64Builder(mem)
		defer b.Release()
		b.AppendValues(v, nil)
		return b.NewArray(), nil
	case []*int64:
		b := array.NewInt64Builder(mem)
		defer b.Release()
		for _, n := range v {
			if n == nil {
				b.AppendNull()
			} else {
				b.Append(*n)
			}
		}
		return b.NewArray(), nil
	case []*string:
		b := array.NewStringBuilder(mem)
		defer b.Release()
		for _, s := range v {
			if s == nil {
				b.AppendNull()
			} else {
				b.Append(*s)
			}
		}
		return b.NewArray(), nil
	case []uint64:
		b := array.NewUint64Builder(mem)
		defer b.Release()
		b.AppendValues(v, nil)
		return b.NewArray(), nil
	case []bool:
		b := array.NewBooleanBuilder(mem)
		defer b.Release()
		b.AppendValues(v, nil)
		return b.NewArray(), nil
	case [][]int32:
		b := array.NewListBuilder(mem, arrow.PrimitiveTypes.Int32)
		defer b.Release()
		for _, row := range v {
			if b.Append(row != nil); row != nil {
				b.ValueBuilder().(*array.Int32Builder).AppendValues(row, nil)
			}
		}
		return b.NewArray(), nil
	case [][]int64:
		b := array.NewListBuilder(mem, arrow.PrimitiveTypes.Int64)
		defer b.Release()
		for _, row := range v {
			b.Append(true)
			b.ValueBuilder().(*array.Int64Builder).AppendValues(row, nil)
		}
		return b.NewArray(), nil
	case []float64:
		b := array.NewFloat64Builder(mem)
		defer b.Release()
		b.AppendValues(v, nil)
		return b.NewArray(), nil
	case []string:
		return stringArray(v), nil
	case [][]float32:
		size := 1
		if len(v) > 0 {
			size = len(v[0])
		}
		// Parquet has no lists of a fixed size
		b := array.NewListBuilderWithField(mem, arrow.Field{Name: "item", Type: arrow.PrimitiveTypes.Float32})
		defer b.Release()
		for i, row := range v {
			if len(row) != size || size == 0 {
				return nil, fmt.Errorf("column %s has %d values in row %d, %d in the first", c.Name, len(row), i, size)
			}
			b.Append(true)
			b.ValueBuilder().(*array.Float32Builder).AppendValues(row, nil)
		}
		return b.NewArray(), nil
	}
	return nil, fmt.Errorf("column %s holds %T, which is not exported", c.Name, c.Values)
}
