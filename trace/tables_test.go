package trace

// These tests write and read all tables of a capture, in one and in several segments.

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tensorcast/event"
	"tensorcast/trace/tables"
)

// collect copies the rows of a table.
func collect[R any](t *testing.T, rows iter.Seq2[*R, error], clone func(*R)) []R {
	t.Helper()
	var all []R
	for r, err := range rows {
		if err != nil {
			t.Fatal(err)
		}
		row := *r
		if clone != nil {
			clone(&row)
		}
		all = append(all, row)
	}
	return all
}

func cloneStep(s *tables.StepRow) {
	s.TokenIDs, s.Sequences = slices.Clone(s.TokenIDs), slices.Clone(s.Sequences)
}

func stepsOf(t *testing.T, c *Capture) []tables.StepRow {
	t.Helper()
	return collect(t, c.Steps(), cloneStep)
}

func pageInsOf(t *testing.T, c *Capture) []tables.PageInRow {
	t.Helper()
	return collect(t, c.PageIns(), nil)
}

func buffersOf(t *testing.T, c *Capture) []tables.BufferRow {
	t.Helper()
	return collect(t, c.Buffers(), nil)
}

func hiddenOf(t *testing.T, c *Capture) []tables.HiddenRow {
	t.Helper()
	return collect(t, c.Hidden(), func(r *tables.HiddenRow) { r.Values = slices.Clone(r.Values) })
}

func open(t *testing.T, dir string) *Capture {
	t.Helper()
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var (
	testSteps = []tables.StepRow{
		{Step: 0, PID: 5, Thread: 7, Context: 1, Phase: tables.PhasePrompt, Tokens: 3, Token: -1,
			TokenIDs: []int32{4, 4, 6}, Sequences: []int32{0}, Begin: 10, End: 20},
		{Step: 1, PID: 5, Thread: 8, Context: 0, Phase: tables.PhaseGeneration, Tokens: 1, Token: 12, Begin: 30,
			End: tables.NotObserved, Derived: true},
		{Step: 2, PID: 5, Thread: 8, Phase: tables.PhaseWarmup, TokenIDs: []int32{}, Sequences: []int32{}, Begin: -4,
			End: 0},
	}
	testPageIns = []tables.PageInRow{
		{Timestamp: 3, Step: -1, File: "m.gguf", Offset: 0, Bytes: 4096, Tensor: -1, Expert: -1, PID: 5, Thread: 6,
			Cause: event.CauseReadahead},
		{Timestamp: 4, Step: 2, File: "m.gguf", Offset: 8192, Bytes: 1000, Tensor: 1, Expert: 0, PID: 5, Thread: 6,
			Cause: event.CauseFault, Rereads: 65535, Op: "MUL_MAT_ID"},
		{Timestamp: 5, Step: 2, File: "n.gguf", Offset: 9192, Bytes: 1000, Tensor: 0, Expert: -1, PID: 9, Thread: 9,
			Cause: event.CauseOther, Rereads: 1, Op: "GET_ROWS"},
		{Timestamp: 6, Step: 2, File: "n.gguf", Offset: 9192, Bytes: 1000, Tensor: 0, Expert: -1, PID: 9, Thread: 9,
			Cause: event.CauseRead, Rereads: 2},
	}
	testBuffers = []tables.BufferRow{
		{Timestamp: 1, Step: 0, Op: "SET_ROWS", Seq: 1 << 40, Buffer: "cache_k_l0 (view)", Root: "cache_k_l0",
			Kind: tables.BufferKV, Write: true, DataPtr: 1 << 63, Bytes: 512},
		{Timestamp: 2, Step: 0, Op: "MUL_MAT", Seq: 1<<40 + 1, Buffer: "inp_tokens", Kind: tables.BufferInput,
			DataPtr: 16, Bytes: 4},
		{Timestamp: 2, Step: 0, Op: "MUL_MAT", Seq: 1<<40 + 1, Buffer: "Qcur-0", Kind: tables.BufferActivation,
			DataPtr: 16, Bytes: 4},
	}
	testHidden = []tables.HiddenRow{ // of halves
		{Step: 0, Token: -1, Layer: 1, Point: event.PointAttention, Position: 0,
			Values: []float32{0, -1, 0.5, 65504, 0x1p-24}},
		{Step: 0, Token: -1, Layer: 1, Point: event.PointRouter, Position: 2,
			Values: []float32{1.5, 2, 3, 4, float32(math.Inf(-1))}},
		{Step: 1, Token: 12, Layer: 3, Point: event.PointRouter, Values: []float32{-0.25, 0, 0, 0, 1}},
	}
)

// plant appends test rows to every table.
func plant(t *testing.T, w *Writer, rows []tables.Access) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range rows {
		check(w.Access(&rows[i]))
	}
	check(w.Route(&tables.Route{Step: 1, Expert: 3}))
	for i := range testSteps {
		check(w.Step(&testSteps[i]))
	}
	for i := range testPageIns {
		check(w.PageIn(&testPageIns[i]))
	}
	for i := range testBuffers {
		check(w.Buffer(&testBuffers[i]))
	}
	for i := range testHidden {
		check(w.Hidden(&testHidden[i]))
	}
}

