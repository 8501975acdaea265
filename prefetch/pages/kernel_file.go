package pages

// This file opens and maps a file of the model, and finds out whether its file system has large folios.

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

// File is a file of the model. It is open for reading ahead, and mapped for locking and for reading large
// folios. Only locked pages of the mapping stay touched. MADV_PAGEOUT skips pages that two processes map, so
// what is streamed must not be mapped here.
type File struct {
	Path       string
	File       *os.File // for reading ahead
	Mapped     *os.File // the same file, opened once more: see OpenFile
	info       os.FileInfo
	residency  *pagecache.Residency
	Size       int64  // bytes
	PieceBytes int64  // bytes of one request to read single pages ahead
	base       uint64 // address of the first byte in the target
	Mapping    []byte
	Reserved   []byte // address space, with the mapping in it

	// Slices of experts.
	slices      *sliceReader // nil: none was needed, or slices are read in single pages
	triedSlices bool         // it was tried to make one
	maxPages    int64        // that one read of a slice takes, an odd number

	// Large folios.
	FolioBytes int64         // of a large folio; 0 if the file system seems to have none
	readTime   time.Duration // that reading one takes by itself; 0: not known
	reads      int           // of large folios
	inspected  int           // how many of these reads were inspected
	smallInRow int           // how many of them, up to the last one, gave no large folio
}

// Bounds of File.PieceBytes. FADV_WILLNEED reads no more of a range than the device's readahead or its
// largest request, and reports no error.
const (
	minPiece = 128 << 10 // Linux's usual readahead
	maxPiece = MinBlock
)

// The first inspectFirst reads are inspected, and then one of inspectEvery. Large folios are given up after
// inspectFirst small ones in a row at the beginning, because the file system has none then. Later they are
// given up after maxSmallInRow, because memory is fragmented.
const (
	inspectFirst  = 3
	inspectEvery  = 64
	maxSmallInRow = 8
)

// OpenFile opens and maps a file. folio is the size of large folios to try, in bytes, or 0. The error wraps
// pagecache.ErrUnknown if the kernel does not tell which pages of the file are in memory.
//
// The file is opened twice. The kernel notes at an open file how far it reads ahead, and FUSE skips what is
// advised through a file of which a fault has noted that, as soon as some ten requests wait (fuse_readahead).
// So it is mapped through another open file than the one for advice. Opening a file on FUSE drops its pages
// from the page cache, unless the file system says otherwise (FOPEN_KEEP_CACHE): both are opened at once.
func OpenFile(at proc.Place, folio int64) (*File, error) {
	f, err := at.Open()
	if err != nil {
		return nil, fmt.Errorf("open the model: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("stat the model: %w", err), f.Close())
	}
	mapped, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) // the same file, wherever its name leads by now
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the model once more: %w", err), f.Close())
	}
	m := &File{
		Path: at.Path, File: f, Mapped: mapped, info: info, Size: info.Size(),
		FolioBytes: folio, PieceBytes: pieceBytes(f), maxPages: maxReadPages(f),
	}
	if err = m.mapAndAdvise(); err == nil {
		m.residency = pagecache.ResidencyOf(f, m.Mapping)
		if err = m.residency.Check(); err == nil {
			m.residency.LookBelow()
		}
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Resident returns how many bytes of a range are in the page cache: see [pagecache.Residency.Bytes].
func (m *File) Resident(r Range) (int64, error) { return m.residency.Bytes(r.Offset, r.Length) }

// mapAndAdvise maps the file, and advises the kernel how it is read. The caller must call unmapAll, even
// after an error.
func (m *File) mapAndAdvise() error {
	if err := m.MapAligned(m.FolioBytes); err != nil {
		return fmt.Errorf("map %s: %w", m.Path, err)
	}
	if m.FolioBytes > 0 && unix.Madvise(m.Mapping, unix.MADV_HUGEPAGE) != nil { // EINVAL: this kernel has none
		m.FolioBytes = 0
	}
	if m.FolioBytes == 0 {
		if err := m.giveUpFolios(); err != nil {
			return err
		}
	}
	// Reads through the descriptor must not leave readahead marks. Those would make the target read ahead in
	// the order of the file.
	for _, f := range []*os.File{m.File, m.Mapped} {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
			return fmt.Errorf("advise %s: %w", m.Path, err)
		}
	}
	return nil
}

