package pages

// This file has a file of the model as the levers on the kernel's page cache need it: open, mapped, and known by the
// folios that its file system gives.

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
)

// modelFile is a file of the model, open for reading ahead, and mapped for locking and for reading large folios. Of
// the mapping only locked pages stay touched: MADV_PAGEOUT skips pages that two processes map, so what is streamed
// must not be mapped here.
type File struct {
	Path       string
	File       *os.File
	info       os.FileInfo
	Size       int64
	PieceBytes int64  // bytes of one read ahead by pages
	base       uint64 // address in the target of the first byte
	Mapping    []byte
	Reserved   []byte       // of address space, with the mapping in it
	slices     *sliceReader // nil: slices are read in single pages, or none was
	sliced     bool         // it was tried to make one
	most       int64        // pages that one read of it takes, an odd number

	FolioBytes int64         // bytes of a large folio; 0 if the file system gives none, for all that is known
	alone      time.Duration // that the read of one takes by itself; 0: not known
	reads      int           // of large folios
	looked     int           // at how many of these
	small      int           // and the last so many in a row were none
}

// FADV_WILLNEED reads no more of a range than the device's readahead or its largest request, without an error.
const (
	minPiece = 128 << 10 // Linux's usual readahead
	maxPiece = MinBlock
)

// Whether what was read is a large folio is looked at for the first firstLooks reads, and then for one of lookEvery.
// Folios are given up after firstLooks small ones in a row at the beginning, as the file system has none then, and
// later after lastLooks: memory is fragmented.
const (
	firstLooks = 3
	lastLooks  = 8
	lookEvery  = 64
)