func repeat[R any](rows []R, times int) []R {
	var all []R
	for range times {
		all = append(all, rows...)
	}
	return all
}

func TestTablesRoundTripOverSegments(t *testing.T) {
	for _, segments := range []int{1, 2, 12} {
		t.Run(fmt.Sprint(segments), func(t *testing.T) {
			dir := t.TempDir()
			meta := &tables.Meta{}
			w, err := Create(dir, meta, testStructure)
			if err != nil {
				t.Fatal(err)
			}
			rows := testRows(7)
			rows[0].Stall, rows[1].Stall, rows[1].Duration, rows[2].Context = tables.NotObserved, 77,
				tables.NotObserved, 3
			for i := range segments {
				if i > 0 {
					if err := w.Rotate(meta, 0); err != nil {
						t.Fatal(err)
					}
				}
				plant(t, w, rows)
			}
			if err := w.Close(meta, true); err != nil {
				t.Fatal(err)
			}
			c := open(t, dir)
			got, err := readRows(c)
			if err != nil || !reflect.DeepEqual(got, repeat(rows, segments)) {
				t.Errorf("accesses %+v, %v; want %v", got, err, repeat(rows, segments))
			}
			if got := stepsOf(t, c); !reflect.DeepEqual(got, repeat(testSteps, segments)) {
				t.Errorf("steps %+v; want %v", got, repeat(testSteps, segments))
			}
			if got := pageInsOf(t, c); !reflect.DeepEqual(got, repeat(testPageIns, segments)) {
				t.Errorf("page-ins %+v; want %v", got, repeat(testPageIns, segments))
			}
			if got := buffersOf(t, c); !reflect.DeepEqual(got, repeat(testBuffers, segments)) {
				t.Errorf("buffers %+v; want %v", got, repeat(testBuffers, segments))
			}
			if got := hiddenOf(t, c); !reflect.DeepEqual(got, repeat(testHidden, segments)) {
				t.Errorf("hidden %+v; want %v", got, repeat(testHidden, segments))
			}
			if c.Meta.Segments != (tables.Segments{Last: segments - 1}) || c.Meta.Rows != int64(7*segments) {
				t.Errorf("%+v, %d rows; want c.Meta.Segments = %v, c.Meta.Rows = %v", c.Meta.Segments, c.Meta.Rows,
					(tables.Segments{Last: segments - 1}), int64(7*segments))
			}
			// Each segment is whole and readable alone.
			for i := range segments {
				for _, table := range streamFiles {
					n := int64(0)
					for rec, err := range readRecords(filepath.Join(dir, segmentFile(table, i)), true) {
						if err != nil {
							t.Fatal(err)
						}
						n += rec.NumRows()
					}
					if n == 0 {
						t.Errorf("segment %d of %s has no rows", i, table)
					}
				}
			}
		})
	}
}

