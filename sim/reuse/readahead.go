package reuse

// This file computes the misses of a page cache that, like the kernel's, reads more than was asked
// for.

import (
	"cmp"
	"math"
	"slices"
)

// LRUWithReadahead returns how many bytes a step reads from disk, averaged over the steps from one
// on, with an LRU memory of size bytes and a kernel that reads around faults. A miss reads a window
// of so many bytes, half of it before the missed block, except for what is in memory. The first use
// of the block at three quarters of such a window reads the next window. Blocks that are read so
// replace those that were used longest ago. (See do_sync_mmap_readahead and do_async_mmap_readahead
// in mm/filemap.c, since Linux 4.x. The kernel stops after a hundred misses without a hit. That is
// left out.) With a window of less than two blocks, and with extents, the result is that of LRU.
func (s *Sequence) LRUWithReadahead(size int64, from int, window int64) float64 {
	if s.granule == 0 || window < 2*s.granule {
		return s.LRU(from).Missed(size)
	}
	return s.missReadingAround(nil, size, from, min(window/2/s.granule, math.MaxInt32))
}

// Extent is a part of a file.
type Extent struct {
	File          int32
	Offset, Bytes int64
}

// PinnedWithReadahead returns how many bytes a step reads from disk, averaged over the steps from
// one on, if the kept extents are in memory all the time. All other reads share a memory of size
// bytes, which works as in LRUWithReadahead.
func (s *Sequence) PinnedWithReadahead(kept []Extent, size int64, from int, window int64) float64 {
	half := int64(0)
	if s.granule > 0 {
		half = min(window/2/s.granule, math.MaxInt32)
	}
	return s.missReadingAround(kept, size, from, half)
}

// missReadingAround is PinnedWithReadahead with half a window of so many blocks.
func (s *Sequence) missReadingAround(kept []Extent, size int64, from int, half int64) float64 {
	a := newReadaheadCache(s, size, half)
	a.kept = sortExtents(kept)
	a.firstCounted = s.firstUse(from)
	for i, b := range s.uses {
		a.currentUse = i
		p := a.blocks[b]
		switch {
		case a.isKept(p, a.sizes[b]):
		case a.resident[b]:
			a.markNewest(b)
			if next := a.nextWindow[b]; next > 0 {
				a.nextWindow[b] = 0
				a.readWindow(p.file, next, next+2*a.halfWindow)
			}
		case a.sizes[b] > size: // it streams through without staying
			if i >= a.firstCounted {
				a.missed += a.sizes[b]
			}
		default:
			a.readWindow(p.file, p.first-a.halfWindow, p.first+a.halfWindow)
			if !a.resident[b] { // the window is larger than the memory, so the block was dropped again
				a.fetchBlock(b)
			}
			a.markNewest(b)
		}
	}
	return s.averagePerStep(a.missed, from)
}

// readaheadCache is a memory that may also hold blocks that nobody uses. Their numbers are behind
// those of the used blocks.
type readaheadCache struct {
	s            *Sequence
	size, held   int64           // bytes
	halfWindow   int64           // blocks
	kept         []Extent        // sorted
	fileEnds     map[int32]int64 // where each file ends, in blocks
	firstCounted int             // the first use whose misses count
	currentUse   int
	missed       int64 // bytes so far

	// By block.

	ids        map[blockKey]int32
	blocks     []blockKey
	sizes      []int64
	resident   []bool
	nextWindow []int64 // where the window begins that the block's next use reads; 0: none

	// The list of resident blocks, by age. Element 0 is the head, and block b is element b+1.

	older, newer []int32
}

