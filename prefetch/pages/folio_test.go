package pages

// This file tests reads of large folios, on a file system that has them.

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
)

// Blocks of a run that are asked for at once are read as large folios, whatever the order, and nothing else
// is read. The target finds no readahead mark on them.
func TestFolios(t *testing.T) {
	testenv.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "model")
	const size = 64 * mib
	if err := os.WriteFile(path, make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	target, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(target)
	k, err := NewKernel(os.Getpid(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	file, _, err := k.Open(path, idOf(t, path))
	if err != nil {
		t.Fatal(err)
	}
	if k.BlockBytes() != 2*mib {
		t.Skipf("no large folios on this file system: blocks of %d", k.BlockBytes())
	}
	k.Map(file, uint64(uintptr(unsafe.Pointer(&target[0]))))
	resident := func(r Range) int64 {
		n, err := k.ResidentBytes(r)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	whole := Range{file, 0, size}
	if n := resident(whole); n != 0 {
		t.Skipf("%d bytes are in memory at the beginning", n)
	}
	block := func(i int64) Range { return Range{file, i * 2 * mib, 2 * mib} }
	read := func(blocks ...int64) {
		t.Helper()
		for _, b := range blocks {
			if !k.ReadAhead(block(b)) {
				t.Fatal("refused")
			}
		}
		testenv.WaitFor(t, "what was asked for", func() bool {
			if err := k.Poll(); err != nil {
				t.Fatal(err)
			}
			for _, b := range blocks {
				if resident(block(b)) != 2*mib || k.IsReading(block(b)) {
					return false
				}
			}
			return true
		})
	}
	// huge is how many bytes of a block this process finds in large folios when it touches it. The target
	// finds the same.
	huge := func(b int64) int64 {
		t.Helper()
		m := k.files[file]
		part := m.Part(block(b))
		if err := unix.Madvise(part, unix.MADV_POPULATE_READ); err != nil {
			t.Fatal(err)
		}
		n, err := pagecache.Huge(part)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Unmap(block(b)); err != nil {
			t.Fatal(err)
		}
		return n
	}
	read(6) // nothing behind it is in memory: single pages
	read(3, 4, 5)
	if n := resident(whole); n != 8*mib {
		t.Errorf("%d bytes are in memory, want 4 blocks, %d", n, 8*mib)
	}
	for b, want := range map[int64]int64{3: 2 * mib, 4: 2 * mib, 5: 2 * mib, 6: 0} {
		if n := huge(b); n != want {
			t.Errorf("block %d: %d bytes lie in a large folio, want %d", b, n, want)
		}
	}
	for at := block(3).Offset; at < block(6).End(); at += PageSize {
		touched += target[at]
	}
	if n := resident(whole); n != 8*mib {
		t.Errorf("%d bytes are in memory after the target touched 8 MiB, want %d", n, 8*mib)
	}
	// A page that somebody else holds for a moment stays, until it is paged out again. What is read before that is
	// over might be freed, too.
	var asked time.Time
	testenv.WaitFor(t, "all to be paged out", func() bool {
		if time.Since(asked) > time.Second {
			asked = time.Now()
			if err := k.PageOut(whole); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.Poll(); err != nil {
			t.Fatal(err)
		}
		return resident(whole) == 0 && k.queue.InFlight() == 0
	})
	// A block of several folios.
	two := Range{file, 10 * 2 * mib, 4 * mib}
	read(12)
	if !k.ReadAhead(two) {
		t.Fatal("refused")
	}
	testenv.WaitFor(t, "two folios", func() bool {
		if err := k.Poll(); err != nil {
			t.Fatal(err)
		}
		return resident(two) == 4*mib && !k.IsReading(two)
	})
	if n := resident(whole); huge(10) != 2*mib || huge(11) != 2*mib || n != 6*mib {
		t.Errorf("a block of two folios: %d and %d bytes lie in large ones, %d are in memory; want 2, 2 and 6 MiB",
			huge(10), huge(11), n)
	}
	read(31) // the last of the file: nothing follows
	if n := huge(31); n != 2*mib {
		t.Errorf("the last block: %d bytes lie in a large folio, want %d", n, 2*mib)
	}
	// Blocks that somebody else has read in single pages say nothing about the file system.
	m := k.files[file]
	m.reads, m.inspected, m.smallInRow = 0, 0, 0
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	read(28)
	for b := int64(27); b > 27-2*inspectFirst; b-- {
		if _, err := f.ReadAt(make([]byte, 1), block(b).Offset); err != nil {
			t.Fatal(err)
		}
		if n := resident(block(b)); n == 0 || n == 2*mib {
			t.Fatalf("%d bytes of block %d are in memory, want a part of it", n, b)
		}
		read(b)
	}
	if k.BlockBytes() != 2*mib {
		t.Errorf("large folios were given up: blocks of %d bytes, want %d", k.BlockBytes(), 2*mib)
	}
}

var touched byte // takes loads: the compiler drops a load whose value is not used

// Reads in the order of the file are all of large folios: the first one does not wait, and neither does the
// last one, behind which nothing is in memory. Several are read at once. Afterwards a folio waits again for
// what follows it.
func TestSetInOrder(t *testing.T) {
	const blocks = 16
	m := newMappedFile(t, 2*blocks*2*mib)
	defer m.close()
	if m.k.BlockBytes() != 2*mib {
		t.Skipf("no large folios on this file system: blocks of %d", m.k.BlockBytes())
	}
	block := func(i int64) Range { return m.part(i*2*mib, 2*mib) }
	if err := m.k.SetInOrder(true); err != nil || !m.k.CanReadApart() {
		t.Fatalf("in order: %v, can read apart: %v, want true", err, m.k.CanReadApart())
	}
	for i := range int64(blocks) {
		if !m.k.ReadAhead(block(i)) {
			t.Fatal("refused")
		}
	}
	if err := m.k.beginWaiting(); err != nil {
		t.Fatal(err)
	}
	if len(m.k.folioReads) != blocks || len(m.k.waitingFolios) != 0 {
		t.Errorf("%d reads are under way, %d wait for what follows them; want %d and 0",
			len(m.k.folioReads), len(m.k.waitingFolios), blocks)
	}
	whole := m.part(0, blocks*2*mib)
	testenv.WaitFor(t, "the blocks to be read", func() bool {
		if err := m.k.Poll(); err != nil {
			t.Fatal(err)
		}
		return !m.k.IsReading(whole)
	})
	if n := m.resident(m.part(0, int64(len(m.mapping)))); n != whole.Length {
		t.Errorf("%d bytes are in memory, want %d", n, whole.Length)
	}
	f := m.k.files[m.file]
	if err := unix.Madvise(f.Part(whole), unix.MADV_POPULATE_READ); err != nil {
		t.Fatal(err)
	}
	if n, err := pagecache.Huge(f.Part(whole)); n != whole.Length || err != nil {
		t.Errorf("%d bytes lie in large folios, want %d, %v", n, whole.Length, err)
	}
	if err := errors.Join(f.Unmap(whole), m.k.SetInOrder(false)); err != nil || m.k.CanReadApart() {
		t.Fatalf("not in order: %v, can read apart: %v, want false", err, m.k.CanReadApart())
	}
	for _, b := range []int64{20, 21} {
		if !m.k.ReadAhead(block(b)) {
			t.Fatal("refused")
		}
	}
	if err := m.k.beginWaiting(); err != nil {
		t.Fatal(err)
	}
	if len(m.k.waitingFolios) != 1 || m.k.waitingFolios[0] != block(20) {
		t.Errorf("waiting for what follows: %v, want %v", m.k.waitingFolios, block(20))
	}
	testenv.WaitFor(t, "these to be read, too", func() bool {
		if err := m.k.Poll(); err != nil {
			t.Fatal(err)
		}
		return m.resident(m.part(20*2*mib, 4*mib)) == 4*mib && !m.k.IsReading(m.part(20*2*mib, 4*mib))
	})
}

// While nothing is read, khugepaged leaves the model alone.
func TestRest(t *testing.T) {
	testenv.NeedRoot(t)
	k := &Kernel{folioBytes: pagecache.FolioBytes()}
	if k.folioBytes == 0 {
		t.Skip("this kernel has no large folios")
	}
	path := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(path, make([]byte, 4*mib), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(proc.Place{Path: path, ID: idOf(t, path)}, k.folioBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	k.files = []*File{f}
	for _, step := range []struct {
		do   func() error
		want string
	}{{func() error { return nil }, "hg"}, {k.Rest, "nh"}, {k.Wake, "hg"}} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if flags := vmFlags(t, f.Mapping); !slices.Contains(flags, step.want) {
			t.Errorf("flags of the mapping: %v, want %s among them", flags, step.want)
		}
	}
}

// A range that is locked has its neighbours reclaimable, although both are in one large folio: that the target has
// read, that was read ahead, or that mlock would read.
func TestLockPartOfAFolio(t *testing.T) {
	for name, part := range map[string][2]int64{
		"begin": {2 * mib, mib}, "end": {3 * mib, mib}, "middle": {2*mib + 512<<10, mib}, "two": {mib, 4 * mib},
	} {
		for _, reader := range []string{"target", "ahead", "nobody"} {
			t.Run(name+" read by "+reader, func(t *testing.T) { lockPart(t, part[0], part[1], reader) })
		}
	}
}

// lockPart locks a range of a file of which the reader has read all, and frees the rest.
func lockPart(t *testing.T, offset, length int64, reader string) {
	m := newMappedFile(t, 8*mib)
	defer m.close()
	if m.k.BlockBytes() != 2*mib {
		t.Skipf("no large folios on this file system: blocks of %d", m.k.BlockBytes())
	}
	whole, locked := m.part(0, 8*mib), m.part(offset, length)
	switch reader {
	case "target":
		if err := unix.Madvise(m.mapping, unix.MADV_HUGEPAGE); err != nil {
			t.Fatal(err)
		}
		if m.touch(whole); countInFolios(t, m.mapping[:2*mib]) == 0 {
			t.Skip("the target got no large folio: memory is fragmented")
		}
	case "ahead":
		m.k.ReadAhead(whole)
		testenv.WaitFor(t, "the file to be read", func() bool {
			if err := m.k.Poll(); err != nil {
				t.Fatal(err)
			}
			return m.resident(whole) == whole.Length && !m.k.IsReading(whole)
		})
	}
	if err := m.k.Lock(locked); err != nil {
		t.Fatal(err)
	}
	// A page that another processor is working on is skipped.
	testenv.WaitFor(t, "all but the locked range to be freed", func() bool {
		if err := errors.Join(m.k.PageOut(whole), m.k.Poll()); err != nil {
			t.Fatal(err)
		}
		return m.resident(whole) == locked.Length
	})
	if n := m.resident(locked); n != locked.Length { // or something else is left
		t.Errorf("%d bytes of what is locked are in memory, want %d", n, locked.Length)
	}
}

// vmFlags are the kernel's flags of one of this process's mappings (proc_pid_smaps(5)).
func vmFlags(t *testing.T, mapping []byte) []string {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(mapping)))
	_, after, found := strings.Cut(string(smaps), fmt.Sprintf("%x-", start))
	_, after, flagged := strings.Cut(after, "VmFlags: ")
	if !found || !flagged {
		t.Fatal("the mapping is not in smaps")
	}
	line, _, _ := strings.Cut(after, "\n")
	return strings.Fields(line)
}

// One large folio more is read at once than the disk delivers while one is read by itself, and never fewer
// than before.
func TestBlocksAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(path, make([]byte, 16*mib), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(unix.Fsync(int(f.Fd())), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
		t.Fatal(err)
	}
	k, err := NewKernel(os.Getpid(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	file, size, err := k.Open(path, idOf(t, path))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := k.ResidentBytes(Range{file, 0, size}); n != 0 || err != nil {
		t.Errorf("looking for large folios has left %d bytes in memory, want 0, %v", n, err)
	}
	m := k.files[file]
	if m.FolioBytes == 0 {
		t.Skipf("no large folios on this file system: blocks of %d", k.BlockBytes())
	}
	if m.readTime <= 0 || m.readTime > time.Second {
		t.Errorf("a large folio takes %v by itself, want up to %v", m.readTime, time.Second)
	}
	m.readTime = time.Millisecond
	if err := k.NoteDiskRate(1e12); err != nil || k.BlocksAtOnce() != 3 {
		t.Errorf("before enough reads: %d at once, want 3, %v", k.BlocksAtOnce(), err)
	}
	m.reads = settledReads
	// folios is the rate of a disk that delivers n large folios in that time.
	folios := func(n float64) float64 { return n * float64(m.FolioBytes) / m.readTime.Seconds() }
	for _, s := range []struct {
		rate float64 // bytes per second
		want int
	}{{0, 3}, {folios(0.8), 3}, {folios(1.9), 3}, {folios(3.5), 5}, {folios(2), 5}, {folios(100), 8}} {
		if err := k.NoteDiskRate(s.rate); err != nil {
			t.Fatal(err)
		}
		if got := k.BlocksAtOnce(); got != s.want {
			t.Errorf("at %.0f bytes per second %d are read at once, want %d", s.rate, got, s.want)
		}
	}
}
