package trace_test

// This file fuzzes the readers of captures. cmd/analyze has a test that damages whole captures.

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tensorcast/trace"
	"tensorcast/trace/tables"
	"tensorcast/trace/tracetest"
)

// filesOf returns the files of a capture with all tables.
func filesOf(tb testing.TB) map[string][]byte {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "capture")
	if err := tracetest.Write(dir, tracetest.Options{}); err != nil {
		tb.Fatal(err)
	}
	files := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range entries {
		if files[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			tb.Fatal(err)
		}
	}
	return files
}

// readAll reads everything in a capture.
func readAll(t *testing.T, files map[string][]byte) error {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := trace.Open(dir)
	if err != nil {
		return err
	}
	rows := int64(0)
	for a, err := range c.Accesses() {
		if err != nil {
			return err
		}
		rows++
		s := &c.Structure[a.Tensor] // Accesses has checked that it exists
		if a.Bytes < 0 || a.Bytes > s.Size || a.Phase > tables.PhaseGeneration || a.Step < 0 {
			t.Errorf("access %+v, want one within tensor %+v", a, s)
		}
		for _, e := range a.Experts {
			_ = e
		}
	}
	if c.Meta.Complete && rows != c.Meta.Rows-c.Meta.Segments.DeletedRows {
		t.Errorf("%d rows, want %d", rows, c.Meta.Rows-c.Meta.Segments.DeletedRows)
	}
	for s, err := range c.Steps() {
		if err != nil {
			return err
		}
		_ = slices.Concat(s.TokenIDs, s.Sequences)
	}
	for r, err := range c.PageIns() {
		if err != nil {
			return err
		}
		if r.Bytes < 0 || r.Tensor >= int32(len(c.Structure)) {
			t.Errorf("%+v; want r.Bytes at least 0, r.Tensor less than %v", r, int32(len(c.Structure)))
		}
	}
	for r, err := range c.Buffers() {
		if err != nil {
			return err
		}
		if r.Bytes < 0 {
			t.Errorf("%+v; want at least 0", r)
		}
	}
	for r, err := range c.Hidden() {
		if err != nil {
			return err
		}
		if len(r.Values) == 0 || len(r.Values) > tables.MaxHidden || r.Layer < 0 {
			t.Errorf("row %+v, want 1 to %d values, and a layer", r, tables.MaxHidden)
		}
	}
	for _, err := range c.Routes() {
		if err != nil {
			return err
		}
	}
	r, err := c.Rereads(context.Background(), 5)
	if err == nil && r != nil && (r.FirstBytes < 0 || r.RereadBytes < 0 || r.StallNS < 0) {
		t.Errorf("sums %+v, want none negative", r)
	}
	return err
}

// isDocumented reports whether an error is one of those that Open promises.
func isDocumented(err error) bool {
	return err == nil || errors.Is(err, trace.ErrDamaged) || errors.Is(err, trace.ErrMixed) ||
		errors.Is(err, fs.ErrNotExist)
}

// FuzzTable reads a capture in which one table is replaced by any bytes.
func FuzzTable(f *testing.F) {
	files := filesOf(f)
	names := slices.Sorted(maps.Keys(files))
	for i, name := range names {
		if name == trace.MetaFile {
			continue
		}
		f.Add(uint8(i), files[name])
		unpacked, err := tracetest.Unpacked(files[name])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), unpacked)
	}
	f.Fuzz(func(t *testing.T, table uint8, data []byte) {
		damaged := maps.Clone(files)
		damaged[names[int(table)%len(names)]] = data
		if err := readAll(t, damaged); !isDocumented(err) && names[int(table)%len(names)] != trace.MetaFile {
			t.Errorf("%v does not say what is wrong", err)
		}
	})
}

// FuzzDescription reads a capture in which capture.json is replaced by any bytes.
func FuzzDescription(f *testing.F) {
	files := filesOf(f)
	f.Add(files[trace.MetaFile])
	earlier, err := os.ReadFile(filepath.Join("testdata", "capture-2", trace.MetaFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(earlier)
	f.Fuzz(func(t *testing.T, data []byte) {
		damaged := maps.Clone(files)
		damaged[trace.MetaFile] = data
		_ = readAll(t, damaged) // nor does it panic
	})
}