// A kill may cut any table of any segment anywhere. What is left is a prefix, in whole batches.
func TestCutAnyTable(t *testing.T) {
	dir := t.TempDir()
	meta := &tables.Meta{}
	w, err := Create(dir, meta, testStructure)
	if err != nil {
		t.Fatal(err)
	}
	plant(t, w, testRows(20))
	if err := w.Rotate(meta, 0); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		plant(t, w, testRows(20))
		if err := w.Flush(meta); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(meta, false); err != nil {
		t.Fatal(err)
	}
	c := open(t, dir)
	for table, count := range map[string]func() int{
		AccessFile: func() int { rows, err := readRows(c); check(t, err); return len(rows) },
		StepFile:   func() int { return len(stepsOf(t, c)) },
		PageInFile: func() int { return len(pageInsOf(t, c)) },
		BufferFile: func() int { return len(buffersOf(t, c)) },
		HiddenFile: func() int { return len(hiddenOf(t, c)) },
		RouteFile: func() (n int) {
			for _, err := range c.Routes() {
				check(t, err)
				n++
			}
			return n
		},
	} {
		path := filepath.Join(dir, segmentFile(table, 1))
		whole, err := os.ReadFile(path)
		check(t, err)
		batch := count() / 4 // there is one in the first segment, and three in the second
		seen := map[int]bool{}
		for cut := 0; cut <= len(whole); cut += max(1, len(whole)/300) {
			check(t, os.WriteFile(path, whole[:cut], 0o644))
			n := count()
			if n%batch != 0 || n < batch || n > 4*batch {
				t.Fatalf("%s cut at byte %d of %d: got %d rows, want one to four batches of %d", table, cut,
					len(whole), n, batch)
			}
			seen[n/batch] = true
		}
		if !seen[1] || !seen[2] || !seen[3] {
			t.Errorf("%s: the cuts saw %v batches, want 1, 2 and 3", table, seen)
		}
		check(t, os.WriteFile(path, whole, 0o644))
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRotateKeepsTheNewest(t *testing.T) {
	dir := t.TempDir()
	meta := &tables.Meta{}
	w, err := Create(dir, meta, testStructure)
	check(t, err)
	for i := range 6 {
		if i > 0 {
			check(t, w.Rotate(meta, 2))
		}
		rows := testRows(i + 1)
		plant(t, w, rows)
	}
	check(t, w.Flush(meta)) // and killed here
	c := open(t, dir)
	if want := (tables.Segments{
		First: 4, Last: 5, Deleted: 4, DeletedRows: 1 + 2 + 3 + 4,
	}); c.Meta.Segments != want || c.Meta.Rows != 21 {
		t.Errorf("%+v, %d rows; want %+v, 21", c.Meta.Segments, c.Meta.Rows, want)
	}
	got, err := readRows(c)
	if want := append(testRows(5), testRows(6)...); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%d rows, %v: want those of the last two segments", len(got), err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.arrows")); len(left) != 1+2*len(streamFiles) {
		t.Errorf("the directory holds %v; want %v", left, 1+2*len(streamFiles))
	}
	w.dir.Close()
	// Another capture replaces all of that.
	writeCapture(t, dir, testRows(1), nil)
	if got, err := readRows(open(t, dir)); err != nil || len(got) != 1 {
		t.Errorf("%d rows, %v after another capture; want 1", len(got), err)
	}
}

// Rows of many values are written in batches that readers accept. The values are rounded to half
// precision. All rows have the same number of values.
func TestHiddenRowsAreWide(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, &tables.Meta{}, testStructure)
	check(t, err)
	const n = 8192
	row := tables.HiddenRow{Values: make([]float32, n)}
	rows := 3*batchBytes/(2*n) + 5 // four batches
	random := rand.New(rand.NewPCG(3, 1))
	for i := range row.Values {
		row.Values[i] = random.Float32() // does not compress
	}
	row.Values[0], row.Values[1], row.Values[2] = 1+0x1p-11, 1e6, -1e-9
	for i := range rows {
		row.Position = int32(i)
		check(t, w.Hidden(&row))
	}
	check(t, w.Close(&tables.Meta{}, true))
	c := open(t, dir)
	i := 0
	for r, err := range c.Hidden() {
		check(t, err)
		if r.Position != int32(i) || len(r.Values) != n || r.Values[0] != 1 || !math.IsInf(float64(r.Values[1]), 1) ||
			r.Values[2] != 0 || math.Abs(float64(r.Values[n-1]-row.Values[n-1])) > 0x1p-12 {
			t.Fatalf("row %d is at %d and has %d values, %v; want %d values, as written", i, r.Position,
				len(r.Values), r.Values[:3], n)
		}
		i++
	}
	if i != rows {
		t.Errorf("%d rows, want %d", i, rows)
	}

	w, err = Create(t.TempDir(), &tables.Meta{}, testStructure)
	check(t, err)
	check(t, w.Hidden(&row))
	row.Values = row.Values[:7]
	if err := w.Hidden(&row); err == nil || !strings.Contains(err.Error(), "has 7 values, the first had 8192") {
		t.Errorf("a shorter row: %v; want an error, text with \"has 7 values, the first had 8192\"", err)
	}
	w.dir.Close()
	for _, n := range []int{0, tables.MaxHidden + 1} {
		w, err := Create(t.TempDir(), &tables.Meta{}, testStructure)
		check(t, err)
		if err := w.Hidden(&tables.HiddenRow{Values: make([]float32, n)}); err == nil {
			t.Errorf("a row of %d values is accepted, want an error", n)
		}
		w.dir.Close()
	}
}

// A capture of which a row could not be written is not complete, for its caller and on disk.
func TestCaptureThatLacksARow(t *testing.T) {
	dir := t.TempDir()
	meta := &tables.Meta{}
	w, err := Create(dir, meta, testStructure)
	check(t, err)
	first := w.Hidden(&tables.HiddenRow{}) // of no values
	if first == nil {
		t.Fatal("the row is accepted, want an error")
	}
	if err := w.Close(meta, true); !errors.Is(err, first) {
		t.Errorf("Close: %v; want %v", err, first)
	}
	if c := open(t, dir); meta.Complete || c.Meta.Complete {
		t.Errorf("described as complete: %v, on disk: %v; want neither", meta.Complete, c.Meta.Complete)
	}
}

