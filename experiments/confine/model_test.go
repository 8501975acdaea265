package confine

// This file tests the page cache of a file, on the real kernel.

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tensorcast/internal/regular"
	"tensorcast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newFile makes a file on a disk, not in the page cache.
func newFile(t *testing.T, size int) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "model"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	m, err := Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.OnDisk(); errors.Is(err, ErrInMemory) {
		t.Skipf("%v: set TMPDIR to a directory on a disk", err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestDrop(t *testing.T) {
	testenv.NeedMachine(t)
	const size = 8<<20 + 100
	f := newFile(t, size)
	m, err := Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	page := int64(os.Getpagesize())
	check := func(what string, want int64) {
		t.Helper()
		got, err := m.Resident()
		if err != nil || got != want {
			t.Errorf("%s: %d bytes resident (%v), want %d", what, got, err, want)
		}
	}
	check("at first", 0)
	if _, err := os.ReadFile(f.Name()); err != nil {
		t.Fatal(err)
	}
	check("loaded", 8<<20+page)
	if err := m.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("dropped", 0)

	// This page is written and not yet on the disk.
	if _, err := f.WriteAt(make([]byte, 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	if err := m.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("dropped after a write", 0)

	// Mapped pages stay, and the error says so.
	mapping, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapping)
	if err := m.Drop(t.Context()); !errors.Is(err, ErrStillCached) {
		t.Errorf("mapped by another: %v, want ErrStillCached", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Drop(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("drop, cancelled: %v, want context.Canceled", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{dir: regular.ErrNotRegular, filepath.Join(dir, "none"): os.ErrNotExist} {
		if _, err := Open(path); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	if _, err := Open(empty); err == nil {
		t.Error("an empty model was opened")
	}
}

func TestOnDisk(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mount tmpfs: %v", err) // in a container
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "model")
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.OnDisk(); !errors.Is(err, ErrInMemory) {
		t.Errorf("on tmpfs: %v, want ErrInMemory", err)
	}
}
