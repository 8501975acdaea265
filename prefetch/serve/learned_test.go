package serve

// This file tests which models' routing is remembered.

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tensorcast/internal/outfile"
)

// Of many models those are remembered that ran last; what is not ours stays.
func TestForget(t *testing.T) {
	path := filepath.Join(t.TempDir(), "learned")
	dir, err := outfile.OpenDir(path, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	write := func(name string, age int) {
		t.Helper()
		if err := dir.Write(name, 0o600, func(w io.Writer) error { _, err := io.WriteString(w, name); return err }); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-time.Duration(age) * time.Hour)
		if err := os.Chtimes(dir.Path(name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	const models = mostLearned + 5
	for i := range models {
		write(fmt.Sprintf("%02d%s", i, learnedSuffix), i)
	}
	write("notes.txt", models)
	write(".03"+learnedSuffix+".7-1.tmp", 0)
	last := fmt.Sprintf("%02d%s", models-1, learnedSuffix) // by its time the oldest, but it was written now
	if err := forget(dir, last); err != nil {
		t.Fatal(err)
	}
	entries, err := dir.Entries()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range mostLearned - 1 {
		want = append(want, fmt.Sprintf("%02d%s", i, learnedSuffix))
	}
	want = append(want, last, "notes.txt")
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	if fmt.Sprint(names) != fmt.Sprint(want) {
		t.Errorf("%v are left, not %v", names, want)
	}
}
