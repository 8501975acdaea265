package pagecache_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/testenv"
)

// Pages can be used once they were read, and not before; those beside them make no difference.
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
		t.Errorf("%d bytes can be used of what nobody read", n)
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
		t.Errorf("%d bytes can be used of 64 pages, %d of the last one that was read and the next", n, part)
	}
	if n, err := pagecache.Usable(nil); n != 0 || err != nil {
		t.Errorf("of nothing %d bytes can be used, %v", n, err)
	}
	if _, err := pagecache.Usable(mapping[1:page]); err == nil {
		t.Error("what begins within a page is no error")
	}
}
