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

// Blocks of a run that are asked for at once are read as large folios, whatever the order, and nothing but them; the
// target finds no readahead mark on them.
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
	// huge is how much of a block this process finds in large folios when it touches it; that is what the target finds.
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
	read(6) // of nothing behind it is known: single pages
	read(3, 4, 5)
	if n := resident(whole); n != 8*mib {
		t.Errorf("%d bytes are in memory, of 4 blocks that were asked for", n)
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
		t.Errorf("%d bytes are in memory after the target touched 8 MiB", n)
	}
	if err := k.PageOut(whole); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "all to be paged out", func() bool {
		if err := k.Poll(); err != nil {
			t.Fatal(err)
		}
		return resident(whole) == 0
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
		t.Errorf("a block of two folios: %d and %d bytes lie in large ones; %d are in memory", huge(10), huge(11), n)
	}
	read(31) // the last of the file: nothing follows
	if n := huge(31); n != 2*mib {
		t.Errorf("the last block: %d bytes lie in a large folio", n)
	}
	// What somebody else has read of blocks in single pages says nothing about the file system.
	m := k.files[file]
	m.reads, m.looked, m.small = 0, 0, 0
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	read(28)
	for b := int64(27); b > 27-2*firstLooks; b-- {
		if _, err := f.ReadAt(make([]byte, 1), block(b).Offset); err != nil {
			t.Fatal(err)
		}
		if n := resident(block(b)); n == 0 || n == 2*mib {
			t.Fatalf("%d bytes of block %d are in memory", n, b)
		}
		read(b)
	}
	if k.BlockBytes() != 2*mib {
		t.Error("large folios were given up")
	}
}

var touched byte // a load that is not used would not be made

// What is used in the order of the file is read so, all of it in large folios: the first one at once, and the last
// one, behind which nothing is in memory. Several are read at once. Afterwards a folio waits for what follows it
// again.
func TestInOrder(t *testing.T) {
	const blocks = 16
	m := newMappedFile(t, 2*blocks*2*mib)
	defer m.close()
	if m.k.BlockBytes() != 2*mib {
		t.Skipf("no large folios on this file system: blocks of %d", m.k.BlockBytes())
	}
	block := func(i int64) Range { return m.part(i*2*mib, 2*mib) }
	if err := m.k.SetInOrder(true); err != nil || !m.k.CanReadApart() {
		t.Fatalf("%v, apart: %v", err, m.k.CanReadApart())
	}
	for i := range int64(blocks) {
		if !m.k.ReadAhead(block(i)) {
			t.Fatal("refused")
		}
	}
	if err := m.k.begin(); err != nil {
		t.Fatal(err)
	}
	if len(m.k.underWay) != blocks || len(m.k.waiting) != 0 {
		t.Errorf("%d reads are under way, %d wait for what follows them", len(m.k.underWay), len(m.k.waiting))
	}
	whole := m.part(0, blocks*2*mib)
	testenv.WaitFor(t, "the blocks to be read", func() bool {
		if err := m.k.Poll(); err != nil {
			t.Fatal(err)
		}
		return !m.k.IsReading(whole)
	})
	if n := m.resident(m.part(0, int64(len(m.mapping)))); n != whole.Length {
		t.Errorf("%d bytes are in memory, of %d that were asked for", n, whole.Length)
	}
	f := m.k.files[m.file]
	if err := unix.Madvise(f.Part(whole), unix.MADV_POPULATE_READ); err != nil {
		t.Fatal(err)
	}
	if n, err := pagecache.Huge(f.Part(whole)); n != whole.Length || err != nil {
		t.Errorf("%d bytes of %d lie in large folios, %v", n, whole.Length, err)
	}
	if err := errors.Join(f.Unmap(whole), m.k.SetInOrder(false)); err != nil || m.k.CanReadApart() {
		t.Fatalf("%v, apart: %v", err, m.k.CanReadApart())
	}
	for _, b := range []int64{20, 21} {
		if !m.k.ReadAhead(block(b)) {
			t.Fatal("refused")
		}
	}
	if err := m.k.begin(); err != nil {
		t.Fatal(err)
	}
	if len(m.k.waiting) != 1 || m.k.waiting[0] != block(20) {
		t.Errorf("what waits for what follows it is %v", m.k.waiting)
	}
	testenv.WaitFor(t, "these to be read, too", func() bool {
		if err := m.k.Poll(); err != nil {
			t.Fatal(err)
		}
		return m.resident(m.part(20*2*mib, 4*mib)) == 4*mib && !m.k.IsReading(m.part(20*2*mib, 4*mib))
	})
}

// While nothing is read khugepaged is to leave the model alone.
func TestRest(t *testing.T) {
	testenv.NeedRoot(t)
	k := &Kernel{folio: pagecache.FolioBytes()}
	if k.folio == 0 {
		t.Skip("this kernel has no large folios")
	}
	path := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(path, make([]byte, 4*mib), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(proc.Place{Path: path, ID: proc.FileID(idOf(t, path))}, k.folio)
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

// vmFlags are the kernel's flags of one of this process's mappings (proc_pid_smaps(5)).
func vmFlags(t *testing.T, mapping []byte) []string {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(smaps), fmt.Sprintf("%x-", uintptr(unsafe.Pointer(unsafe.SliceData(mapping)))))
	_, after, flagged := strings.Cut(after, "VmFlags: ")
	if !found || !flagged {
		t.Fatal("the mapping is not in smaps")
	}
	line, _, _ := strings.Cut(after, "\n")
	return strings.Fields(line)
}

// As many large folios are read at once as the disk brings while one is read by itself, and one; never fewer than
// before.
func TestAtOnce(t *testing.T) {
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
		t.Errorf("looking for large folios has left %d bytes in memory, %v", n, err)
	}
	m := k.files[file]
	if m.FolioBytes == 0 {
		t.Skipf("no large folios on this file system: blocks of %d", k.BlockBytes())
	}
	if m.alone <= 0 || m.alone > time.Second {
		t.Errorf("a large folio takes %v by itself", m.alone)
	}
	m.alone = time.Millisecond
	if err := k.NoteDiskRate(1e12); err != nil || k.BlocksAtOnce() != 3 {
		t.Errorf("before reads have shown more than that: %d at once, %v", k.BlocksAtOnce(), err)
	}
	m.reads = settledReads
	folios := func(n float64) float64 { return n * float64(m.FolioBytes) / m.alone.Seconds() } // a disk that brings n in that time
	for _, s := range []struct {
		delivers float64
		want     int
	}{{0, 3}, {folios(0.8), 3}, {folios(1.9), 3}, {folios(3.5), 5}, {folios(2), 5}, {folios(100), 8}} {
		if err := k.NoteDiskRate(s.delivers); err != nil {
			t.Fatal(err)
		}
		if got := k.BlocksAtOnce(); got != s.want {
			t.Errorf("at %.0f bytes per second %d are read at once, want %d", s.delivers, got, s.want)
		}
	}
}
