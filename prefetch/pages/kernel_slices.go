package pages

// This file reads slices of experts in large folios, begun on the caller's thread. A slice begins and ends anywhere,
// so folios of 2 MiB (kernel.go) would hold its neighbours, too.
//
// Linux has no call that reads a range in folios of whatever size fits. But its readahead does so when a program
// reads on to a page that readahead has marked (page_cache_async_ra, mm/readahead.c): then as many pages as the
// program asks for are read, in folios as large as their alignment allows, up to 2 MiB. So reads that do not wait
// (RWF_NOWAIT) do it:
//
//  1. of a byte of the slice's first page, which stays in memory: this descriptor has now read up to there,
//  2. of a byte of the next page with the same descriptor, which looks like a program that reads on: two pages are read, the second one is marked,
//  3. of the rest of the slice from that page on, by another descriptor, which is known for nothing. The size of its folios grows with each such read, and falls only where it misses, which it never does.
//     What it reads first is marked, too: a touch of the target, or the next such read, would read on. So the first descriptor asks for that page, which takes the mark away, and reads nothing, as what follows
//     is in memory.
//
// How many pages that reads follows from the descriptors' own readahead, which is therefore made small when they are
// opened, and from what is asked for, which has to be an odd number of pages: else Linux cuts it to a multiple of a
// power of two. It is no more than the disk takes in one request (ractl_max_pages): a longer slice is read in pieces,
// of each of which the first page stays in memory. Before Linux 6.16 folios have four pages. What is missing
// afterwards, for whatever reason, is read in single pages.

import (
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/prefetch/readahead"
)

// sliceReader reads slices of a file in large folios.
type sliceReader struct {
	marks, reader *os.File
	nowhere       []byte // cannot be written to: what is in memory already is not copied
	first         []byte // one byte
}

const (
	// Pieces of MinSlice are read so, at least: of a smaller one the single pages at its ends are too large a part.
	// None is longer than mostPiece.
	MinSlice  = 256 << 10
	mostPiece = 8 << 20
	// markedPages are read by the second read.
	markedPages = 2
)

// slicePieces cuts a slice in pieces. Each begins with a page: the first one with the page in which the slice begins.
// 0: they may have any length.
func SlicePieces(slice Range, length int64) (pieces []Range) {
	if length <= 0 {
		return []Range{slice}
	}
	for at := slice.Offset &^ (PageSize - 1); at < slice.End(); at += length {
		first, end := max(at, slice.Offset), min(at+length, slice.End())
		pieces = append(pieces, Range{slice.File, first, end - first})
	}
	return pieces
}

// SlicePieceBytes implements Levers.
func (k *Kernel) SlicePieceBytes(file int) int64 {
	f := k.files[file]
	if f.FolioBytes == 0 || k.guardian == nil {
		return 0
	}
	return (1 + markedPages + f.most + 1) * PageSize // what is read at last is a single page, see readPiece
}

// mostPages is how many pages one read of a file takes at most, an odd number.
func mostPages(f *os.File) int64 {
	most := max(min(requestBytes(f), mostPiece)/PageSize, 1)
	return most - 1 + most&1
}

// requestBytes is the largest request that the disk of a file takes: the kernel's number of its pages is io_pages of
// the bdi (blk_apply_bdi_limits, block/blk-settings.c). Where it is not known it is as if there were no bound.
func requestBytes(f *os.File) int64 {
	for _, of := range []string{"/sys/dev/block/%d:%d/queue/max_sectors_kb", "/sys/dev/block/%d:%d/../queue/max_sectors_kb"} { // a disk, or a partition of one
		if bytes, ok := deviceBytes(f, of); ok && bytes > 0 {
			return bytes
		}
	}
	return math.MaxInt64
}

