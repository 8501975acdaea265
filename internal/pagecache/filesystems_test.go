package pagecache_test

// This file tests what is said of files on the file systems on which people keep models.

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/testenv"
)

// Wherever a file lies, pages that were read are resident, pages that were not are not, and what is dropped is gone.
func TestFileSystems(t *testing.T) {
	for _, name := range testenv.FileSystems {
		t.Run(name, func(t *testing.T) {
			page := int64(os.Getpagesize())
			const pages, first, some = 2048, 1024, 16
			from := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(from, make([]byte, pages*page), 0o644); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(filepath.Join(testenv.Mount(t, name, from), "file"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			mapping, err := unix.Mmap(int(f.Fd()), 0, int(pages*page), unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Munmap(mapping)
			residencies := []*pagecache.Residency{pagecache.ResidencyOf(f, nil), pagecache.ResidencyOf(f, mapping)}
			below := pagecache.ResidencyOf(f, mapping)
			below.LookBelow()
			defer below.Close()
			residencies = append(residencies, below)
			want := func(what string, offset, length, want int64) {
				t.Helper()
				for i, r := range residencies {
					if n, err := r.Bytes(offset, length); n != want || err != nil {
						t.Errorf("%s: %d bytes at %d are resident (%v), asked in way %d; want %d", what, n, offset, err, i, want)
					}
				}
			}
			for _, r := range residencies {
				if err := r.Check(); err != nil {
					t.Error(err)
				}
			}
			if name == "tmpfs" { // Drop would wait for its pages
				want("in memory", 0, pages*page, pages*page)
				return
			}
			left, err := pagecache.Drop(t.Context(), f)
			if left != 0 || err != nil {
				t.Errorf("%d bytes are left of a file that was dropped, %v; want 0", left, err)
			}
			want("dropped", 0, pages*page, 0)
			if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
				t.Fatal(err)
			}
			if _, err := f.ReadAt(make([]byte, some*page), first*page); err != nil {
				t.Fatal(err)
			}
			want("read", first*page, some*page, some*page)
			want("not read", 0, some*page, 0)
			if n, err := pagecache.Resident(f, first*page, some*page); n != some*page || err != nil {
				t.Errorf("asked once: %d, %v; want %d", n, err, some*page)
			}
		})
	}
}

// Where a file has no pages in the page cache, it is not said that none of it is in memory.
func TestNotKnown(t *testing.T) {
	from := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(from, make([]byte, 64<<10), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(testenv.Mount(t, "bindfs", from), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	direct, err := os.Open(filepath.Join(testenv.Mount(t, "bindfs:direct_io", from), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	if err := pagecache.ResidencyOf(f, nil).Check(); err != nil {
		t.Errorf("with a page cache: %v, want no error", err)
	}
	if err := pagecache.ResidencyOf(direct, nil).Check(); !errors.Is(err, pagecache.ErrUnknown) {
		t.Errorf("without a page cache: %v, want ErrUnknown", err)
	}
}