// MapAligned maps the file, through Mapped, so that its large folios lie at multiples of their size: only then
// one page table entry maps each. align is that size in bytes; 0 stands for a page.
func (m *File) MapAligned(align int64) error {
	align = max(align, PageSize)
	var err error
	const addressesOnly = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if m.Reserved, err = unix.Mmap(-1, 0, int(m.Size+align), unix.PROT_NONE, addressesOnly); err != nil {
		return err
	}
	start := unsafe.Pointer(unsafe.SliceData(m.Reserved))
	start = unsafe.Add(start, (align-int64(uintptr(start))%align)%align)
	const inPlace = unix.MAP_SHARED | unix.MAP_FIXED
	at, err := unix.MmapPtr(int(m.Mapped.Fd()), 0, start, uintptr(m.Size), unix.PROT_READ, inPlace)
	if err != nil {
		return err
	}
	m.Mapping = unsafe.Slice((*byte)(at), m.Size)
	return nil
}

// giveUpFolios makes the file one that is read in single pages.
func (m *File) giveUpFolios() error {
	if m.FolioBytes > 0 {
		m.FolioBytes = 0
		if err := unix.Madvise(m.Mapping, unix.MADV_NOHUGEPAGE); err != nil {
			return fmt.Errorf("advise the mapping of %s: %w", m.Path, err)
		}
	}
	return m.adviseOneByOne() // otherwise a fault of mlock would read around itself
}

// adviseOneByOne makes a fault read one page or one large folio. Otherwise it reads around itself, or two
// large folios.
func (m *File) adviseOneByOne() error {
	if err := unix.Madvise(m.Mapping, unix.MADV_RANDOM); err != nil {
		return fmt.Errorf("advise the mapping of %s: %w", m.Path, err)
	}
	return nil
}

// inMemoryShare of the least time that a read took before is too short for a read: the folio was in memory
// already.
const inMemoryShare = 8

// noteReadTime notes how long a read took that is over. A short one, at the end of the file, says nothing.
func (m *File) noteReadTime(r folioRead, took time.Duration) {
	if r.Length == m.FolioBytes && took > m.readTime/inMemoryShare {
		m.readTime = min(m.readTime, took)
	}
}

// Probe reads some large folios, each by itself, to see whether the file system has any, and how long a read
// takes. It takes parts of the file that are not in memory, beginning at its end, and drops them again.
func (m *File) Probe() error {
	if m.FolioBytes == 0 {
		return nil
	}
	if err := m.adviseOneByOne(); err != nil {
		return err
	}
	probed := 0
	for at := (m.Size/m.FolioBytes - 1) * m.FolioBytes; at >= 0 && probed < inspectFirst; at -= m.FolioBytes {
		r := Range{Offset: at, Length: m.FolioBytes}
		two := Range{Offset: at, Length: min(2*m.FolioBytes, m.Size-at)}
		if there, err := m.Resident(two); err != nil {
			return err
		} else if there > 0 {
			continue
		}
		probed++
		begun := time.Now()
		err := unix.Madvise(m.Part(r), unix.MADV_POPULATE_READ)
		took := time.Since(begun)
		gone := m.inspect(r)
		if e := m.Unmap(r); e != nil {
			return e
		}
		if e := unix.Fadvise(int(m.File.Fd()), r.Offset, 2*m.FolioBytes, unix.FADV_DONTNEED); e != nil {
			return fmt.Errorf("drop pages of %s: %w", m.Path, e)
		}
		if gone || errors.Is(err, unix.EINVAL) { // before Linux 5.14 there is no MADV_POPULATE_READ
			return m.giveUpFolios()
		}
		if err == nil && m.smallInRow == 0 && (m.readTime == 0 || took < m.readTime) {
			m.readTime = took
		}
	}
	if err := unix.Madvise(m.Mapping, unix.MADV_NORMAL); err != nil {
		return fmt.Errorf("advise the mapping of %s: %w", m.Path, err)
	}
	return nil
}

// isWholeFolios says whether a range is made of large folios. The end of the file may cut the last one.
func (m *File) isWholeFolios(r Range) bool {
	return m.FolioBytes > 0 && r.Offset%m.FolioBytes == 0 && (r.Length%m.FolioBytes == 0 || r.End() >= m.Size)
}