// openSlices prepares for that. guardian is as in readahead.ShrinkOwn.
func openSlices(at *os.File, guardian []string) (_ *sliceReader, err error) {
	s := &sliceReader{first: make([]byte, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.nowhere, err = unix.Mmap(-1, 0, mostPiece, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE); err != nil {
		return nil, fmt.Errorf("reserve addresses: %w", err)
	}
	path := fmt.Sprintf("/proc/self/fd/%d", at.Fd()) // the same file, wherever it is by now
	if s.marks, err = os.Open(path); err != nil {
		return nil, err
	}
	if s.reader, err = os.Open(path); err != nil {
		return nil, err
	}
	if err = readahead.ShrinkOwn(guardian, s.marks, s.reader); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *sliceReader) close() error {
	var errs []error
	for _, f := range []*os.File{s.marks, s.reader} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	if s.nowhere != nil {
		errs = append(errs, unix.Munmap(s.nowhere))
	}
	return errors.Join(errs...)
}

// ask reads what is in memory into a buffer, and has Linux read ahead what is not. It says whether something was there.
func ask(f *os.File, into []byte, page int64) bool {
	n, err := unix.Preadv2(int(f.Fd()), [][]byte{into}, page*PageSize, unix.RWF_NOWAIT)
	return n > 0 && err == nil
}

// The first page of a slice that nobody has used yet is waited for, but not for a disk that takes longer than this:
// next time it is there.
const (
	firstWait = 400 * time.Microsecond
	firstLook = 20 * time.Microsecond
)

// sleep keeps the thread, as time.Sleep does not.
func sleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // a signal may end it early
}

// Announce implements Levers.
func (k *Kernel) Announce(r Range) {
	s := k.slicesFor(r)
	if s == nil {
		return
	}
	for _, p := range SlicePieces(r, k.SlicePieceBytes(r.File)) {
		if p.Length >= MinSlice {
			ask(s.marks, s.first, p.Offset/PageSize)
		}
	}
}

// SetGuardian has slices of experts read in large folios. For that the disk's setting is changed for a moment, by a
// guardian, see readahead.ShrinkOwn.
func (k *Kernel) SetGuardian(command []string) { k.guardian = command }

// slicesFor is what reads a slice of a file in large folios; nil if that cannot be done, or is not worth it. It is
// made when it is needed: only mixtures are to have the disk's setting changed for a moment.
func (k *Kernel) slicesFor(r Range) *sliceReader {
	f := k.files[r.File]
	if f.FolioBytes == 0 || r.Length < MinSlice || k.guardian == nil {
		return nil
	}
	if !f.sliced {
		f.sliced = true
		var err error
		if f.slices, err = openSlices(f.File, k.guardian); err != nil {
			k.log.Debug("slices of experts are read in single pages, which costs more of the kernel's time", "file", f.Path, "error", err)
		}
	}
	return f.slices
}

// readSlice begins to read a range of which at most the first page of each piece and the last page are in memory. It
// says whether it did: these first pages have to be there.
func (k *Kernel) readSlice(r Range) (begun bool, err error) {
	m, s := k.files[r.File], k.slicesFor(r)
	if s == nil {
		return false, nil
	}
	for _, p := range SlicePieces(r, k.SlicePieceBytes(r.File)) {
		if p.Length < MinSlice {
			err = m.readPages(p, m.PieceBytes)
		} else if begun, err = s.readPiece(m, p); !begun {
			return false, err
		}
		if err != nil {
			return false, err
		}
	}
	there, err := pagecache.Resident(m.File, r.Offset, r.Length)
	return there >= r.Length, err
}

// readPiece begins to read a piece of a slice. It says whether its first page was there.
func (s *sliceReader) readPiece(m *File, r Range) (begun bool, err error) {
	first, last := r.Offset/PageSize, (min(r.End(), m.Size)-1)/PageSize
	for began := time.Now(); !ask(s.marks, s.first, first); sleep(firstLook) {
		if time.Since(began) > firstWait {
			return false, nil
		}
	}
	ask(s.marks, s.first, first+1)
	start := first + 1 + markedPages
	pages := last - start
	pages -= 1 - pages&1
	if pages = min(pages, m.most); ask(s.reader, s.nowhere[:pages*PageSize], start-1) {
		return false, nil
	}
	ask(s.marks, s.first, start)
	return true, m.readPages(Range{r.File, (start + pages) * PageSize, r.End() - (start+pages)*PageSize}, m.PieceBytes)
}
