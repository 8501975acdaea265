package pages

// This file tests the levers that hold and free pages.

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
	"tensorcast/internal/testenv"
)

const mib = 1 << 20

// The levers do to the kernel's page cache what Levers promises. The target is this process, which maps the
// file a second time.
func TestKernel(t *testing.T) {
	testenv.NeedRoot(t) // to lock memory, and to page out a process
	const size = 16 * mib
	path := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(path, make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil { // a page that is not written back stays
		t.Fatal(err)
	}
	mapping, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapping)
	if err := unix.Madvise(mapping, unix.MADV_RANDOM); err != nil {
		t.Fatal(err)
	}

	k, err := NewKernel(os.Getpid(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	file, got, err := k.Open(path, idOf(t, path))
	if err != nil || got != size {
		t.Fatalf("Open: %d bytes, want %d, %v", got, size, err)
	}
	if again, _, err := k.Open(path, idOf(t, path)); again != file || err != nil {
		t.Errorf("the same file is number %d, then %d, %v", file, again, err)
	}
	if _, _, err := k.Open(path+" is not there", idOf(t, path)); err == nil {
		t.Error("no error for a file that is not there")
	}
	other := idOf(t, path)
	other.Ino++
	if _, _, err := k.Open(path, other); !errors.Is(err, proc.ErrOtherFile) {
		t.Errorf("a file that took the place of the model: %v", err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	// With os.Open the test would hang here.
	if _, _, err := k.Open(fifo, idOf(t, fifo)); !errors.Is(err, regular.ErrNotRegular) {
		t.Errorf("a FIFO that took the place of the model: %v", err)
	}
	k.Map(file, uint64(uintptr(unsafe.Pointer(&mapping[0]))))
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	resident := func(r Range) int64 {
		t.Helper()
		n, err := k.ResidentBytes(r)
		check("resident", err)
		return n
	}
	locked := func() int64 {
		t.Helper()
		self, err := procfs.Self()
		check("self", err)
		status, err := self.NewStatus()
		check("status", err)
		return int64(status.VmLck)
	}
	whole := Range{file, 0, size}
	block := func(i int64) Range { return Range{file, i * 2 * mib, 2 * mib} }
	touched := byte(0)
	touch := func(r Range) {
		for at := r.Offset; at < r.End(); at += PageSize {
			touched += mapping[at] // the compiler drops a load whose value is not used
		}
	}

	settle := func() { // until what is paged out later is
		t.Helper()
		testenv.WaitFor(t, "requests to end", func() bool { check("poll", k.Poll()); return k.queue.InFlight() == 0 })
	}
	check("page out", k.PageOut(whole))
	if settle(); resident(whole) != 0 {
		t.Skipf("%d bytes stay in memory: this file system does not give its pages back", resident(whole))
	}
	if !k.ReadAhead(block(0)) {
		t.Fatal("the queue is full at the beginning")
	}
	testenv.WaitFor(t, "a read ahead", func() bool {
		check("poll", k.Poll())
		return resident(block(0)) == 2*mib
	})
	if n := resident(block(1)); n != 0 {
		t.Errorf("%d bytes behind the range were read, want 0", n)
	}

	before := locked()
	check("lock", k.Lock(block(1)))
	check("keep", k.Keep(block(2)))
	if n := locked() - before; n != 2*mib {
		t.Errorf("%d bytes are locked, want %d", n, 2*mib)
	}
	for _, b := range []int64{0, 1, 2} {
		// A kernel that reclaims what is cold (DAMON) may take a page at any time.
		testenv.WaitFor(t, "a block to be resident", func() bool {
			touch(block(b))
			return resident(block(b)) == 2*mib
		})
	}
	// What is locked stays. What is kept is paged out like anything else. A page that another processor is
	// working on is skipped.
	for b, want := range []int64{0, 2 * mib, 0} {
		testenv.WaitFor(t, "all to be paged out but what is locked", func() bool {
			check("page out", k.PageOut(whole))
			settle()
			return resident(block(int64(b))) == want
		})
	}
	check("release", k.Release(block(1)))
	check("page out", k.PageOut(block(1)))
	settle()
	if n, l := resident(block(1)), locked()-before; n != 0 || l != 0 {
		t.Errorf("%d bytes are resident, %d locked, after Release; want 0 and 0", n, l)
	}

	// A range that cannot be read is an error of its own. Here somebody has truncated the file.
	end := int64(size) - 2*mib
	check("truncate", os.Truncate(path, end))
	for name, hold := range map[string]func(Range) error{"keep": k.Keep, "lock": k.Lock} {
		if err := hold(Range{file, end, 2 * mib}); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%s behind the end of the file: %v, want %v", name, err, ErrUnreadable)
		}
	}

	check("lock", k.Lock(block(3)))
	check("close", k.Close())
	if n := locked() - before; n != 0 {
		t.Errorf("%d bytes are locked after Close, want 0", n)
	}
}

// What is kept or locked is all that is mapped: the neighbours could not be paged out of the target otherwise. A fault
// maps what lies around its page, too.
func TestMapsNoNeighbours(t *testing.T) {
	m := newMappedFile(t, 8*mib)
	defer m.close()
	whole := m.part(0, 8*mib)
	m.read(whole)
	r := m.part(3*mib+3*PageSize, 2*mib+PageSize)
	if err := m.k.Keep(r); err != nil {
		t.Fatal(err)
	}
	expectNoneMapped(t, m.k, whole)
	if err := m.k.Lock(r); err != nil {
		t.Fatal(err)
	}
	expectNoneMapped(t, m.k, m.part(0, r.Offset))
	expectNoneMapped(t, m.k, m.part(r.End(), whole.End()-r.End()))
}

// Too many reads at once are refused, not queued without end.
func TestKernelFull(t *testing.T) {
	testenv.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(path, make([]byte, 2*mib), 0o644); err != nil {
		t.Fatal(err)
	}
	k, err := NewKernel(os.Getpid(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	file, _, err := k.Open(path, idOf(t, path))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for n <= QueueEntries && k.ReadAhead(Range{file, 0, mib}) {
		n++
	}
	if n == 0 || n > QueueEntries {
		t.Errorf("%d reads were taken, want at most %d", n, QueueEntries)
	}
	if err := k.Poll(); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "room in the queue", func() bool {
		if err := k.Poll(); err != nil {
			t.Fatal(err)
		}
		return k.ReadAhead(Range{file, 0, mib})
	})
}

func idOf(t *testing.T, path string) event.FileID {
	t.Helper()
	id, err := proc.FileOf(path)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
