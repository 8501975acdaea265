package costs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
	"tensorcast/prefetch/pages"
)

const mib = 1 << 20

func placeOf(t *testing.T, path string) proc.Place {
	return proc.Place{Path: path, ID: proc.FileID(idOfFile(t, path))}
}

// The disk is measured below the page cache; only regular files are read.
func TestBandwidth(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model")
	if err := os.WriteFile(path, make([]byte, 5*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	var blocks []pages.Range
	for i := range int64(5) {
		blocks = append(blocks, pages.Range{File: 0, Offset: i * mib, Length: mib}, pages.Range{File: 1, Offset: i * mib, Length: mib}) // those of another file are left out
	}
	got, err := Bandwidth(placeOf(t, path), blocks)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("no O_DIRECT here")
	}
	if err != nil || got <= 0 {
		t.Errorf("%v, %v", got, err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Bandwidth(placeOf(t, fifo), blocks); !errors.Is(err, regular.ErrNotRegular) {
		t.Errorf("a pipe: %v", err)
	}
	other := placeOf(t, path)
	other.ID.Ino++
	if _, err := Bandwidth(other, blocks); !errors.Is(err, proc.ErrOtherFile) {
		t.Errorf("another file: %v", err)
	}
}

// idOfFile is the id of the file at path, as a target's events have it.
func idOfFile(t *testing.T, path string) event.FileID {
	t.Helper()
	id, err := proc.FileOf(path)
	if err != nil {
		t.Fatal(err)
	}
	return event.FileID(id)
}
