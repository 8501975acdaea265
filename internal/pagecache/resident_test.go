package pagecache

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
	ask := func(offset, length int64) int64 {
		t.Helper()
		n, err := Resident(f, offset, length)
		must(t, err)
		// Both ways to ask agree.
		if m, err := mincore(f, offset, length); length > 0 && (err != nil || m != n) {
			t.Errorf("bytes %d+%d: mincore says %d, %v, cachestat %d", offset, length, m, err, n)
		}
		return n
	}
	if got := ask(0, 64*page); got != 64*page {
		t.Errorf("%d bytes of what was just written", got)
	}
	for _, tt := range [][3]int64{{0, 0, 0}, {0, -1, 0}, {0, 1, page}, {page - 1, 2, 2 * page}, {page, page, page}, {63*page + 10, page, page}, {100 * page, page, 0}} {
		if got := ask(tt[0], tt[1]); got != tt[2] {
			t.Errorf("bytes %d+%d: %d, want %d", tt[0], tt[1], got, tt[2])
		}
	}
	if _, err := Resident(f, -1, 1); err == nil {
		t.Error("no error for a negative offset")
	}
	must(t, f.Sync())
	must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
	must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM))
	if ask(0, 64*page) != 0 {
		t.Skip("the file system keeps its pages")
	}
	if _, err := f.ReadAt(make([]byte, 1), 10*page); err != nil {
		t.Fatal(err)
	}
	if ask(0, 64*page) == 0 || ask(10*page, 1) != page || ask(40*page, 10*page) != 0 {
		t.Error("what was read is not what is resident")
	}
	must(t, f.Close())
	if _, err := Resident(f, 0, 1); err == nil {
		t.Error("no error for a closed file")
	}
}
