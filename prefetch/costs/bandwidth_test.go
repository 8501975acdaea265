package costs

// This file tests that a disk is measured past the page cache.

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

// locate says where a file is.
func locate(t *testing.T, path string) proc.Place {
	return proc.Place{Path: path, ID: idOfFile(t, path)}
}

// The disk is measured past the page cache. Only regular files are read.
func TestBandwidth(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model")
	if err := os.WriteFile(path, make([]byte, 5*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	var blocks []pages.Range
	for i := range int64(5) {
		for file := range 2 { // those of the second file are left out
			blocks = append(blocks, pages.Range{File: file, Offset: i * mib, Length: mib})
		}
	}
	got, err := Bandwidth(locate(t, path), blocks)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("no O_DIRECT here")
	}
	if err != nil || got <= 0 {
		t.Errorf("Bandwidth = %v, %v; want more than 0", got, err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Bandwidth(locate(t, fifo), blocks); !errors.Is(err, regular.ErrNotRegular) {
		t.Errorf("a pipe: %v, want %v", err, regular.ErrNotRegular)
	}
	other := locate(t, path)
	other.ID.Ino++
	if _, err := Bandwidth(other, blocks); !errors.Is(err, proc.ErrOtherFile) {
		t.Errorf("another file: %v, want %v", err, proc.ErrOtherFile)
	}
}

// idOfFile is the id of the file at path, as a target's events have it.
func idOfFile(t *testing.T, path string) event.FileID {
	t.Helper()
	id, err := proc.FileOf(path)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
