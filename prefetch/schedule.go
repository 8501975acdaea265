package prefetch

// This file cuts a cycle in blocks, and says when each is needed.

import (
	"cmp"
	"slices"

	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// grain is what the bounds of a block are multiples of.
const grain = 64 << 10

// maxBlocks bounds the number of blocks, hence of mappings (each locked run splits one; Linux allows 65530).
const maxBlocks = 16384

// Schedule is what one token reads, in blocks. It is not changed once it is made.
type Schedule struct {
	Reads   []pages.Range // in order of use; what gathers is left out: which rows and experts it reads depends on the token
	Blocks  []pages.Range // in the order of first use; they do not overlap
	Visits  []Visit       // in the order of From
	Bytes   int64         // of all blocks
	uses    []int         // by block: how many visits it has
	Tensors []string      // by read
	Nanos   []int64       // by read: how long its op was seen to compute, in ns; -1 if it was not
}

// Visit is an uninterrupted use of a block: it is needed from the beginning of read From to the end of read To.
type Visit struct {
	Block    int // index of Schedule.Blocks
	From, To int // indices of Schedule.Reads
}

// NewSchedule cuts a cycle, whose reads must lie within their files and add up to no more than maxCycleBytes, in blocks of size bytes, a power of two, or of a multiple if
// these were too many. near is how many bytes may be read between two uses of a block
// for it to stay in memory in between: at most the window.
func NewSchedule(c *pattern.Cycle, size, near int64) *Schedule {
	s := &Schedule{}
	var total int64
	type span struct{ first, end int64 }
	spans := map[int]span{} // what is read of each file: blocks are clipped to it, outside may not be mapped
	for i := range c.Reads {
		r := &c.Reads[i]
		if r.Gathers() || r.Length <= 0 {
			continue
		}
		s.Reads = append(s.Reads, pages.Range{File: r.File, Offset: r.Offset, Length: r.Length})
		s.Nanos = append(s.Nanos, r.Nanos)
		s.Tensors = append(s.Tensors, r.Tensor)
		total += r.Length
		of, ok := spans[r.File]
		if !ok {
			of = span{r.Offset, r.End()}
		}
		spans[r.File] = span{min(of.first, r.Offset), max(of.end, r.End())}
	}
	for total/size > maxBlocks {
		size *= 2
	}

	type key struct {
		file  int
		index int64
	}
	byKey := map[key]int{}
	type use struct {
		read   int
		before int64 // bytes read before it
	}
	var uses [][]use // by block
	var before int64
	for i, r := range s.Reads {
		for index := r.Offset / size; index*size < r.End(); index++ {
			k := key{r.File, index}
			b, ok := byKey[k]
			if !ok {
				b = len(s.Blocks)
				byKey[k] = b
				s.Blocks = append(s.Blocks, pages.Range{File: r.File, Offset: max(index*size, r.Offset)})
				uses = append(uses, nil)
			}
			// Of a block only what is read, from its first byte to its last: where the rest of the file is not read, small weights lie alone, each in a block of its own.
			of, block := spans[r.File], &s.Blocks[b]
			start := max(min(block.Offset, r.Offset)&^(grain-1), index*size, of.first&^(pages.PageSize-1))
			end := max(block.Offset+block.Length, min(r.End(), (index+1)*size))
			end = min((end+grain-1)&^(grain-1), (index+1)*size, (of.end+pages.PageSize-1)&^(pages.PageSize-1))
			s.Bytes += end - start - block.Length
			*block = pages.Range{File: r.File, Offset: start, Length: end - start}
			uses[b] = append(uses[b], use{i, before})
		}
		before += r.Length
	}
	s.uses = make([]int, len(s.Blocks))
	for b := range s.Blocks {
		last := uses[b][0]
		v := Visit{Block: b, From: last.read, To: last.read}
		for _, u := range uses[b][1:] {
			if u.before-(last.before+s.Reads[last.read].Length) > near {
				s.Visits = append(s.Visits, v)
				s.uses[b]++
				v = Visit{Block: b, From: u.read}
			}
			v.To, last = u.read, u
		}
		s.Visits = append(s.Visits, v)
		s.uses[b]++
	}
	// Blocks of one read are used in the order of the file.
	slices.SortStableFunc(s.Visits, func(a, b Visit) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(s.Blocks[a.Block].Offset, s.Blocks[b.Block].Offset))
	})
	return s
}

// bytes sums up blocks.
func (s *Schedule) bytes(blocks []int) (sum int64) {
	for _, b := range blocks {
		sum += s.Blocks[b].Length
	}
	return sum
}
