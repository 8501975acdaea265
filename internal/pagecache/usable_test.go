package pagecache_test

// This file tests Usable on a file that is read in part.

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/testenv"
)

// Pages are usable once they were read, and not before. Their neighbours make no difference.
func TestUsable(t *testing.T) {
	page := os.Getpagesize()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 64*page), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapping, err := unix.Mmap(int(f.Fd()), 0, 64*page, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapping)
	usable := func(from, to int) int64 {
		t.Helper()
		n, err := pagecache.Usable(mapping[from:to])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if left, err := pagecache.Drop(t.Context(), f); err != nil {
		t.Fatal(err)
	} else if left > 0 {
		t.Skipf("%d bytes stay in memory: this file system does not give its pages back", left)
	}
	if n := usable(0, 64*page); n != 0 {
		t.Errorf("%d bytes are usable before any read, want 0", n)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "eight pages to be read", func() bool {
		if err := unix.Fadvise(int(f.Fd()), int64(8*page), int64(8*page), unix.FADV_WILLNEED); err != nil {
			t.Fatal(err)
		}
		return usable(8*page, 16*page) == int64(8*page)
	})
	if n, part := usable(0, 64*page), usable(15*page, 16*page+1); n != int64(8*page) || part != int64(page) {
		t.Errorf("%d bytes are usable of all pages, %d of the last page that was read and the next; want %d, %d",
			n, part, 8*page, page)
	}
	if n, err := pagecache.Usable(nil); n != 0 || err != nil {
		t.Errorf("Usable(nil) = %d, %v; want 0", n, err)
	}
	if _, err := pagecache.Usable(mapping[1:page]); err == nil {
		t.Error("memory that begins within a page gave no error")
	}
}
