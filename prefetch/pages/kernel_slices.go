package pages

// This file reads slices of experts in large folios, begun on the caller's thread. A slice begins and ends
// anywhere, so folios of 2 MiB (kernel.go) would hold its neighbours, too.
//
// Linux has no call that reads a range in folios of whatever size fits. But its readahead does so when a
// program reads on to a page that readahead has marked (page_cache_async_ra, mm/readahead.c). Then as many
// pages as the program asks for are read, in folios as large as their alignment allows, up to 2 MiB. So four
// reads that do not wait (RWF_NOWAIT) do it:
//
//  1. The first read is of a byte of the slice's first page, which stays in memory. The kernel takes the descriptor to
//     have read up to there.
//  2. The second read is of a byte of the next page, with the same descriptor. It looks like a program that reads on:
//     two pages are read, and the second one is marked.
//  3. The third read is of the rest of the slice from that page on, by another descriptor, of which the kernel knows
//     nothing. The size of its folios grows with each such read, and falls only where it misses, which it never does.
//  4. What the third read begins with is marked, too. A touch of the target, or the next such read, would read on. So
//     the first descriptor asks for that page. This removes the mark, and reads nothing, because what follows is in
//     memory.
//
// How many pages this reads follows from the descriptors' own readahead, which is therefore made small when
// they are opened, and from the number that is asked for. That number has to be odd: otherwise Linux cuts it
// to a multiple of a power of two. It is no more than the disk takes in one request (ractl_max_pages). A
// longer slice is read in pieces, and the first page of each piece stays in memory. Before Linux 6.16 folios
// have four pages. What is missing afterwards, for whatever reason, is read in single pages.

import (
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/prefetch/readahead"
)

// sliceReader reads slices of a file in large folios.
type sliceReader struct {
	marks      *os.File // makes readahead marks, and removes them
	reader     *os.File // reads the pages
	read       int      // slices that were read since one was not read as a whole
	unwritable []byte   // a buffer that cannot be written to, so that what is in memory already is not copied
	oneByte    []byte
}

const (
	// MinSlice is the length of the smallest piece that is read in this way, in bytes. The single pages at
	// the ends of a smaller one are too large a part of it. maxSlicePiece is the length of the longest one.
	MinSlice      = 256 << 10
	maxSlicePiece = 8 << 20
	// markedPages is how many pages the second read reads.
	markedPages = 2
)

// SlicePieces cuts a slice into pieces of length bytes. Each begins with a page: the first one with the page
// in which the slice begins. With length 0 the slice is one piece.
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
	return (1 + markedPages + f.maxPages + 1) * PageSize // the last one is read by itself, see readPiece
}

// maxReadPages is how many pages one read of a file reads at most, an odd number.
func maxReadPages(f *os.File) int64 {
	most := max(min(maxRequestBytes(f), maxSlicePiece)/PageSize, 1)
	return most - 1 + most&1
}

// maxRequestBytes is the largest request that the disk of a file takes. The kernel has the number of its
// pages as io_pages of the bdi (blk_apply_bdi_limits, block/blk-settings.c). Where it is not known, it is as
// if there were no bound.
func maxRequestBytes(f *os.File) int64 {
	for _, path := range []string{
		"/sys/dev/block/%d:%d/queue/max_sectors_kb",    // of a disk
		"/sys/dev/block/%d:%d/../queue/max_sectors_kb", // of a partition's disk
	} {
		if bytes, ok := deviceBytes(f, path); ok && bytes > 0 {
			return bytes
		}
	}
	return math.MaxInt64
}

// newSliceReader opens the descriptors of a file that is open already. guardian is the command for
// readahead.ShrinkOwn.
func newSliceReader(at *os.File, guardian []string) (_ *sliceReader, err error) {
	s := &sliceReader{oneByte: make([]byte, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	const addressesOnly = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if s.unwritable, err = unix.Mmap(-1, 0, maxSlicePiece, unix.PROT_NONE, addressesOnly); err != nil {
		return nil, fmt.Errorf("reserve addresses: %w", err)
	}
	path := fmt.Sprintf("/proc/self/fd/%d", at.Fd()) // the same file, wherever its name leads by now
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
	if s.unwritable != nil {
		errs = append(errs, unix.Munmap(s.unwritable))
	}
	return errors.Join(errs...)
}

// readNoWait reads into a buffer what is in memory from a page on, and makes Linux read ahead what is not. It
// says whether something was there.
func readNoWait(f *os.File, into []byte, page int64) bool {
	n, err := unix.Preadv2(int(f.Fd()), [][]byte{into}, page*PageSize, unix.RWF_NOWAIT)
	return n > 0 && err == nil
}

// The first page of a slice that nobody has used yet is not in memory. ReadNow waits for it up to maxFirstPageWait.
// Some disks take longer. Then the slice is read in single pages, and next time its first page is there.
const (
	maxFirstPageWait = 400 * time.Microsecond
	firstPagePoll    = 20 * time.Microsecond
)

// sleepThread sleeps and keeps the thread, which time.Sleep does not.
func sleepThread(d time.Duration) {
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
			readNoWait(s.marks, s.oneByte, p.Offset/PageSize)
		}
	}
}

// SetGuardian allows slices of experts to be read in large folios. For that the disk's readahead is changed
// for a moment by a guardian, which command starts, see readahead.ShrinkOwn.
func (k *Kernel) SetGuardian(command []string) { k.guardian = command }

// slicesFor is what reads a slice of a file in large folios; nil if that cannot be done, or is not worth it.
// It is made when it is needed, because only a mixture is worth changing the disk's setting for a moment.
func (k *Kernel) slicesFor(r Range) *sliceReader {
	f := k.files[r.File]
	if f.FolioBytes == 0 || r.Length < MinSlice || k.guardian == nil {
		return nil
	}
	if !f.triedSlices {
		f.triedSlices = true
		var err error
		if f.slices, err = newSliceReader(f.File, k.guardian); err != nil {
			k.log.Debug("slices of experts are read in single pages, which costs more of the kernel's time",
				"file", f.Path, "error", err)
		}
	}
	return f.slices
}

// readSlice begins to read a range of which at most the first page of each piece and the last page are in
// memory. It returns false if it could not, because one of these first pages is missing.
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
	if s.read++; s.read > trustedSlices && s.read%checkedSlices != 0 {
		return true, nil
	}
	there, err := m.Resident(r)
	if there < r.Length {
		s.read = 0
	}
	return there >= r.Length, err
}

// Whether all of a slice was asked for is only looked at now and then, once trustedSlices in a row were: of
// checkedSlices one. What is missing is read by the target's faults.
const (
	trustedSlices = 64
	checkedSlices = 16
)

// readPiece begins to read a piece of a slice. It returns false if the first page was not there.
func (s *sliceReader) readPiece(m *File, r Range) (begun bool, err error) {
	first, last := r.Offset/PageSize, (min(r.End(), m.Size)-1)/PageSize
	for began := time.Now(); !readNoWait(s.marks, s.oneByte, first); sleepThread(firstPagePoll) {
		if time.Since(began) > maxFirstPageWait {
			return false, nil
		}
	}
	readNoWait(s.marks, s.oneByte, first+1)
	start := first + 1 + markedPages
	pages := last - start
	pages -= 1 - pages&1
	if pages = min(pages, m.maxPages); readNoWait(s.reader, s.unwritable[:pages*PageSize], start-1) {
		return false, nil
	}
	readNoWait(s.marks, s.oneByte, start)
	return true, m.readPages(Range{r.File, (start + pages) * PageSize, r.End() - (start+pages)*PageSize}, m.PieceBytes)
}
