package pagecache

// This file tests Resident with both system calls that it may use.

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestResident(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	const page = 4096
	if os.Getpagesize() != page {
		t.Skip("pages of another size")
	}
	must(t, os.WriteFile(path, make([]byte, 64*page-100), 0o644))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	resident := func(offset, length int64) int64 {
		t.Helper()
		n, err := Resident(f, offset, length)
		must(t, err)
		// Both system calls agree.
		if m, err := ResidencyOf(f, nil).askMincore(offset, length); length > 0 && (err != nil || m != n) {
			t.Errorf("%d bytes at %d: mincore counts %d, %v; cachestat %d", length, offset, m, err, n)
		}
		return n
	}
	if got := resident(0, 64*page); got != 64*page {
		t.Errorf("%d bytes are resident of a file just written, want %d", got, 64*page)
	}
	for _, tt := range []struct{ offset, length, want int64 }{
		{0, 0, 0}, {0, -1, 0}, {0, 1, page}, {page - 1, 2, 2 * page}, {page, page, page},
		{63*page + 10, page, page}, {100 * page, page, 0},
	} {
		if got := resident(tt.offset, tt.length); got != tt.want {
			t.Errorf("%d bytes at %d: %d are resident, want %d", tt.length, tt.offset, got, tt.want)
		}
	}
	if _, err := Resident(f, -1, 1); err == nil {
		t.Error("no error for a negative offset")
	}
	must(t, f.Sync())
	must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
	must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM))
	if resident(0, 64*page) != 0 {
		t.Skip("the file system keeps its pages")
	}
	if _, err := f.ReadAt(make([]byte, 1), 10*page); err != nil {
		t.Fatal(err)
	}
	if resident(0, 64*page) == 0 || resident(10*page, 1) != page || resident(40*page, 10*page) != 0 {
		t.Error("after a read of page 10: want page 10 resident, and not pages 40 to 49")
	}
	must(t, f.Close())
	if _, err := Resident(f, 0, 1); err == nil {
		t.Error("no error for a closed file")
	}
}