// innerFolios are the large folios within a range that can be read as such: all of them, or all but the last
// one, which has to be in memory for the one before it (see kernel.go). The length is 0 if there are none.
func (m *File) innerFolios(r Range, all bool) Range {
	if m.FolioBytes == 0 {
		return Range{File: r.File}
	}
	first, end := (r.Offset+m.FolioBytes-1)/m.FolioBytes*m.FolioBytes, r.End()/m.FolioBytes*m.FolioBytes
	if !all {
		end -= m.FolioBytes
	}
	return Range{r.File, first, max(end-first, 0)}
}

// shouldInspect says whether the next read of a large folio is to be inspected.
func (m *File) shouldInspect() bool { return m.inspected < inspectFirst || m.reads%inspectEvery == 0 }

// inspect looks whether a range that was read, and is mapped, lies in large folios. It says whether large
// folios are to be given up.
func (m *File) inspect(r Range) (givenUp bool) {
	m.inspected++
	huge, err := pagecache.Huge(m.Part(r))
	if err == nil && huge >= min(r.Length, m.FolioBytes) {
		m.smallInRow = 0
		return false
	}
	m.smallInRow++ // before Linux 6.7 it is not known
	return m.smallInRow == m.inspected && m.smallInRow >= inspectFirst || m.smallInRow >= maxSmallInRow
}

// pieceBytes is how many bytes of a file one FADV_WILLNEED may ask for.
func pieceBytes(f *os.File) int64 {
	return min(max(readAheadBytes(f), minPiece), maxPiece) / PageSize * PageSize
}

// readAheadBytes is the readahead of the device that holds a file, as the kernel knows it by the file's
// device number.
func readAheadBytes(f *os.File) int64 {
	if bytes, ok := deviceBytes(f, "/sys/class/bdi/%d:%d/read_ahead_kb"); ok {
		return bytes
	}
	return minPiece
}

// deviceBytes reads a number of KiB that the kernel has of the device that holds a file, and returns it in
// bytes. path is that of a file in sysfs, as a format for the device's major and minor number. It returns
// false if there is none.
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

// Part is a range of the mapping.
func (m *File) Part(r Range) []byte { return m.Mapping[r.Offset:min(r.End(), m.Size)] }

// Unmap drops this process's page table entries of a range.
func (m *File) Unmap(r Range) error {
	if err := unix.Madvise(m.Part(r), unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("unmap %d bytes of %s: %w", r.Length, m.Path, err)
	}
	return nil
}

// withOwnMapping maps the pages of a range of the file once more, calls use with that mapping, and unmaps it. Whatever
// is mapped in this process cannot be paged out of the target. A fault in the mapping of the whole file would map more
// than its page: what is in memory of the 64 KiB around it (do_fault_around, mm/memory.c), or all of a large folio
// (filemap_map_pages, mm/filemap.c). In a mapping of the range it maps nothing outside the range.
func (m *File) withOwnMapping(r Range, use func(mapping []byte) error) (err error) {
	first := r.Offset &^ (PageSize - 1)
	length := min(r.End(), m.Size) - first
	if r.Length <= 0 || length <= 0 {
		return nil
	}
	mapping, err := unix.Mmap(int(m.Mapped.Fd()), first, int(length), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %d bytes at %d of %s: %w", length, first, m.Path, err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(mapping)) }()
	advice := unix.MADV_RANDOM // what is missing is read page by page, as in the mapping of the whole file
	if m.FolioBytes > 0 {
		advice = unix.MADV_HUGEPAGE
	}
	if err := unix.Madvise(mapping, advice); err != nil {
		return fmt.Errorf("advise the mapping of %s: %w", m.Path, err)
	}
	return use(mapping)
}

// Close unmaps the file, which undoes all locks, and closes it.
func (m *File) Close() error {
	var err error
	if m.slices != nil {
		err = m.slices.close()
	}
	if m.residency != nil {
		err = errors.Join(err, m.residency.Close())
	}
	return errors.Join(err, m.unmapAll(), m.Mapped.Close(), m.File.Close())
}

// unmapAll undoes MapAligned.
func (m *File) unmapAll() error {
	if m.Reserved == nil {
		return nil
	}
	return unix.Munmap(m.Reserved)
}
