package reuse

// This file computes the misses of a page cache that reads more than it is asked for.

import (
	"cmp"
	"math"
	"slices"
)

// Around is how many bytes a step from one on reads from disk with LRU and a kernel that reads
// around faults: a miss reads a window of so many bytes, half of it before the block that was
// missed, less what is in memory; and a use of a block at three quarters of a window, if it was
// read that way, reads the window behind (mm/filemap.c, do_sync_mmap_readahead and
// do_async_mmap_readahead, since Linux 4.x; what the kernel does after a hundred misses without a
// hit, namely to stop that, is left out). What is read so takes the place of what was used longest
// ago. With a window of less than two blocks, and with extents, it is LRU.
func (s *Sequence) Around(size int64, from int, window int64) float64 {
	if s.granule == 0 || window < 2*s.granule {
		return s.LRU(from).Missed(size)
	}
	return s.around(nil, size, from, min(window/2/s.granule, math.MaxInt32))
}

// Extent is a part of a file.
type Extent struct {
	File          int32
	Offset, Bytes int64
}

// Kept is how many bytes a step from one on reads from disk if the kept extents are in memory all
// the time, and what else is read has a memory of this size by itself, as in Around.
func (s *Sequence) Kept(kept []Extent, size int64, from int, window int64) float64 {
	half := int64(0)
	if s.granule > 0 {
		half = min(window/2/s.granule, math.MaxInt32)
	}
	return s.around(kept, size, from, half)
}

// around is Kept with half a window of so many blocks.
func (s *Sequence) around(kept []Extent, size int64, from int, half int64) float64 {
	a := around{s: s, size: size, half: half, kept: byPlace(kept), ids: make(map[place]int32, len(s.index)),
		first: s.begin(from)}
	end := map[int32]int64{} // of each file, in blocks
	a.places = make([]place, len(s.sizes))
	for p, b := range s.index {
		a.ids[p], a.places[b] = b, p
		end[p.file] = max(end[p.file], p.first+1)
	}
	a.sizes = append([]int64(nil), s.sizes...)
	for file, last := range end {
		if s.granule > 0 && int(file) < len(s.files) && s.files[file] < math.MaxInt64-s.granule {
			end[file] = max(last, (s.files[file]+s.granule-1)/s.granule)
		}
	}
	a.end = end
	// of the list: 0 is its head, and block b is b+1
	a.older, a.newer = make([]int32, len(a.sizes)+1), make([]int32, len(a.sizes)+1)
	a.in, a.mark = make([]bool, len(a.sizes)), make([]int64, len(a.sizes))
	for i, b := range s.uses {
		a.now = i
		p := a.places[b]
		switch {
		case a.keeps(p, a.sizes[b]):
		case a.in[b]:
			a.touch(b)
			if next := a.mark[b]; next > 0 {
				a.mark[b] = 0
				a.read(p.file, next, next+2*a.half)
			}
		case a.sizes[b] > size: // it streams through
			if i >= a.first {
				a.missed += a.sizes[b]
			}
		default:
			a.read(p.file, p.first-a.half, p.first+a.half)
			if !a.in[b] { // the window is larger than the memory
				a.fetch(b)
			}
			a.touch(b)
		}
	}
	return s.perStep(a.missed, from)
}

// around is a memory in which blocks that nobody uses may be, too. They have numbers behind those
// of the others.
type around struct {
	s            *Sequence
	size, held   int64
	missed       int64
	half         int64    // window, in blocks
	kept         []Extent // sorted
	first, now   int      // uses
	ids          map[place]int32
	places       []place
	sizes        []int64
	end          map[int32]int64
	older, newer []int32
	in           []bool
	mark         []int64 // what a use of the block has read next; 0: nothing
}

// byPlace sorts extents.
func byPlace(kept []Extent) []Extent {
	return slices.SortedFunc(slices.Values(kept), func(a, b Extent) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Offset, b.Offset))
	})
}

// keeps reports whether the middle of a block is kept: kept extents may be cut elsewhere than blocks are.
func (a *around) keeps(p place, size int64) bool {
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

// read reads blocks that are not there, and marks the one at three quarters.
func (a *around) read(file int32, from, to int64) {
	from, to = max(from, 0), min(to, a.end[file])
	for first := from; first < to; first++ {
		b := a.id(place{file: file, first: first})
		if a.in[b] || a.keeps(a.places[b], a.sizes[b]) {
			continue
		}
		a.fetch(b)
		if first == to-max(a.half/2, 1) {
			a.mark[b] = to
		}
	}
}

// id is a block's number, which it gets now if nobody uses it.
func (a *around) id(p place) int32 {
	b, ok := a.ids[p]
	if !ok {
		b = int32(len(a.sizes))
		a.ids[p] = b
		a.places, a.sizes = append(a.places, p), append(a.sizes, a.s.granule)
		a.older, a.newer = append(a.older, 0), append(a.newer, 0)
		a.in, a.mark = append(a.in, false), append(a.mark, 0)
	}
	return b
}

// fetch reads a block, for which others leave.
func (a *around) fetch(b int32) {
	if a.now >= a.first {
		a.missed += a.sizes[b]
	}
	for a.held+a.sizes[b] > a.size && a.newer[0] != 0 {
		a.drop(a.newer[0] - 1)
	}
	a.in[b], a.mark[b] = true, 0
	a.held += a.sizes[b]
	a.push(b + 1)
}

func (a *around) drop(b int32) {
	a.unlink(b + 1)
	a.in[b] = false
	a.held -= a.sizes[b]
}

func (a *around) touch(b int32) {
	a.unlink(b + 1)
	a.push(b + 1)
}

// push puts a block at the newest end: newer of the head is the oldest block, and older of it the newest.
func (a *around) push(e int32) {
	last := a.older[0]
	a.newer[last], a.older[e] = e, last
	a.newer[e], a.older[0] = 0, e
}

func (a *around) unlink(e int32) {
	a.newer[a.older[e]], a.older[a.newer[e]] = a.newer[e], a.older[e]
}
