package serve

// This file tests which models' routing is kept.

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tensorcast/internal/outfile"
)

// Of many models those are kept that ran last. Other files in the directory stay.
func TestRemoveOldRoutings(t *testing.T) {
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
	const models = maxRoutings + 5
	for i := range models {
		write(fmt.Sprintf("%02d%s", i, routingSuffix), i)
	}
	write("notes.txt", models)
	write(".03"+routingSuffix+".7-1.tmp", 0)
	last := fmt.Sprintf("%02d%s", models-1, routingSuffix) // by its time the oldest, but it was written now
	if err := removeOldRoutings(dir, last); err != nil {
		t.Fatal(err)
	}
	entries, err := dir.Entries()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range maxRoutings - 1 {
		want = append(want, fmt.Sprintf("%02d%s", i, routingSuffix))
	}
	want = append(want, last, "notes.txt")
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	if fmt.Sprint(names) != fmt.Sprint(want) {
		t.Errorf("left are %v, want %v", names, want)
	}
}
