package pages

// This file has what only experts need of the kernel: reads of single pages at once, also of what was paged out too
// soon, and whether they are over.

import (
	"fmt"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
)

// readPages begins to read a range in single pages, on the caller's thread, in pieces of which the first has as many
// bytes as it is told.
func (m *File) readPages(r Range, piece int64) error {
	for at := r.Offset; at < r.End(); at, piece = at+piece, m.PieceBytes {
		if err := unix.Fadvise(int(m.File.Fd()), at, min(piece, r.End()-at), unix.FADV_WILLNEED); err != nil {
			return fmt.Errorf("read %d bytes at %d of %s ahead: %w", r.Length, r.Offset, m.Path, err)
		}
	}
	return nil
}

// read reads what was freed.
func (e eviction) read() error { return e.file.readPages(e.Range, e.file.PieceBytes) }

// arrivedBytes of a range's end are looked at: its pages are asked for in order, and a disk that keeps several
// requests finishes them in about that order.
const arrivedBytes = 1 << 20

// HasArrived implements Levers, by the end of the range.
func (k *Kernel) HasArrived(r Range) (bool, error) {
	f := k.files[r.File]
	end := min(r.End(), f.Size)
	first := max(r.Offset, end-arrivedBytes) &^ (PageSize - 1)
	if first >= end {
		return true, nil
	}
	usable, err := pagecache.Usable(f.Mapping[first:end])
	if err != nil {
		return false, fmt.Errorf("look for %d bytes at %d of %s: %w", r.Length, r.Offset, f.Path, err)
	}
	return usable >= end-first, nil
}
