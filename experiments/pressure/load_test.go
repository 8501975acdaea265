package pressure

// This file tests what is loaded into the page cache, and what is locked there, on the real kernel.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/regular"
	"tensorcast/internal/testenv"
)

// drop removes a file from the page cache.
func drop(t *testing.T, f *os.File) {
	t.Helper()
	if n, err := pagecache.Drop(t.Context(), f); n != 0 || err != nil {
		t.Fatalf("%d bytes stay in the page cache, %v; want 0", n, err)
	}
}

// dropOnce tries to remove a file from the page cache, and returns how many bytes of it remain.
func dropOnce(t *testing.T, f *os.File) int64 {
	t.Helper()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	n, err := pagecache.Resident(f, 0, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// All of the file is loaded, in the unit that was asked for, if the kernel tells and the file
// system has it.
func TestLoad(t *testing.T) {
	testenv.NeedRoot(t)
	const size = 16<<20 + 1000
	const resident = 16<<20 + 4096
	f := diskFile(t, size)
	for _, unit := range []Unit{Pages, Folios, Pages} {
		drop(t, f)
		l, err := Load(t.Context(), f.Name(), unit)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %+v", unit, l)
		if unit == Folios && l.Refused != "" {
			continue
		}
		// A kernel that reclaims what is cold (DAMON) may take a few pages at any time.
		if n := cachedBytes(t, f); n > resident || n < resident*15/16 || l.Resident != resident {
			t.Errorf("%s: %d bytes resident, told are %+v, want %d", unit, n, l, resident)
		}
		if unit == Pages && l.Large != 0 || l.Huge > l.Large || l.Large > l.Resident {
			t.Errorf("%s: %+v", unit, l)
		}
		// ext4 has had large folios since Linux 6.16; whether there is memory for them is another matter.
		if unit == Folios && l.Unknown == "" && l.noFolios() != "" {
			t.Logf("no large folios here: %s", l.noFolios())
		}
	}
	// A file of 1 MiB has no folio of 2, though what was just written may be in large ones.
	small := filepath.Join(t.TempDir(), "small")
	if err := os.WriteFile(small, make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	if l, err := Load(t.Context(), small, Pages); err != nil || l.Huge != 0 {
		t.Errorf("a small file: %+v, %v; want no huge folio", l, err)
	} else {
		t.Logf("a small file: %+v", l)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, unit := range []Unit{Pages, Folios} {
		if _, err := Load(ctx, f.Name(), unit); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled: %v, want context.Canceled", unit, err)
		}
		if _, err := Load(t.Context(), f.Name()+"-not", unit); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s, no file: %v, want ErrNotExist", unit, err)
		}
		if _, err := Load(t.Context(), filepath.Dir(f.Name()), unit); !errors.Is(err, regular.ErrNotRegular) {
			t.Errorf("%s, a directory: %v, want ErrNotRegular", unit, err)
		}
	}
}

// The group's throttle holds a process back whether it loads single pages or large folios.
func TestThrottledLoad(t *testing.T) {
	needControlGroups(t)
	const size, rate = 16 << 20, 25e6
	f := diskFile(t, size)
	d, err := diskOf(f.Name())
	if err != nil {
		t.Skip(err)
	}
	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	group, err := cgroup.Create(root, fmt.Sprintf("tensorcast-pressure-%d-throttled", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	}()
	if err := group.SetReadRate(d.major, d.minor, rate); errors.Is(err, cgroup.ErrNoDiskControl) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	for _, unit := range []Unit{Pages, Folios} {
		drop(t, f)
		begin := time.Now()
		l, err := (&series{cfg: Config{Model: f.Name(), Load: []string{os.Args[0], loadArg}}}).load(t.Context(),
			group, unit)
		took := time.Since(begin)
		if err != nil {
			t.Fatal(err)
		}
		// The kernel lets pass at once what it allows for a slice of time, which is a tenth of a
		// second or more.
		if least := 0.6 * size / rate; l.Refused == "" && took.Seconds() < least {
			t.Errorf("%s: %d bytes in %v, which take %.2f s or more at 25 MB/s", unit, l.Resident, took, least)
		}
	}
}

// The first bytes cannot be dropped from the page cache as long as the process runs. Afterwards
// they can.
func TestPin(t *testing.T) {
	testenv.NeedRoot(t)
	const size = 16 << 20
	f := diskFile(t, size)
	for _, test := range []struct {
		name         string
		length, want int64
	}{{"a part", 4<<20 + 100, 4 << 20}, {"more than there is", 1 << 40, size}, {"nothing", 0, 0},
		{"less than nothing", -5, 0}} {
		for _, end := range []string{"process", "context"} {
			target := exec.Command("sleep", "1000")
			if err := target.Start(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			locked, done := make(chan int64, 1), make(chan error, 1)
			go func() { done <- Pin(ctx, f.Name(), test.length, target.Process.Pid, func(n int64) { locked <- n }) }()
			select {
			case n := <-locked:
				if n != test.want {
					t.Errorf("%s: %d bytes locked, want %d", test.name, n, test.want)
				}
				if test.want == 0 {
					drop(t, f)
				} else if stay := dropOnce(t, f); stay < test.want {
					t.Errorf("%s: %d bytes stay in memory, want %d", test.name, stay, test.want)
				}
			case err := <-done:
				t.Fatalf("%s: ended early: %v", test.name, err)
			}
			if end == "context" {
				cancel()
			}
			if err := target.Process.Kill(); end == "process" && err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Errorf("%s, end of the %s: %v", test.name, end, err)
			}
			_ = target.Wait()
			cancel()
			drop(t, f)
		}
	}
	if err := Pin(t.Context(), f.Name(), 4096, 1<<30, nil); err == nil {
		t.Error("no error for a process that is not there")
	}
	if err := Pin(t.Context(), f.Name()+"-not", 4096, os.Getpid(), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v, want ErrNotExist", err)
	}
}
