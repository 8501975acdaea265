package pages

// This file tests what is asked of the kernel for experts: reads at once, and paging out beside the control
// loop.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/testenv"
)

// mappedFile is a file of which nothing is in memory. This process, which is the target here, maps it.
type mappedFile struct {
	t       *testing.T
	k       *Kernel
	file    int
	mapping []byte
	touched byte
}

func newMappedFile(t *testing.T, size int) *mappedFile {
	t.Helper()
	testenv.NeedRoot(t) // to page out a process
	path := filepath.Join(t.TempDir(), "model")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(bytes.Repeat([]byte{1}, size)); err != nil {
		t.Fatal(err)
	}
	// A page that is not written back stays in memory.
	if err := errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
		t.Fatal(err)
	}
	m := &mappedFile{t: t}
	if m.mapping, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(m.mapping) })
	if err := unix.Madvise(m.mapping, unix.MADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	if m.k, err = NewKernel(os.Getpid(), slog.New(slog.NewTextHandler(t.Output(), nil))); err != nil {
		t.Fatal(err)
	}
	m.k.SetGuardian([]string{"env", guardianVariable + "=1", os.Args[0]})
	if m.file, _, err = m.k.Open(path, idOf(t, path)); err != nil {
		t.Fatal(err)
	}
	m.k.Map(m.file, uint64(uintptr(unsafe.Pointer(&m.mapping[0]))))
	if n := m.resident(m.part(0, int64(size))); n != 0 {
		m.k.Close()
		t.Skipf("%d bytes stay in memory: this file system does not give its pages back", n)
	}
	return m
}

func (m *mappedFile) part(offset, length int64) Range { return Range{m.file, offset, length} }

func (m *mappedFile) resident(r Range) int64 {
	m.t.Helper()
	n, err := m.k.ResidentBytes(r)
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

func (m *mappedFile) touch(r Range) {
	for at := r.Offset; at < r.End(); at += PageSize {
		m.touched += m.mapping[at] // the compiler drops a load whose value is not used
	}
}

func (m *mappedFile) read(r Range) {
	m.t.Helper()
	// A kernel that reclaims what is cold may take a page at any time.
	testenv.WaitFor(m.t, "a range to be read", func() bool {
		if err := errors.Join(m.k.ReadNow(r), m.k.Poll()); err != nil {
			m.t.Fatal(err)
		}
		return m.resident(r) == r.Length
	})
}

// evict frees a range, and waits until nothing more is to be freed: what is read meanwhile might be freed, too.
func (m *mappedFile) evict(r Range) {
	m.t.Helper()
	// A page that another processor is working on is skipped.
	testenv.WaitFor(m.t, "a range to be freed", func() bool {
		if !m.k.Evict(r) {
			m.t.Fatal("refused")
		}
		return m.resident(r) == 0
	})
	testenv.WaitFor(m.t, "nothing more to be freed", func() bool {
		e := m.k.evictor
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.queue) == 0 && e.freeing.Length == 0
	})
}

func (m *mappedFile) close() {
	m.t.Helper()
	if err := m.k.Close(); err != nil {
		m.t.Error(err)
	}
}

func openFiles(t *testing.T) []string {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, n := range names {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", n.Name()))
		if err == nil {
			all = append(all, n.Name()+" "+target)
		}
	}
	ofDirectory := func(s string) bool { return strings.Contains(s, "/fd") } // opened by ReadDir
	return slices.DeleteFunc(all, ofDirectory)
}

// ReadNow reads a range, and nothing else. Evict frees one, and nothing else, whether or not the target maps
// it.
func TestReadNowAndEvict(t *testing.T) {
	m := newMappedFile(t, 16*mib)
	defer m.close()
	inside := m.part(mib+PageSize, 3*mib) // as slices lie, across blocks
	m.read(inside)
	if n := m.resident(m.part(0, 16*mib)); n != inside.Length {
		t.Errorf("%d bytes are in memory, want %d", n, inside.Length)
	}
	used, unused, stays := m.part(6*mib, mib), m.part(8*mib, mib), m.part(7*mib, mib)
	for _, r := range []Range{used, unused, stays} {
		m.read(r)
	}
	m.touch(used)
	m.touch(stays)
	for _, r := range []Range{used, unused} {
		m.evict(r)
	}
	if n := m.resident(stays); n != mib {
		t.Errorf("%d bytes of the neighbour are left, want %d", n, mib)
	}
}

