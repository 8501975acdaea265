package dataset

// This file tests appending runs.

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"tensorcast/internal/outfile"
	"tensorcast/trace"
	"tensorcast/trace/tracetest"
)

// open makes a capture, and opens it.
func open(t *testing.T) *trace.Capture {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "capture")
	if err := tracetest.Write(dir, tracetest.Options{}); err != nil {
		t.Fatal(err)
	}
	c, err := trace.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tree lists the files below a directory.
func tree(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, path); err == nil && rel != "." {
			all = append(all, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A run has a file for each table, in the partition of its model, which only its owner reads. The same capture is not
// appended twice, unless it is to replace the run. Other names are other runs.
func TestAppend(t *testing.T) {
	c := open(t)
	dir := filepath.Join(t.TempDir(), "runs")
	first, err := Append(t.Context(), dir, c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if first.Model != "moe" || len(first.Run) < 20 {
		t.Errorf("appended %s of %s, want a name with a time and a hash, of moe", first.Run, first.Model)
	}
	base := "model=moe/run=" + first.Run
	want := []string{"model=moe", base}
	for _, table := range []string{"access", "buffers", "pagein", "route", "run", "steps", "structure"} {
		want = append(want, base+"/"+table+".parquet")
	}
	if got := tree(t, dir); !slices.Equal(got, want) {
		t.Errorf("the data set has\n%q, want\n%q", got, want)
	}
	for _, file := range first.Files {
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 || info.Size() == 0 {
			t.Errorf("%s: %v, %v; want a file of mode 0600", file, info, err)
		}
	}
	_, err = Append(t.Context(), dir, c, Options{})
	if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), base) {
		t.Errorf("a second time: %v, want %v with its path", err, ErrExists)
	}
	extra := filepath.Join(dir, base, "of-the-old-run")
	if err := os.WriteFile(extra, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Append(t.Context(), dir, c, Options{Replace: true}); err != nil {
		t.Errorf("replace: %v", err)
	}
	if got := tree(t, dir); !slices.Equal(got, want) {
		t.Errorf("after it was replaced the data set has\n%q, want\n%q", got, want)
	}
	odd, err := Append(t.Context(), dir, c, Options{Model: "../Qwen 3/?", Run: "a=b/../c"})
	if err != nil || odd.Model != "Qwen_3_" || odd.Run != "a_b_.._c" {
		t.Errorf("odd names became %s and %s, %v; want Qwen_3_ and a_b_.._c", odd.Model, odd.Run, err)
	}
	for _, o := range []Options{{Model: "???"}, {Run: "..."}} {
		p, err := Append(t.Context(), dir, c, o)
		if err == nil || !strings.Contains(err.Error(), "no letter or digit") {
			t.Errorf("with %+v: %+v, %v; want an error", o, p, err)
		}
	}
}

// What a reader takes for something else than a name is not in one.
func TestSafeName(t *testing.T) {
	for text, want := range map[string]string{
		"Llama-3.1_8B":               "Llama-3.1_8B",
		"run 1":                      "run_1",
		"__HIVE_DEFAULT_PARTITION__": "HIVE_DEFAULT_PARTITION__",
		".hidden":                    "hidden",
		"a/b=c%20*":                  "a_b_c_20_",
		"Größe":                      "Gr_e",
		"":                           "",
		"..":                         "",
		strings.Repeat("x", 300):     strings.Repeat("x", 180),
	} {
		if got := SafeName(text); got != want {
			t.Errorf("SafeName(%q) = %q, want %q", text, got, want)
		}
	}
}

// A run that cannot be written leaves nothing. A directory in which others can write is refused. What a killed process
// has left is removed.
func TestAppendFails(t *testing.T) {
	c := open(t)
	dir := filepath.Join(t.TempDir(), "runs")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if p, err := Append(gone, dir, c, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %+v, %v; want %v", p, err, context.Canceled)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory is left: %v", err)
	}
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if p, err := Append(t.Context(), dir, c, Options{}); !errors.Is(err, outfile.ErrUnsafe) {
		t.Errorf("where others can write: %+v, %v; want %v", p, err, outfile.ErrUnsafe)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, "model=moe", ".run=x.123-0.tmp")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(left, "steps.parquet"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Append(t.Context(), dir, c, Options{Run: "x"}); err != nil {
		t.Fatal(err)
	}
	isTemporary := func(name string) bool { return strings.Contains(name, ".tmp") }
	if got := tree(t, dir); len(got) != 9 || slices.ContainsFunc(got, isTemporary) {
		t.Errorf("the data set has %q, want one run and nothing that was left", got)
	}
}

// Many may append at the same time: each run is there, and of several with one name, one.
func TestAppendTogether(t *testing.T) {
	c := open(t)
	dir := filepath.Join(t.TempDir(), "runs")
	var all sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		all.Go(func() {
			_, errs[i] = Append(t.Context(), dir, c, Options{Run: string(rune('a' + i/2))})
		})
	}
	all.Wait()
	refused := 0
	for _, err := range errs {
		if errors.Is(err, ErrExists) {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if runs, err := filepath.Glob(filepath.Join(dir, "model=moe", "*")); err != nil || len(runs) != 8 || refused != 8 {
		t.Errorf("%d runs, %d refused, %v; want 8 and 8", len(runs), refused, err)
	}
}
