package trace

// These tests write a small capture and read it back, whole, cut short, and in the way of other
// files.

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tensorcast/trace/tables"
)

var testStructure = []tables.StructureRow{
	{Name: "token_embd.weight", Offset: 4096, Size: 1000, Type: "F16", Layer: -1, Component: "token_embd.weight",
		File: "m.gguf", Shape: []int64{10, 50}},
	{Name: "blk.0.ffn_up_exps.weight", Offset: 8192, Size: 4000, Type: "Q8_0", Layer: 0,
		Component: "ffn_up_exps.weight", File: "m.gguf", Shape: []int64{32, 10, 4}, Experts: 4, ExpertStride: 1000},
}

func testRows(n int) []tables.Access {
	rows := make([]tables.Access, n)
	for i := range rows {
		rows[i] = tables.Access{
			Timestamp: int64(i) * 10, Step: int32(i / 2), Token: int32(i/2) - 1, Phase: tables.Phase(i % 3),
			Thread: 77, Op: "MUL_MAT", Tensor: int32(i % 2),
			DataPtr: 0x7f0000000000 + uint64(i), Offset: testStructure[i%2].Offset, Bytes: int64(i % 1000),
			Layer: int32(i%2) - 1, Duration: int64(i) + 5,
			Context: int32(i % 7), Stall: int64(i) + 3,
		}
		if i%5 == 4 {
			rows[i].Duration = tables.NotObserved
		}
		if i%3 == 2 {
			rows[i].Stall = tables.NotObserved
		}
		if i%2 == 1 {
			rows[i].Op = "MUL_MAT_ID"
			rows[i].Experts = []int32{int32(i % 4), 3}
		}
	}
	return rows
}

func writeCapture(t *testing.T, dir string, rows []tables.Access, routes []tables.Route) {
	t.Helper()
	meta := &tables.Meta{PID: 5, Models: []tables.ModelInfo{{Fingerprint: "f00", Path: "m.gguf"}}}
	w, err := Create(dir, meta, testStructure)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		if err := w.Access(&rows[i]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range routes {
		if err := w.Route(&routes[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(meta, true); err != nil {
		t.Fatal(err)
	}
}

func readRows(c *Capture) ([]tables.Access, error) {
	var rows []tables.Access
	for a, err := range c.Accesses() {
		if err != nil {
			return rows, err
		}
		row := *a
		row.Experts = slices.Clone(a.Experts)
		rows = append(rows, row)
	}
	return rows, nil
}

func TestRoundTrip(t *testing.T) {
	for _, n := range []int{0, 1, batchRows, 2*batchRows + 3} {
		dir := filepath.Join(t.TempDir(), "a", "b")
		rows := testRows(n)
		routes := []tables.Route{
			{Step: 1, Token: 0, Layer: 2, Slot: 3, Expert: 4, Position: 5},
			{Step: 6, Token: 7, Layer: 8, Slot: 9, Expert: 10, Position: 11},
		}
		writeCapture(t, dir, rows, routes)
		c, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(c.Structure, testStructure) {
			t.Errorf("structure: %+v; want %v", c.Structure, testStructure)
		}
		if !c.Meta.Complete || c.Meta.Rows != int64(n) || c.Meta.PID != 5 {
			t.Errorf("description %+v, want a complete capture of process 5 with %d rows", c.Meta, n)
		}
		got, err := readRows(c)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != n || n > 0 && !reflect.DeepEqual(got, rows) {
			t.Errorf("got %d rows, want the %d that were written", len(got), n)
		}
		var gotRoutes []tables.Route
		for r, err := range c.Routes() {
			if err != nil {
				t.Fatal(err)
			}
			gotRoutes = append(gotRoutes, r)
		}
		if !reflect.DeepEqual(gotRoutes, routes) {
			t.Errorf("routes: %+v; want %v", gotRoutes, routes)
		}
	}
}

// A killed tracer may cut a stream anywhere. It then yields a prefix of its rows, in whole batches,
// and no error that stops an analysis.
func TestCutStream(t *testing.T) {
	dir := t.TempDir()
	rows := testRows(batchRows + 5)
	writeCapture(t, dir, rows, nil)
	path := filepath.Join(dir, AccessFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	c.Meta.Complete = false
	step := max(1, len(whole)/500)
	seen := map[int]bool{}
	for cut := 0; cut <= len(whole); cut += step {
		if err := os.WriteFile(path, whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := readRows(c)
		if err != nil {
			t.Fatalf("cut at byte %d of %d: %v", cut, len(whole), err)
		}
		if n := len(got); n != 0 && n != batchRows && n != len(rows) || n > 0 && !reflect.DeepEqual(got, rows[:n]) {
			t.Fatalf("cut at byte %d: got %d rows, want the first of %d, in whole batches of %d", cut, n, len(rows),
				batchRows)
		}
		seen[len(got)] = true
	}
	if !seen[0] || !seen[batchRows] {
		t.Errorf("the cuts saw only %v rows, want also 0 and %d", seen, batchRows)
	}
}

func TestCreateKeepsOtherFiles(t *testing.T) {
	dir := t.TempDir()
	writeCapture(t, dir, testRows(3), nil)
	writeCapture(t, dir, testRows(1), nil) // an earlier capture is replaced
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := readRows(c); err != nil || len(got) != 1 {
		t.Errorf("%d rows, %v; want 1", len(got), err)
	}
	mine := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(mine, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir, &tables.Meta{}, nil); err == nil || !strings.Contains(err.Error(), "notes.txt") {
		t.Errorf("error %v does not name the file in the way", err)
	}
	if _, err := os.Stat(filepath.Join(dir, AccessFile)); err != nil {
		t.Errorf("the earlier capture is gone: %v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	if _, err := Open(t.TempDir()); !errors.Is(err, ErrNoCapture) || !strings.Contains(err.Error(), "tracer") {
		t.Errorf("empty directory: %v; want %v, text with \"tracer\"", err, ErrNoCapture)
	}
	dir := t.TempDir()
	writeCapture(t, dir, nil, nil)
	for content, want := range map[string]string{"{": MetaFile, `{"schema": 999}`: "schema version 999"} {
		if err := os.WriteFile(filepath.Join(dir, MetaFile), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrNoCapture) {
			t.Errorf("%s: error %v, want %q", content, err, want)
		}
	}
}
