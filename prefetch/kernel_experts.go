package prefetch

// This file has what only experts need of the kernel: reads of single pages at once, also of what was paged out too soon, and whether they are over.

import (
	"fmt"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
)

// readPages begins to read a range in single pages, on the caller's thread, in pieces of which the first has as many bytes as it is told.
func (m *modelFile) readPages(r Range, piece int64) error {
	for at := r.Offset; at < r.End(); at, piece = at+piece, m.piece {
		if err := unix.Fadvise(int(m.file.Fd()), at, min(piece, r.End()-at), unix.FADV_WILLNEED); err != nil {
			return fmt.Errorf("read %d bytes at %d of %s ahead: %w", r.Length, r.Offset, m.path, err)
		}
	}
	return nil
}

// read reads what was freed.
func (e eviction) read() error { return e.file.readPages(e.Range, e.file.piece) }

// arrivedBytes of a range's end are looked at: its pages are asked for in order, and a disk that keeps several requests finishes them in about that order.
const arrivedBytes = 1 << 20

// Arrived implements Pages, by the end of the range.
func (k *KernelPages) Arrived(r Range) (bool, error) {
	f := k.files[r.File]
	end := min(r.End(), f.size)
	first := max(r.Offset, end-arrivedBytes) &^ (pageSize - 1)
	if first >= end {
		return true, nil
	}
	usable, err := pagecache.Usable(f.mapping[first:end])
	if err != nil {
		return false, fmt.Errorf("look for %d bytes at %d of %s: %w", r.Length, r.Offset, f.path, err)
	}
	return usable >= end-first, nil
}