// Dictionaries grow and are dropped when they are too large. Rows keep their names.
func TestDictionariesGrow(t *testing.T) {
	dir := t.TempDir()
	meta := &tables.Meta{}
	w, err := Create(dir, meta, testStructure)
	check(t, err)
	n := dictionaryLimit + 3*batchRows
	for i := range n {
		check(t, w.Buffer(&tables.BufferRow{Buffer: fmt.Sprint("node_", i), Root: "r", Op: "ADD"}))
	}
	s, err := w.streamOf(BufferFile)
	check(t, err)
	if got := len(s.dictionaryOf("buffer").values); got > dictionaryLimit {
		t.Errorf("the dictionary has %d values, the limit is %d", got, dictionaryLimit)
	}
	// The structure grows after the tables were begun. The second model has a tensor of the same
	// name.
	second := []tables.StructureRow{
		{Name: "other.weight", Model: 1, Shape: []int64{1}},
		{Name: testStructure[0].Name, Model: 1, Shape: []int64{1}},
	}
	check(t, w.Access(&tables.Access{Tensor: 0, Op: "A", Offset: testStructure[0].Offset}))
	check(t, w.Flush(meta))
	check(t, w.Extend(meta, second))
	for _, row := range []int32{3, 0, 2} {
		check(t, w.Access(&tables.Access{Tensor: row, Op: fmt.Sprint("B", row), Offset: w.structure[row].Offset}))
		check(t, w.PageIn(&tables.PageInRow{Tensor: row, Model: w.structure[row].Model}))
	}
	check(t, w.Close(meta, true))

	c := open(t, dir)
	i := 0
	for r, err := range c.Buffers() {
		check(t, err)
		if want := fmt.Sprint("node_", i); r.Buffer != want {
			t.Fatalf("row %d is of %s, want %s", i, r.Buffer, want)
		}
		i++
	}
	if i != n {
		t.Errorf("%d rows, want %d", i, n)
	}
	var tensors, paged []int32
	rows, err := readRows(c)
	check(t, err)
	for _, a := range rows {
		tensors = append(tensors, a.Tensor)
	}
	for _, r := range pageInsOf(t, c) {
		paged = append(paged, r.Tensor)
	}
	if want := []int32{0, 3, 0, 2}; !slices.Equal(tensors, want) || !slices.Equal(paged, want[1:]) {
		t.Errorf("accesses of tensors %v, page-ins of %v; want %v", tensors, paged, want)
	}
}

// The dictionary of tensor names is kept, however large it is: all rows have indices that it gave at the start.
func TestDictionaryOfTensorsIsKept(t *testing.T) {
	dir := t.TempDir()
	meta := &tables.Meta{}
	structure := make([]tables.StructureRow, dictionaryLimit+2)
	for i := range structure {
		structure[i] = tables.StructureRow{Name: fmt.Sprint("tensor.", i), Shape: []int64{1}}
	}
	w, err := Create(dir, meta, structure)
	check(t, err)
	last := int32(len(structure) - 1)
	want := []int32{0, last, 1, last - 1}
	for _, tensor := range want {
		check(t, w.Access(&tables.Access{Tensor: tensor, Op: "A"}))
		check(t, w.PageIn(&tables.PageInRow{Tensor: tensor}))
		check(t, w.Flush(meta)) // a batch
	}
	check(t, w.Close(meta, true))
	c := open(t, dir)
	var tensors, paged []int32
	rows, err := readRows(c)
	check(t, err)
	for _, a := range rows {
		tensors = append(tensors, a.Tensor)
	}
	for _, r := range pageInsOf(t, c) {
		paged = append(paged, r.Tensor)
	}
	if !slices.Equal(tensors, want) || !slices.Equal(paged, want) {
		t.Errorf("accesses of tensors %v, page-ins of %v; want %v", tensors, paged, want)
	}
}

func TestSegmentNames(t *testing.T) {
	for name, want := range map[string]int{
		"access.arrows": 0, "access.0001.arrows": 1, "pagein.12345.arrows": 12345,
		"access.0000.arrows": -1, "access.1.arrows": -1, "structure.0001.arrows": -1, "notes.0001.arrows": -1,
		"access.0001.arrows.tmp": -1,
	} {
		table, segment, ok := segmentOf(name)
		if !ok {
			segment = -1
		}
		if segment != want || ok && segmentFile(table, segment) != name {
			t.Errorf("%s is segment %d of %s, want %d", name, segment, table, want)
		}
	}
}