// A long range that cannot be read in pieces is read as large folios, as far as it holds whole ones. Unless
// marks do nothing, the last of these is read in pages. Nothing else is read. The range is freed as a whole.
func TestReadNowFolios(t *testing.T) {
	for smallReadahead, want := range map[bool]int64{false: 6 * mib, true: 8 * mib} {
		m := newMappedFile(t, 32*mib)
		defer m.close()
		if m.k.BlockBytes() != 2*mib {
			t.Skipf("no large folios on this file system: blocks of %d", m.k.BlockBytes())
		}
		m.k.SetGuardian(nil)
		if smallReadahead {
			if err := m.k.NoteSmallReadahead(true); err != nil {
				t.Fatal(err)
			}
		}
		slice := m.part(3*mib, 9*mib) // whole folios from 4 to 12
		if err := m.k.ReadNow(slice); err != nil {
			t.Fatal(err)
		}
		testenv.WaitFor(t, "a slice to be read", func() bool {
			if err := m.k.Poll(); err != nil {
				t.Fatal(err)
			}
			return m.resident(slice) == slice.Length && !m.k.IsReading(slice)
		})
		if n := m.resident(m.part(0, 32*mib)); n != slice.Length {
			t.Errorf("small readahead %v: %d bytes are in memory, want %d", smallReadahead, n, slice.Length)
		}
		f := m.k.files[m.file]
		folios := int64(0)
		for at := int64(4 * mib); at < 12*mib; at += 2 * mib {
			part := f.Part(m.part(at, 2*mib))
			if err := unix.Madvise(part, unix.MADV_POPULATE_READ); err != nil {
				t.Fatal(err)
			}
			n, err := pagecache.Huge(part)
			if err != nil {
				t.Fatal(err)
			}
			folios += n
		}
		if err := f.Unmap(slice); err != nil {
			t.Fatal(err)
		}
		if folios != want {
			t.Errorf("small readahead %v: %d bytes lie in large folios, want %d", smallReadahead, folios, want)
		}
		m.touch(slice)
		if n := m.resident(m.part(0, 32*mib)); n != slice.Length {
			t.Errorf("small readahead %v: %d bytes are in memory after the target's touch, want %d",
				smallReadahead, n, slice.Length)
		}
		m.evict(slice)
	}
}

// countInFolios counts the pages of memory that was touched which lie in folios of several pages.
func countInFolios(t *testing.T, mem []byte) (pages int) {
	t.Helper()
	word := func(path string, at uint64) uint64 {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var b [8]byte
		if _, err := f.ReadAt(b[:], int64(8*at)); err != nil {
			t.Fatal(err)
		}
		return binary.NativeEndian.Uint64(b[:])
	}
	const present, frame, headOrTail = 1 << 63, 1<<55 - 1, 3 << 15
	for at := range mem {
		if int64(at)%PageSize != 0 {
			continue
		}
		entry := word("/proc/self/pagemap", uint64(uintptr(unsafe.Pointer(&mem[at])))/uint64(PageSize))
		if entry&present != 0 && word("/proc/kpageflags", entry&frame)&headOrTail != 0 {
			pages++
		}
	}
	return pages
}

// A slice is read in folios of several pages, and nothing else is read. The target's touch reads no more,
// even where it reads around its faults. The slice is freed as a whole.
func TestReadNowSlice(t *testing.T) {
	for _, smallReadahead := range []bool{false, true} {
		m := newMappedFile(t, 16*mib)
		defer m.close()
		if m.k.slicesFor(m.part(0, mib)) == nil {
			t.Skip("no large folios on this file system, or its readahead cannot be changed")
		}
		advice := unix.MADV_NORMAL
		if smallReadahead {
			advice = unix.MADV_RANDOM
		}
		if err := errors.Join(m.k.NoteSmallReadahead(smallReadahead), unix.Madvise(m.mapping, advice)); err != nil {
			t.Fatal(err)
		}
		for i, slice := range []Range{
			m.part(mib+100, mib+5000),
			m.part(3*mib-PageSize, mib),
			m.part(8*mib+9*PageSize+1, 2*mib),
			m.part(5*mib+3*PageSize+17, 9*mib+300*1024),
		} {
			whole := m.part(slice.Offset&^(PageSize-1), 0)
			whole.Length = (slice.End()+PageSize-1)&^(PageSize-1) - whole.Offset
			m.k.Announce(slice)
			// A disk may take longer than ReadNow waits for the first page (maxFirstPageWait). Then it reads
			// single pages.
			reader := m.k.slicesFor(slice)
			for _, p := range SlicePieces(slice, m.k.SlicePieceBytes(m.file)) {
				testenv.WaitFor(t, "the first page", func() bool {
					return readNoWait(reader.marks, reader.oneByte, p.Offset/PageSize)
				})
			}
			asked := false
			testenv.WaitFor(t, "a slice to be read", func() bool {
				if err := m.k.ReadNow(slice); err != nil {
					t.Fatal(err)
				}
				// What is asked for again is in memory for a part, and can be left to workers.
				if !asked && m.k.IsReading(slice) && maxRequestBytes(m.k.files[m.file].File) < math.MaxInt64 {
					t.Fatalf("small readahead %v, slice %d: some of it was left to workers", smallReadahead, i)
				}
				asked = true
				arrived, err := m.k.HasArrived(slice)
				if err := errors.Join(err, m.k.Poll()); err != nil {
					t.Fatal(err)
				}
				return arrived && m.resident(whole) == whole.Length
			})
			m.touch(whole)
			if n := m.resident(m.part(0, 16*mib)); n != whole.Length {
				t.Errorf("small readahead %v, slice %d: %d bytes are in memory, want %d",
					smallReadahead, i, n, whole.Length)
			}
			all := int(whole.Length / PageSize)
			if n := countInFolios(t, m.mapping[whole.Offset:whole.End()]); n < all*3/4 {
				t.Errorf("small readahead %v, slice %d: %d pages lie in folios of several, want at least 3/4 of %d",
					smallReadahead, i, n, all)
			}
			m.evict(whole)
		}
	}
}

