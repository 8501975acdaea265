package pages

// This file reads experts that a router has just chosen, on the caller's thread, and tells whether they have
// arrived.

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
)

// The disk gets a piece when all of the piece's pages were allocated. That takes a tenth of a millisecond for
// an expert's slice. So the first piece is a small one where nothing was asked for since firstPieceAfter:
// then the disk has something to do at once.
const (
	firstPieceBytes = 64 << 10
	firstPieceAfter = 200 * time.Microsecond
)

// ReadNow implements Levers. It advises the kernel on the caller's thread. io_uring always gives
// FADV_WILLNEED to a worker, which would wait for a processor on which the target's threads spin. The large
// folios within a long range are left to such workers all the same, because reading them as pages would take
// more of the kernel's time than that.
func (k *Kernel) ReadNow(r Range) error {
	f := k.files[r.File]
	if k.evictor != nil {
		k.evictor.cancel(r)
	}
	piece := f.PieceBytes
	if time.Since(k.lastReadNow) > firstPieceAfter {
		piece = firstPieceBytes
	}
	defer func() { k.lastReadNow = time.Now() }()
	if begun, err := k.readSlice(r); begun || err != nil {
		return err
	}
	middle := f.innerFolios(r, k.CanReadApart())
	if middle.Length == 0 {
		return f.readPages(r, piece)
	}
	before := Range{r.File, r.Offset, middle.Offset - r.Offset}
	behind := Range{r.File, middle.End(), r.End() - middle.End()}
	// What follows the folios has to be in memory first, see beginFolio.
	if err := errors.Join(f.readPages(behind, piece), f.readPages(before, f.PieceBytes)); err != nil {
		return err
	}
	if !k.ReadAhead(middle) {
		return f.readPages(middle, f.PieceBytes)
	}
	if err := k.beginWaiting(); err != nil {
		return err
	}
	_, err := k.queue.Submit()
	return err
}

// readPages begins to read a range in single pages, on the caller's thread. piece is the length of the first
// request in bytes; the others are of PieceBytes.
func (m *File) readPages(r Range, piece int64) error {
	for at := r.Offset; at < r.End(); at, piece = at+piece, m.PieceBytes {
		if err := unix.Fadvise(int(m.File.Fd()), at, min(piece, r.End()-at), unix.FADV_WILLNEED); err != nil {
			return fmt.Errorf("read %d bytes at %d of %s ahead: %w", r.Length, r.Offset, m.Path, err)
		}
	}
	return nil
}

// readAgain begins to read what was freed too soon.
func (e eviction) readAgain() error { return e.file.readPages(e.Range, e.file.PieceBytes) }

// checkedTail is how many bytes at the end of a range are looked at to tell whether it has arrived. Its pages
// are asked for in order, and a disk that works on several requests finishes them in about that order.
const checkedTail = 1 << 20

// HasArrived implements Levers. It looks at the end of the range.
func (k *Kernel) HasArrived(r Range) (bool, error) {
	f := k.files[r.File]
	end := min(r.End(), f.Size)
	first := max(r.Offset, end-checkedTail) &^ (PageSize - 1)
	if first >= end {
		return true, nil
	}
	usable, err := pagecache.Usable(f.Mapping[first:end])
	if err != nil {
		return false, fmt.Errorf("look for %d bytes at %d of %s: %w", r.Length, r.Offset, f.Path, err)
	}
	return usable >= end-first, nil
}
