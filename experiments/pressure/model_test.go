package pressure

// This file tests the page cache of a file, and what is known of its disk, on the real kernel.

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"tensorcast/internal/testenv"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDropAndLoad(t *testing.T) {
	testenv.NeedMachine(t)
	const size = 8<<20 + 100
	f := diskFile(t, size)
	m, err := openModel(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	page := int64(os.Getpagesize())
	check := func(what string, want int64) {
		t.Helper()
		got, err := m.resident()
		if err != nil || got != want {
			t.Errorf("%s: %d bytes resident (%v), want %d", what, got, err, want)
		}
	}
	check("at first", 0)
	if err := m.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("loaded", 8<<20+page)
	if err := m.drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("dropped", 0)

	// Written and not yet on the disk.
	if _, err := f.WriteAt(make([]byte, 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	if err := m.drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("dropped after a write", 0)

	// Mapped pages stay, and that is said.
	mapping, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapping)
	if err := m.drop(t.Context()); !errors.Is(err, ErrStillCached) {
		t.Errorf("mapped by another: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, err := range map[string]error{"drop": m.drop(ctx), "load": m.load(ctx)} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled: %v", what, err)
		}
	}
}

func TestDiskOf(t *testing.T) {
	f := diskFile(t, 4<<20)
	d, err := diskOf(f.Name())
	if err != nil {
		t.Skip(err) // an overlay
	}
	if _, err := os.Stat(filepath.Join("/sys/block", d.name)); err != nil {
		t.Errorf("%+v is not a whole disk: %v", d, err)
	}
	before, err := d.readBytes()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(f.Name()); err != nil {
		t.Fatal(err)
	}
	after, err := d.readBytes()
	if err != nil || after-before < 4<<20 {
		t.Errorf("%d bytes read by its counter (%v), at least %d were", after-before, err, 4<<20)
	}
	if kib, err := d.readahead(); kib < 0 || err != nil {
		t.Errorf("readahead %d, %v", kib, err)
	}
	if _, err := diskOf(f.Name() + "-not"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if d, err := diskOf("/proc/self/stat"); err == nil {
		t.Errorf("/proc is on the disk %+v", d)
	}
}