// What is read again while it waits to be freed stays, even if it is still in memory.
func TestReadNowCancelsEviction(t *testing.T) {
	m := newMappedFile(t, 8*mib)
	defer m.close()
	for name, read := range map[string]func(Range) error{
		"at once": m.k.ReadNow,
		"ahead": func(r Range) error {
			if !m.k.ReadAhead(r) {
				t.Fatal("refused")
			}
			return m.k.Poll()
		},
	} {
		gate, begun, freed := make(chan struct{}), make(chan struct{}, 2), make(chan struct{}, 2)
		m.k.evictor = newEvictor(func(e eviction) error {
			begun <- struct{}{}
			<-gate
			defer func() { freed <- struct{}{} }()
			return m.k.freeNow(e)
		}, eviction.readAgain, m.k.log)
		first, second := m.part(0, mib), m.part(4*mib, mib)
		m.read(first)
		m.read(second)
		m.k.Evict(first)
		<-begun
		m.k.Evict(second)
		if err := read(second); err != nil {
			t.Fatal(err)
		}
		close(gate)
		<-freed
		m.k.evictor.close()
		m.k.evictor = nil
		if n := len(freed); n != 0 || m.resident(second) != mib {
			t.Errorf("%s: %d more ranges were freed, want 0; %d bytes are left of what was read again, want %d",
				name, n, m.resident(second), mib)
		}
	}
}

// What is asked for at once while it is being freed is in memory after that, although it was there when it
// was asked for.
func TestReadNowWhileEvicting(t *testing.T) {
	m := newMappedFile(t, 8*mib)
	defer m.close()
	gate, begun, freed := make(chan struct{}), make(chan struct{}, 1), make(chan struct{})
	m.k.evictor = newEvictor(func(e eviction) error {
		begun <- struct{}{}
		<-gate
		defer close(freed)
		for range 1000 { // a page that another processor is working on, or that is being read, is skipped
			if err := m.k.freeNow(e); err != nil {
				return err
			}
			if n, err := m.k.ResidentBytes(e.Range); n == 0 || err != nil {
				return err
			}
			time.Sleep(5 * time.Millisecond)
		}
		return errors.New("it stays in memory")
	}, eviction.readAgain, m.k.log)
	r, wanted := m.part(2*mib, mib), m.part(2*mib+PageSize, mib/2)
	m.read(r)
	m.k.Evict(r)
	<-begun
	if err := m.k.ReadNow(wanted); err != nil {
		t.Fatal(err)
	}
	close(gate)
	<-freed
	testenv.WaitFor(t, "what was freed to be read again", func() bool {
		arrived, err := m.k.HasArrived(wanted)
		if err != nil {
			t.Fatal(err)
		}
		return arrived
	})
	if n := m.resident(r); n == 0 || n > wanted.Length {
		t.Errorf("%d bytes are in memory again, want up to %d", n, wanted.Length)
	}
}

// What is not in memory has not arrived. What was read has, after a moment.
func TestHasArrived(t *testing.T) {
	m := newMappedFile(t, 8*mib)
	defer m.close()
	inside := m.part(mib+PageSize, 2*mib)
	arrived := func(r Range) bool {
		t.Helper()
		is, err := m.k.HasArrived(r)
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	if arrived(inside) {
		t.Error("a range that nobody read has arrived")
	}
	testenv.WaitFor(t, "a range to arrive", func() bool {
		m.read(inside) // again, if somebody takes a page
		return arrived(inside)
	})
	if arrived(m.part(mib+PageSize, 3*mib)) {
		t.Error("a range has arrived, but its end was not read")
	}
	if !arrived(m.part(4*mib, 0)) {
		t.Error("an empty range has not arrived")
	}
}

// Close frees no more ranges, and leaves nothing behind.
func TestCloseWhileEvicting(t *testing.T) {
	testenv.NeedRoot(t)
	ignore := goleak.IgnoreCurrent()
	before := openFiles(t)
	m := newMappedFile(t, 16*mib)
	m.read(m.part(0, 16*mib))
	n := 0
	for i := range int64(2 * maxEvictions) {
		if m.k.Evict(m.part(i*PageSize%(16*mib), PageSize)) {
			n++
		}
	}
	m.close()
	if n == 0 {
		t.Error("nothing could be evicted")
	}
	goleak.VerifyNone(t, ignore)
	testenv.WaitFor(t, "files to be closed", func() bool { return len(openFiles(t)) <= len(before) })
}
