package plan

// This file cuts a cycle into blocks, and says when a token needs each of them.

import (
	"cmp"
	"os"
	"slices"

	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

const (
	// grain is what the bounds of a block are multiples of, in bytes.
	grain = 64 << 10
	// MaxBlocks bounds the number of blocks, and so the number of mappings: each locked run of blocks splits
	// one, and Linux allows 65530 of them (vm.max_map_count).
	MaxBlocks = 16384
	// MaxCycleBytes bounds what a token reads, each read counted. It is a thousand times the largest model's
	// size, and sums of it do not overflow.
	MaxCycleBytes = 1 << 50
	// leastBlocks is how many blocks a cycle is cut into at least, unless they would be smaller than
	// pages.MinBlock.
	leastBlocks = 64
)

var pageSize = int64(os.Getpagesize())

// Schedule is what one token reads, in blocks. It does not change once it is made.
type Schedule struct {
	Reads   []pages.Range // in order of use, without gathered rows and experts, which depend on the token
	Blocks  []pages.Range // in the order of first use; they do not overlap
	Visits  []Visit       // in the order of From
	Bytes   int64         // of all blocks
	Uses    []int         // by block: how many visits it has
	Tensors []string      // by read: the name of the tensor
	Nanos   []int64       // by read: how long its op was seen to compute, in ns; -1 if that was not seen
}

// Visit is an uninterrupted use of a block: it is needed from the beginning of read From to the end of read
// To.
type Visit struct {
	Block    int // index in Schedule.Blocks
	From, To int // indices in Schedule.Reads
}

// NewSchedule cuts a cycle into blocks of size bytes, a power of two. It takes a multiple of size if there
// would be more than MaxBlocks. The cycle's reads must lie within their files and add up to MaxCycleBytes at
// most. near is how many bytes may be read between two uses of a block so that the block stays in memory in
// between: at most the window.
func NewSchedule(c *pattern.Cycle, size, near int64) *Schedule {
	s := &Schedule{}
	extents, total := s.addReads(c)
	for total/size > MaxBlocks {
		size *= 2
	}
	s.addVisits(s.cutBlocks(size, extents), near)
	return s
}

// Without is a schedule without some blocks. If they were all of its blocks, it has none. The reads stay.
func (s *Schedule) Without(isLeftOut func(block pages.Range) bool) *Schedule {
	rest := *s
	rest.Blocks, rest.Visits, rest.Uses, rest.Bytes = nil, nil, nil, 0
	numbers := make([]int, len(s.Blocks))
	for b, r := range s.Blocks {
		if isLeftOut(r) {
			numbers[b] = -1
			continue
		}
		numbers[b] = len(rest.Blocks)
		rest.Blocks, rest.Uses = append(rest.Blocks, r), append(rest.Uses, s.Uses[b])
		rest.Bytes += r.Length
	}
	if len(rest.Blocks) == len(s.Blocks) {
		return s
	}
	for _, v := range s.Visits {
		if v.Block = numbers[v.Block]; v.Block >= 0 {
			rest.Visits = append(rest.Visits, v)
		}
	}
	return &rest
}

// extent is the part of a file from the first byte that a token reads to the last.
type extent struct{ first, end int64 }

// addReads takes over the reads that every token makes. It returns what is read of each file, to which blocks
// are clipped because what lies outside may not be mapped, and the sum of the reads.
func (s *Schedule) addReads(c *pattern.Cycle) (extents map[int]extent, total int64) {
	extents = map[int]extent{}
	for i := range c.Reads {
		r := &c.Reads[i]
		if r.Gathers() || r.Length <= 0 {
			continue
		}
		s.Reads = append(s.Reads, pages.Range{File: r.File, Offset: r.Offset, Length: r.Length})
		s.Nanos = append(s.Nanos, r.Nanos)
		s.Tensors = append(s.Tensors, r.Tensor)
		total += r.Length
		of, known := extents[r.File]
		if !known {
			of = extent{r.Offset, r.End()}
		}
		extents[r.File] = extent{min(of.first, r.Offset), max(of.end, r.End())}
	}
	return extents, total
}

// use is one read of a block.
type use struct {
	read   int
	before int64 // bytes that the token has read before it
}

// cutBlocks makes the blocks, and returns the uses of each. A block has only what is read of it, from the
// first byte to the last: where the rest of a file is not read, small weights lie alone, each in a block of
// its own.
func (s *Schedule) cutBlocks(size int64, extents map[int]extent) (uses [][]use) {
	type key struct {
		file  int
		index int64
	}
	byKey := map[key]int{}
	var before int64
	for i, r := range s.Reads {
		for index := r.Offset / size; index*size < r.End(); index++ {
			k := key{r.File, index}
			b, known := byKey[k]
			if !known {
				b = len(s.Blocks)
				byKey[k] = b
				s.Blocks = append(s.Blocks, pages.Range{File: r.File, Offset: max(index*size, r.Offset)})
				uses = append(uses, nil)
			}
			of, block := extents[r.File], &s.Blocks[b]
			start := max(min(block.Offset, r.Offset)&^(grain-1), index*size, of.first&^(pageSize-1))
			end := max(block.Offset+block.Length, min(r.End(), (index+1)*size))
			end = min((end+grain-1)&^(grain-1), (index+1)*size, (of.end+pageSize-1)&^(pageSize-1))
			s.Bytes += end - start - block.Length
			*block = pages.Range{File: r.File, Offset: start, Length: end - start}
			uses[b] = append(uses[b], use{i, before})
		}
		before += r.Length
	}
	return uses
}

// addVisits joins the uses of each block into visits, where no more than near bytes are read in between.
func (s *Schedule) addVisits(uses [][]use, near int64) {
	s.Uses = make([]int, len(s.Blocks))
	add := func(v Visit) {
		s.Visits = append(s.Visits, v)
		s.Uses[v.Block]++
	}
	for b := range s.Blocks {
		last := uses[b][0]
		v := Visit{Block: b, From: last.read, To: last.read}
		for _, u := range uses[b][1:] {
			if u.before-(last.before+s.Reads[last.read].Length) > near {
				add(v)
				v = Visit{Block: b, From: u.read}
			}
			v.To, last = u.read, u
		}
		add(v)
	}
	// The blocks of one read are used in the order of the file.
	slices.SortStableFunc(s.Visits, func(a, b Visit) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(s.Blocks[a.Block].Offset, s.Blocks[b.Block].Offset))
	})
}

// sumBytes adds up the lengths of blocks.
func (s *Schedule) sumBytes(blocks []int) (sum int64) {
	for _, b := range blocks {
		sum += s.Blocks[b].Length
	}
	return sum
}

// BytesOf is how many bytes of a cycle every token reads. Gathered rows and experts do not count.
func BytesOf(c *pattern.Cycle) (sum int64) {
	for i := range c.Reads {
		if r := &c.Reads[i]; !r.Gathers() {
			sum += r.Length
		}
	}
	return sum
}

// BlockSize is the size of a cycle's blocks in bytes, where unit is the size in which pages are best read. A
// small model's blocks are smaller, so that a part of the model can be held.
func BlockSize(c *pattern.Cycle, unit int64) int64 {
	if unit > pages.MinBlock && BytesOf(c)/unit < leastBlocks {
		return pages.MinBlock
	}
	return unit
}