// newReadaheadCache returns an empty memory for the blocks of a sequence.
func newReadaheadCache(s *Sequence, size, half int64) *readaheadCache {
	n := len(s.sizes)
	a := &readaheadCache{
		s: s, size: size, halfWindow: half, fileEnds: map[int32]int64{},
		ids: make(map[blockKey]int32, len(s.index)), blocks: make([]blockKey, n), sizes: slices.Clone(s.sizes),
		resident: make([]bool, n), nextWindow: make([]int64, n),
		older: make([]int32, n+1), newer: make([]int32, n+1),
	}
	for p, b := range s.index {
		a.ids[p], a.blocks[b] = b, p
		a.fileEnds[p.file] = max(a.fileEnds[p.file], p.first+1)
	}
	for file, last := range a.fileEnds {
		if s.granule > 0 && int(file) < len(s.files) && s.files[file] < math.MaxInt64-s.granule {
			a.fileEnds[file] = max(last, (s.files[file]+s.granule-1)/s.granule)
		}
	}
	return a
}

// sortExtents sorts extents by file and offset.
func sortExtents(kept []Extent) []Extent {
	return slices.SortedFunc(slices.Values(kept), func(a, b Extent) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Offset, b.Offset))
	})
}

// isKept reports whether a block is kept. Its middle decides, because kept extents need not end
// where blocks do.
func (a *readaheadCache) isKept(p blockKey, size int64) bool {
	middle := p.first + size/2
	if g := a.s.granule; g > 0 {
		middle = p.first*g + size/2
	}
	i, exact := slices.BinarySearchFunc(a.kept, middle, func(e Extent, at int64) int {
		return cmp.Or(cmp.Compare(e.File, p.file), cmp.Compare(e.Offset, at))
	})
	if !exact {
		i--
	}
	return i >= 0 && a.kept[i].File == p.file && middle < a.kept[i].Offset+a.kept[i].Bytes
}

// readWindow reads the blocks of a window that are not in memory, and marks the one at three
// quarters.
func (a *readaheadCache) readWindow(file int32, from, to int64) {
	from, to = max(from, 0), min(to, a.fileEnds[file])
	for first := from; first < to; first++ {
		b := a.blockID(blockKey{file: file, first: first})
		if a.resident[b] || a.isKept(a.blocks[b], a.sizes[b]) {
			continue
		}
		a.fetchBlock(b)
		if first == to-max(a.halfWindow/2, 1) {
			a.nextWindow[b] = to
		}
	}
}

// blockID returns a block's number. A block that nobody uses gets one now.
func (a *readaheadCache) blockID(p blockKey) int32 {
	b, ok := a.ids[p]
	if !ok {
		b = int32(len(a.sizes))
		a.ids[p] = b
		a.blocks, a.sizes = append(a.blocks, p), append(a.sizes, a.s.granule)
		a.older, a.newer = append(a.older, 0), append(a.newer, 0)
		a.resident, a.nextWindow = append(a.resident, false), append(a.nextWindow, 0)
	}
	return b
}

// fetchBlock reads a block, and drops others to make room.
func (a *readaheadCache) fetchBlock(b int32) {
	if a.currentUse >= a.firstCounted {
		a.missed += a.sizes[b]
	}
	for a.held+a.sizes[b] > a.size && a.newer[0] != 0 {
		a.dropBlock(a.newer[0] - 1)
	}
	a.resident[b], a.nextWindow[b] = true, 0
	a.held += a.sizes[b]
	a.pushNewest(b + 1)
}

func (a *readaheadCache) dropBlock(b int32) {
	a.unlink(b + 1)
	a.resident[b] = false
	a.held -= a.sizes[b]
}

func (a *readaheadCache) markNewest(b int32) {
	a.unlink(b + 1)
	a.pushNewest(b + 1)
}

// pushNewest puts an element at the newest end of the list. The head's newer is the oldest element,
// and its older the newest.
func (a *readaheadCache) pushNewest(e int32) {
	last := a.older[0]
	a.newer[last], a.older[e] = e, last
	a.newer[e], a.older[0] = 0, e
}

func (a *readaheadCache) unlink(e int32) {
	a.newer[a.older[e]], a.older[a.newer[e]] = a.newer[e], a.older[e]
}
