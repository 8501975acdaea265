package pages

// This file defines the levers on the page cache as small interfaces. Kernel has the real ones. Package sim
// has the same levers on a page cache in virtual time.

import (
	"errors"

	"tensorcast/event"
)

// ErrUnreadable says that bytes of a file cannot be read: the disk fails there, or the file was truncated.
var ErrUnreadable = errors.New("it cannot be read: the disk fails, or the file was truncated")

// Levers are all levers on the pages of a model that another process, the target, maps. Only Lock and Keep
// wait for the disk. A lever that acts on pages which are not in memory, or which somebody else holds, does
// nothing and returns no error. All of it is for one goroutine.
type Levers interface {
	Files
	AheadReader
	DemandReader
	Keeper
	Reclaimer
	Accountant

	// Name says by what means reads are begun.
	Name() string
	// Close undoes all locks.
	Close() error
}

// Files makes the files of a model known to the levers.
type Files interface {
	// Open makes a file known. It returns the file's index and its size in bytes. Indices count from 0; a
	// file that is known already keeps its index. Open fails if path leads to another file than the one with
	// this id by now (see event.FileSeen).
	Open(path string, id event.FileID) (file int, size int64, err error)
	// Map says at which address the target maps the first byte of a file. PageOut and IsTouched need it.
	Map(file int, base uint64)
}

// AheadReader reads ahead of the target.
type AheadReader interface {
	// BlockBytes is the unit, in bytes, in which reading and paging out cost least. It is a power of two. It
	// may change when the file system turns out to have no large folios.
	BlockBytes() int64
	// BlocksAtOnce is how many blocks have to be under way to keep the disk busy, as far as NoteDiskRate has
	// told.
	BlocksAtOnce() int
	// NoteDiskRate tells the levers how many bytes per second the disk was seen to deliver at best.
	NoteDiskRate(perSecond float64) error
	// ReadAhead begins to read a range into the page cache. It returns false if too many reads are under way;
	// then the target reads the rest by itself.
	ReadAhead(r Range) bool
	// CanReadApart says whether a block can be read before the block that follows it in the file without
	// leaving a readahead mark on it. The head of kernel.go explains these marks.
	CanReadApart() bool
	// SetInOrder says whether reads come in the order of the file from now on, further ahead of the target
	// than the target's own readahead goes. Then blocks can be read apart.
	SetInOrder(inOrder bool) error
	// IsReading says whether a read of large folios of this range is queued or under way. ResidentBytes may
	// not count these bytes yet.
	IsReading(r Range) bool
	// Poll hands queued reads to the kernel and collects those that are over.
	Poll() error
}

// DemandReader reads what the target is about to wait for: the experts that a router has just chosen.
type DemandReader interface {
	// SlicePieceBytes is how many bytes of an expert's slice are read by one request, counted from the page
	// in which the slice begins. The first page of each piece has to stay in memory for that. 0 means that
	// slices are read in one piece.
	SlicePieceBytes(file int) int64
	// Announce says that ReadNow will be called for a range, after other calls. It begins to read the first
	// pages that ReadNow needs.
	Announce(r Range)
	// ReadNow begins to read a range and hands it to the disk before it returns, except for large folios
	// within it. Poll is needed afterwards, as after ReadAhead.
	ReadNow(r Range) error
	// HasArrived says whether all of a range is in memory and can be used. ResidentBytes also counts what is
	// still being read.
	HasArrived(r Range) (bool, error)
	// IsReading is as in AheadReader.
	IsReading(r Range) bool
}

// Keeper keeps ranges in memory. The errors of Lock and Keep wrap ErrUnreadable if the range cannot be read.
type Keeper interface {
	// Lock reads a range, if need be, and keeps it in memory until Release or the end of this process. Nobody
	// can reclaim it.
	Lock(r Range) error
	// Keep reads a range, if need be. The kernel may take it back when somebody needs the memory.
	Keep(r Range) error
	// Release undoes Lock. The pages stay until they are paged out or reclaimed.
	Release(r Range) error
}

// Reclaimer frees pages, and tells what is in memory.
type Reclaimer interface {
	// PageOut frees the pages of a range that are not locked. Pages that the target has touched are freed at
	// once, others after a moment.
	PageOut(r Range) error
	// Evict begins to free the pages of a range, as PageOut does, and does not wait. It returns false if too
	// many ranges wait to be freed. What is read ahead meanwhile stays.
	Evict(r Range) bool
	// ResidentBytes is how many bytes of a range are in memory, in whole pages.
	ResidentBytes(r Range) (int64, error)
	// IsTouched says whether the target has touched pages of a range since they were paged out last. It needs
	// Map.
	IsTouched(r Range) (bool, error)
}

// Accountant tells on whose account pages are in memory.
type Accountant interface {
	// PayingGroup is the memory control group that pays for all of a range, by the inode of its directory. It is
	// 0 if some of the range is not in memory, if several groups pay, or if that is not known.
	PayingGroup(r Range) (inode uint64, err error)
}
