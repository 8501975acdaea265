package prefetch

// This file defines the levers on pages. The kernel has them (kernel.go); package sim has them in virtual time.

import (
	"errors"

	"tensorcast/event"
)

// ErrUnreadable says that bytes of a file cannot be read: the disk fails there, or the file was truncated.
var ErrUnreadable = errors.New("it cannot be read: the disk fails, or the file was truncated")

// Range is a part of a file of the model.
type Range struct {
	File   int   // index, in the order of Pages.Open
	Offset int64 // first byte in the file
	Length int64 // bytes
}

// End is the first byte behind the range.
func (r Range) End() int64 { return r.Offset + r.Length }

// overlaps says whether two ranges have a byte in common.
func (r Range) overlaps(q Range) bool {
	return r.File == q.File && r.Offset < q.End() && q.Offset < r.End()
}

// Pages is what can be done to the pages of a model that another process, the target, maps. Only Lock and Keep wait for the disk. What is asked of
// pages that are not there, or that somebody else holds, does nothing, without an error. For one goroutine.
type Pages interface {
	// Open makes a file of the model known and returns its index, the next one from 0 unless the same file was opened before, and its size in bytes. It fails if path
	// leads to another file than the one with this id by now (see event.FileSeen).
	Open(path string, id event.FileID) (file int, size int64, err error)
	// Map says at which address the target maps the first byte of a file. PageOut and Touched need it.
	Map(file int, base uint64)

	// Block is the unit in which reading, and paging out, costs least: a power of two of bytes, which may change when a file turns out to be of another kind than it seemed.
	Block() int64
	// AtOnce is how many blocks are read at once: as many as keep the disk busy, as far as that is known by what it Delivers.
	AtOnce() int
	// Delivers says how many bytes per second the disk was seen to deliver at best.
	Delivers(perSecond float64) error
	// ReadAhead begins to read a range into the page cache. It returns false if too many reads are under way: what is missing the target reads by itself.
	ReadAhead(r Range) bool
	// Apart says whether a block can be read before the one that follows it in the file: no mark is left on it then, see kernel.go.
	Apart() bool
	// InOrder says whether what is read from now on is read in the order of the file, further ahead of whoever uses it than his own readahead goes: then blocks can be read apart.
	InOrder(inOrder bool) error
	// Reading says whether some of a range that is read in large folios still waits to be read, or is being read: of that, Resident may count nothing yet.
	Reading(r Range) bool
	// Expect is told that ReadNow is about to be asked for a range, after others: what it has to wait for is begun to be read.
	Expect(r Range)
	// Piece is how many bytes of a slice of an expert, from the page on in which it begins, are read at once: for that the first page of each such piece has to be in memory. 0: there are no pieces.
	Piece(file int) int64
	// ReadNow begins to read a range, and hands it to the disk before it returns, save for large folios within it: the target waits for it. Poll is needed as after ReadAhead.
	ReadNow(r Range) error
	// Poll hands reads that were begun to the kernel and collects those that have been taken up.
	Poll() error
	// Lock has a range in memory, read if need be, until Release or the end of this process: nobody can reclaim it. Its error, and Keep's, wraps ErrUnreadable if that cannot
	// be done.
	Lock(r Range) error
	// Keep has a range in memory, read if need be. The kernel may take it back when somebody needs the memory.
	Keep(r Range) error
	// Release undoes Lock. The pages stay, until they are paged out or reclaimed.
	Release(r Range) error
	// PageOut frees the pages of a range that are not locked: at once those that the target has touched, others after a moment.
	PageOut(r Range) error
	// Evict begins to free the pages of a range as PageOut does, and does not wait for that. It returns false if too much waits to be freed. What is read ahead meanwhile stays.
	Evict(r Range) bool
	// Resident is how many bytes of a range are in memory, in whole pages.
	Resident(r Range) (int64, error)
	// Arrived says whether all of a range is in memory and can be used: Resident counts what is being read, too.
	Arrived(r Range) (bool, error)

	// Touched says whether the target has touched pages of a range since they were paged out last. Needs Map.
	Touched(r Range) (bool, error)

	// Name says by what means reads are begun.
	Name() string
	// Close undoes all locks.
	Close() error
}
