package pressure

// This file tests what is known of a file's disk, on the real kernel.

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

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
		t.Errorf("%d bytes read by its counter (%v), want at least %d", after-before, err, 4<<20)
	}
	if kib, err := d.readahead(); kib < 0 || err != nil {
		t.Errorf("readahead %d, %v; want 0 or more", kib, err)
	}
	if _, err := diskOf(f.Name() + "-not"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v, want ErrNotExist", err)
	}
	if d, err := diskOf("/proc/self/stat"); err == nil {
		t.Errorf("/proc is on the disk %+v, want an error", d)
	}
}