// openModelFile opens and maps a file. folio is the size of large folios to try, or 0.
func OpenFile(at proc.Place, folio int64) (*File, error) {
	f, err := at.Open()
	if err != nil {
		return nil, fmt.Errorf("open the model: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("stat the model: %w", err), f.Close())
	}
	m := &File{Path: at.Path, File: f, info: info, Size: info.Size(), FolioBytes: folio, PieceBytes: pieceOf(f), most: mostPages(f)}
	if err := m.prepare(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// prepare maps the file, and advises the kernel how it is read. The caller must call unmapAll, also after an error.
func (m *File) prepare() error {
	if err := m.MapAligned(m.FolioBytes); err != nil {
		return fmt.Errorf("map %s: %w", m.Path, err)
	}
	if m.FolioBytes > 0 && unix.Madvise(m.Mapping, unix.MADV_HUGEPAGE) != nil { // EINVAL: this kernel has none
		m.FolioBytes = 0
	}
	if m.FolioBytes == 0 {
		if err := m.onlyPages(); err != nil {
			return err
		}
	}
	// Reads through the descriptor must not leave readahead marks, which would make the target read ahead in file
	// order.
	if err := unix.Fadvise(int(m.File.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		return fmt.Errorf("advise %s: %w", m.Path, err)
	}
	return nil
}

// mmap maps the file so that its large folios lie at multiples of their size: only then one page table entry maps each.
func (m *File) MapAligned(align int64) error {
	align = max(align, PageSize)
	var err error
	if m.Reserved, err = unix.Mmap(-1, 0, int(m.Size+align), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE); err != nil {
		return err
	}
	start := unsafe.Pointer(unsafe.SliceData(m.Reserved))
	start = unsafe.Add(start, (align-int64(uintptr(start))%align)%align)
	at, err := unix.MmapPtr(int(m.File.Fd()), 0, start, uintptr(m.Size), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return err
	}
	m.Mapping = unsafe.Slice((*byte)(at), m.Size)
	return nil
}

// onlyPages gives up large folios.
func (m *File) onlyPages() error {
	if m.FolioBytes > 0 {
		m.FolioBytes = 0
		if err := unix.Madvise(m.Mapping, unix.MADV_NOHUGEPAGE); err != nil {
			return fmt.Errorf("advise the mapping of %s: %w", m.Path, err)
		}
	}
	return m.oneByOne() // a fault of mlock must not read around itself
}

// oneByOne has a fault read one page or large folio: else it reads around itself, or two of these.
func (m *File) oneByOne() error {
	if err := unix.Madvise(m.Mapping, unix.MADV_RANDOM); err != nil {
		return fmt.Errorf("advise the mapping of %s: %w", m.Path, err)
	}
	return nil
}

// inMemoryShare of the least time that a read took before is too little for one: what it was to read was in memory.
const inMemoryShare = 8

// took notes how long a read took that is over. Of a short one, at the end of the file, that says nothing.
func (m *File) took(r read, took time.Duration) {
	if r.Length == m.FolioBytes && took > m.alone/inMemoryShare {
		m.alone = min(m.alone, took)
	}
}

// probe reads large folios, one by itself, to see whether the file system has any, and how long that takes. It takes
// what is not in memory, from the end of the file on, and drops it again.
func (m *File) Probe() error {
	if m.FolioBytes == 0 {
		return nil
	}
	if err := m.oneByOne(); err != nil {
		return err
	}
	probed := 0
	for at := (m.Size/m.FolioBytes - 1) * m.FolioBytes; at >= 0 && probed < firstLooks; at -= m.FolioBytes {
		r := Range{Offset: at, Length: m.FolioBytes}
		if there, err := pagecache.Resident(m.File, r.Offset, min(2*m.FolioBytes, m.Size-r.Offset)); err != nil {
			return err
		} else if there > 0 {
			continue
		}
		probed++
		begun := time.Now()
		err := unix.Madvise(m.Part(r), unix.MADV_POPULATE_READ)
		took := time.Since(begun)
		gone := m.look(r)
		if e := m.Unmap(r); e != nil {
			return e
		}
		if e := unix.Fadvise(int(m.File.Fd()), r.Offset, 2*m.FolioBytes, unix.FADV_DONTNEED); e != nil {
			return fmt.Errorf("drop pages of %s: %w", m.Path, e)
		}
		if gone || errors.Is(err, unix.EINVAL) { // before Linux 5.14 there is no MADV_POPULATE_READ
			return m.onlyPages()
		}
		if err == nil && m.small == 0 && (m.alone == 0 || took < m.alone) {
			m.alone = took
		}
	}
	if err := unix.Madvise(m.Mapping, unix.MADV_NORMAL); err != nil {
		return fmt.Errorf("advise the mapping of %s: %w", m.Path, err)
	}
	return nil
}

// wholeFolios says whether a range is made of large folios, the last one as far as the file has it.
func (m *File) wholeFolios(r Range) bool {
	return m.FolioBytes > 0 && r.Offset%m.FolioBytes == 0 && (r.Length%m.FolioBytes == 0 || r.End() >= m.Size)
}

// inner are the large folios within a range that can be read as such: all, or all but the last, which has to be in
// memory for the one before it (see kernel.go). A range of which that leaves none has the length 0.
func (m *File) inner(r Range, all bool) Range {
	if m.FolioBytes == 0 {
		return Range{File: r.File}
	}
	first, end := (r.Offset+m.FolioBytes-1)/m.FolioBytes*m.FolioBytes, r.End()/m.FolioBytes*m.FolioBytes
	if !all {
		end -= m.FolioBytes
	}
	return Range{r.File, first, max(end-first, 0)}
}

// toLook says whether the next read is to be looked at.
func (m *File) toLook() bool { return m.looked < firstLooks || m.reads%lookEvery == 0 }

// look looks whether what was read, and is mapped, lies in large folios. It says whether they are to be given up.
func (m *File) look(r Range) (givenUp bool) {
	m.looked++
	huge, err := pagecache.Huge(m.Part(r))
	if err == nil && huge >= min(r.Length, m.FolioBytes) {
		m.small = 0
		return false
	}
	m.small++ // before Linux 6.7 it is not known
	return m.small == m.looked && m.small >= firstLooks || m.small >= lastLooks
}

// pieceOf is how many bytes of a file may be advised at once.
func pieceOf(f *os.File) int64 {
	return min(max(readAheadBytes(f), minPiece), maxPiece) / PageSize * PageSize
}

// readAheadBytes is the readahead of the device that holds a file, as the kernel knows it by the file's device number.
func readAheadBytes(f *os.File) int64 {
	if bytes, ok := deviceBytes(f, "/sys/class/bdi/%d:%d/read_ahead_kb"); ok {
		return bytes
	}
	return minPiece
}

// deviceBytes is what the kernel says in KiB of the device that holds a file, in a file of sysfs whose path has the
// device's major and minor number; false if it says nothing.
func deviceBytes(f *os.File, path string) (int64, bool) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return 0, false
	}
	data, err := os.ReadFile(fmt.Sprintf(path, unix.Major(stat.Dev), unix.Minor(stat.Dev)))
	if err != nil {
		return 0, false
	}
	kib, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 32)
	return kib << 10, err == nil
}

// part is a range of the mapping.
func (m *File) Part(r Range) []byte { return m.Mapping[r.Offset:min(r.End(), m.Size)] }

// unmap drops this process's page table entries of a range.
func (m *File) Unmap(r Range) error {
	if err := unix.Madvise(m.Part(r), unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("unmap %d bytes of %s: %w", r.Length, m.Path, err)
	}
	return nil
}

// close unmaps the file, which undoes all locks.
func (m *File) Close() error {
	var err error
	if m.slices != nil {
		err = m.slices.close()
	}
	return errors.Join(err, m.unmapAll(), m.File.Close())
}

// unmapAll undoes mmap.
func (m *File) unmapAll() error {
	if m.Reserved == nil {
		return nil
	}
	return unix.Munmap(m.Reserved)
}
