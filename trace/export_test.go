package trace

// These tests read exported files back: Parquet, Arrow and CSV.

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"io"
	"iter"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"

	"tensorcast/event"
	"tensorcast/trace/tables"
)

func exportColumns() []tables.Column {
	return []tables.Column{
		{Name: "seq", Values: []int32{0, 1, 2}},
		{Name: "tensor_name", Values: []string{"token_embd.weight", "a,\"b\"", "ünï"}},
		{Name: "offset_bytes", Values: []int64{0, 1 << 40, math.MaxInt64}},
		{Name: "relative_time", Values: []float64{0, 0.1, 1.0 / 3}},
	}
}

func batches(all ...[]tables.Column) iter.Seq2[[]tables.Column, error] {
	return func(yield func([]tables.Column, error) bool) {
		for _, b := range all {
			if !yield(b, nil) {
				return
			}
		}
	}
}

func TestWriteParquetReadsBack(t *testing.T) {
	var buf bytes.Buffer
	if err := WriteParquet(&buf, exportColumns(), tables.Field{Key: "tensorcast.model", Value: "abc"}); err != nil {
		t.Fatal(err)
	}
	pf, err := file.NewParquetReader(bytes.NewReader(buf.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	defer pf.Close()
	if got := pf.MetaData().KeyValueMetadata().FindValue("tensorcast.model"); got == nil || *got != "abc" {
		t.Errorf("metadata tensorcast.model = %v, want abc", got)
	}
	if got := pf.MetaData().Schema.Root().RepetitionType(); got != parquet.Repetitions.Required {
		t.Errorf("the schema's root is %v: some readers then fail on every column; want %v", got,
			parquet.Repetitions.Required)
	}
	r, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	tbl, err := r.ReadTable(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer tbl.Release()
	for i, want := range exportColumns() {
		if got := tbl.Schema().Field(i).Name; got != want.Name {
			t.Errorf("column %d is %s, want %s", i, got, want.Name)
		}
		var got any
		switch a := tbl.Column(i).Data().Chunk(0).(type) {
		case *array.Int32:
			got = a.Int32Values()
		case *array.Int64:
			got = a.Int64Values()
		case *array.Float64:
			got = a.Float64Values()
		case *array.String:
			var s []string
			for j := range a.Len() {
				s = append(s, a.Value(j))
			}
			got = s
		}
		if !reflect.DeepEqual(got, want.Values) {
			t.Errorf("column %s reads back as %v, want %v", want.Name, got, want.Values)
		}
	}
}

func TestWriteArrowReadsBack(t *testing.T) {
	var buf bytes.Buffer
	if err := WriteArrowBatches(&buf, batches(exportColumns(), exportColumns()),
		tables.Field{Key: "tensorcast.model", Value: "abc"}); err != nil {
		t.Fatal(err)
	}
	r, err := ipc.NewFileReader(bytes.NewReader(buf.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	meta := r.Schema().Metadata()
	if got, ok := meta.GetValue("tensorcast.model"); !ok || got != "abc" {
		t.Errorf("metadata tensorcast.model = %q, want abc", got)
	}
	rec, err := r.Record(1)
	if err != nil || r.NumRecords() != 2 {
		t.Fatalf("%d records: %v; want 2", r.NumRecords(), err)
	}
	want, err := buildRecord(exportColumns(), []tables.Field{{Key: "tensorcast.model", Value: "abc"}})
	if err != nil {
		t.Fatal(err)
	}
	defer want.Release()
	if !array.RecordEqual(rec, want) || !rec.Schema().Equal(want.Schema()) {
		t.Errorf("got %v, want %v", rec, want)
	}
}

func TestWriteCSVReadsBack(t *testing.T) {
	var buf bytes.Buffer
	if err := WriteCSV(&buf, exportColumns()); err != nil {
		t.Fatal(err)
	}
	got, err := csv.NewReader(&buf).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		{"seq", "tensor_name", "offset_bytes", "relative_time"},
		{"0", "token_embd.weight", "0", "0"},
		{"1", "a,\"b\"", "1099511627776", "0.1"},
		{"2", "ünï", "9223372036854775807", "0.3333333333333333"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("CSV reads back as\n%v\nwant\n%v", got, want)
	}
}

func TestExportRefusesBadTables(t *testing.T) {
	for _, tc := range []struct {
		name    string
		columns []tables.Column
		want    string
	}{
		{"no columns", nil, "needs a column"},
		{"ragged", []tables.Column{{Name: "a", Values: []int32{1}}, {Name: "b", Values: []int32{1, 2}}},
			"column b has 2 rows, column a has 1"},
		{"other type", []tables.Column{{Name: "a", Values: []int16{1}}}, "column a holds []int16"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, err := range []error{WriteParquet(io.Discard, tc.columns), WriteCSV(io.Discard, tc.columns)} {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("error %v, want one with %q", err, tc.want)
				}
			}
		})
	}
}

func TestExportOfNoRows(t *testing.T) {
	var buf bytes.Buffer
	if err := WriteCSV(&buf, []tables.Column{{Name: "a", Values: []int32{}}}); err != nil || buf.String() != "a\n" {
		t.Errorf("CSV %q, %v: want the header alone", buf.String(), err)
	}
	if err := WriteParquet(io.Discard, []tables.Column{{Name: "a", Values: []string{}}}); err != nil {
		t.Errorf("Parquet of no rows: %v", err)
	}
}

func TestCSVIsSafeForSpreadsheets(t *testing.T) {
	var out strings.Builder
	if err := WriteCSV(&out, []tables.Column{
		{Name: "tensor_name", Values: []string{"=1+2", "blk.0.x"}},
		{Name: "layer", Values: []int64{-1, 0}},
	}); err != nil {
		t.Fatal(err)
	}
	if want := "tensor_name,layer\n'=1+2,-1\nblk.0.x,0\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// A table that is written in parts reads back whole. Unknown numbers are null.
func TestBatches(t *testing.T) {
	var want []string
	part := func(first int) []tables.Column {
		n := int64(first)
		want = append(want, strconv.Itoa(first), array.NullValueStr)
		return []tables.Column{{Name: "n", Values: []*int64{&n, nil}}}
	}
	parts := batches(part(1), part(2), part(3))
	var buf bytes.Buffer
	if err := WriteParquetBatches(&buf, parts); err != nil {
		t.Fatal(err)
	}
	pf, err := file.NewParquetReader(bytes.NewReader(buf.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	defer pf.Close()
	r, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	table, err := r.ReadTable(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer table.Release()
	var got []string
	for _, chunk := range table.Column(0).Data().Chunks() {
		for i := range chunk.Len() {
			got = append(got, chunk.ValueStr(i))
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	bad := func(yield func([]tables.Column, error) bool) { _ = yield(part(1), nil) && yield(nil, io.ErrNoProgress) }
	for _, err := range []error{WriteParquetBatches(io.Discard, bad), WriteArrowBatches(io.Discard, bad)} {
		if !errors.Is(err, io.ErrNoProgress) {
			t.Errorf("error %v; want %v", err, io.ErrNoProgress)
		}
	}
}

// failing accepts so many bytes and then fails.
type failing struct{ room int }

var errFull = errors.New("full")

func (f *failing) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, errFull
	}
	return len(b), nil
}

// Wherever the destination fails, the export returns its error. Arrow's Parquet writer alone would
// panic.
func TestExportToWhatFails(t *testing.T) {
	columns := exportColumns()
	for name, write := range map[string]func(io.Writer) error{
		"Parquet": func(w io.Writer) error { return WriteParquet(w, columns) },
		"Arrow":   func(w io.Writer) error { return WriteArrowBatches(w, batches(columns)) },
		"CSV":     func(w io.Writer) error { return WriteCSV(w, columns) },
	} {
		var whole bytes.Buffer
		check(t, write(&whole))
		for room := 0; room < whole.Len(); room += 29 {
			if err := write(&failing{room}); !errors.Is(err, errFull) {
				t.Errorf("%s, after %d of %d bytes: %v; want %v", name, room, whole.Len(), err, errFull)
			}
		}
		check(t, write(&failing{whole.Len()}))
	}
}

// The hidden table is exported in pieces. Parquet readers get lists. CSV has one text per row,
// whose numbers read back as the same values.
func TestHiddenExports(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, &tables.Meta{}, testStructure)
	check(t, err)
	const n, rows = 4096, exportBytes/4/4096 + 3 // two pieces
	row := tables.HiddenRow{Step: 2, Token: 1, Layer: 5, Point: event.PointAttention, Values: make([]float32, n)}
	row.Values[1], row.Values[2], row.Values[n-1] = -0.333251953125, 65504, 0x1p-24
	for i := range rows {
		row.Position, row.Values[0] = int32(i), float32(i)
		check(t, w.Hidden(&row))
	}
	check(t, w.Close(&tables.Meta{}, true))
	c := open(t, dir)

	var buf bytes.Buffer
	check(t, WriteParquetBatches(&buf, c.HiddenColumns(t.Context()), tables.Field{Key: "k", Value: "v"}))
	pf, err := file.NewParquetReader(bytes.NewReader(buf.Bytes()))
	check(t, err)
	defer pf.Close()
	if pf.NumRowGroups() != 2 || pf.NumRows() != rows {
		t.Errorf("%d rows in %d groups, want %d in 2", pf.NumRows(), pf.NumRowGroups(), rows)
	}
	r, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	check(t, err)
	tbl, err := r.ReadTable(t.Context())
	check(t, err)
	defer tbl.Release()
	i := 0
	for _, chunk := range tbl.Column(5).Data().Chunks() {
		lists := chunk.(array.ListLike)
		values := lists.ListValues().(*array.Float32)
		for j := range lists.Len() {
			from, to := lists.ValueOffsets(j)
			row.Values[0] = float32(i)
			if got := values.Float32Values()[from:to]; !slices.Equal(got, row.Values) {
				t.Fatalf("row %d reads back as %v..., %d values; want %v", i, got[:min(3, len(got))], len(got),
					row.Values)
			}
			i++
		}
	}
	if i != rows {
		t.Errorf("%d lists, want %d", i, rows)
	}

	buf.Reset()
	check(t, WriteCSVBatches(&buf, c.HiddenColumns(t.Context())))
	lines, err := csv.NewReader(&buf).ReadAll()
	check(t, err)
	if len(lines) != 1+rows || !slices.Equal(lines[0],
		[]string{"step", "token", "layer", "point", "position", "values"}) {
		t.Fatalf("%d lines, the first %q; want %d and the column names", len(lines), lines[0], 1+rows)
	}
	for i, line := range lines[1:] {
		if !slices.Equal(line[:5], []string{"2", "1", "5", "attention", strconv.Itoa(i)}) {
			t.Fatalf("line %d begins with %q; want %v", i, line[:5],
				[]string{"2", "1", "5", "attention", strconv.Itoa(i)})
		}
		row.Values[0] = float32(i)
		for j, text := range strings.Split(line[5], " ") {
			if v, err := strconv.ParseFloat(text, 32); err != nil || float32(v) != row.Values[j] {
				t.Fatalf("line %d, value %d is %q, want %g", i, j, text, row.Values[j])
			}
		}
	}

	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := WriteCSVBatches(io.Discard, c.HiddenColumns(done)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was cancelled", err)
	}
	none := t.TempDir()
	writeCapture(t, none, testRows(1), nil)
	if err := WriteParquetBatches(io.Discard, open(t, none).HiddenColumns(t.Context())); !errors.Is(err, ErrNoHidden) {
		t.Errorf("%v, want %v", err, ErrNoHidden)
	}
	if err := WriteCSV(io.Discard, []tables.Column{{Name: "x", Values: [][]float32{{1}, {1, 2}}}}); err != nil {
		t.Error(err) // a text may have any length
	}
	if err := WriteParquet(io.Discard, []tables.Column{{Name: "x", Values: [][]float32{{1}, {1, 2}}}}); err == nil {
		t.Error("lists of two sizes are exported")
	}
}

// Nulls and lists become cells, too.
func TestCSVOfNullsAndLists(t *testing.T) {
	a, n := "=a", int64(7)
	var text strings.Builder
	err := WriteCSV(&text, []tables.Column{
		{Name: "name", Values: []*string{&a, nil}}, {Name: "n", Values: []*int64{nil, &n}},
		{Name: "experts", Values: [][]int32{{3, -1}, nil}}, {Name: "shape", Values: [][]int64{{1 << 40}, {}}},
		{Name: "address", Values: []uint64{math.MaxUint64, 0}}, {Name: "write", Values: []bool{true, false}},
	})
	if want := "name,n,experts,shape,address,write\n'=a,NULL,3 " +
		"-1,1099511627776,18446744073709551615,true\n,7,,,0,false\n"; err != nil || text.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, text.String(), want)
	}
}
