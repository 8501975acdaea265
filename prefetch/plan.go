package prefetch

// This file decides what is pinned and what is streamed: from the reads of one token to blocks of the model's files.

import (
	"cmp"
	"slices"
)

// Read is one weight that a token reads, in the order of reading.
type Read struct {
	File    int    // index of the model's file
	Offset  int64  // first byte in the file
	Length  int64  // bytes
	Address uint64 // of the first byte in the target
}

// End is the first byte behind the read.
func (r Read) End() int64 { return r.Offset + r.Length }

// minBlock is the unit of pinning and streaming. Blocks are aligned in the file: a pin that cuts a large folio keeps the
// whole folio in memory.
const minBlock = 1 << 20

// maxBlocks bounds the number of blocks, hence of mappings (each pinned run splits one; Linux allows 65530).
const maxBlocks = 16384

// block is an aligned piece of a file that a token reads from.
type block struct {
	file    int
	offset  int64 // in the file
	length  int64
	address uint64 // in the target
	pinned  bool
}

// visit is an uninterrupted use of a block: it is needed from the beginning of read from to the end of read to.
type visit struct {
	block    int
	from, to int
}

// plan is what one token reads, in blocks.
type plan struct {
	reads  []Read
	blocks []block // in the order of first use
	visits []visit // in the order of from
	bytes  int64   // sum of the blocks' lengths
}

// newPlan cuts reads in blocks. near is how many bytes may be read between two uses of a block for it to stay in
// memory in between; it is at most the window.
func newPlan(reads []Read, near int64) *plan {
	p := &plan{reads: reads}
	var total int64
	type span struct{ first, end int64 }
	spans := map[int]span{} // what is read of each file: blocks are clipped to it, outside may not be mapped
	for _, r := range reads {
		total += r.Length
		s, ok := spans[r.File]
		if !ok {
			s = span{r.Offset, r.End()}
		}
		spans[r.File] = span{min(s.first, r.Offset), max(s.end, r.End())}
	}
	size := int64(minBlock)
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
	uses := map[int][]use{}
	var before int64
	for i, r := range reads {
		for index := r.Offset / size; index*size < r.End(); index++ {
			k := key{r.File, index}
			b, ok := byKey[k]
			if !ok {
				b = len(p.blocks)
				byKey[k] = b
				start := max(index*size, spans[r.File].first&^(pageSize-1))
				end := min((index+1)*size, (spans[r.File].end+pageSize-1)&^(pageSize-1))
				p.blocks = append(p.blocks, block{file: r.File, offset: start, length: end - start, address: r.Address - uint64(r.Offset-start)})
				p.bytes += end - start
			}
			uses[b] = append(uses[b], use{i, before})
		}
		before += r.Length
	}
	for b := range p.blocks {
		v := visit{block: b, from: uses[b][0].read, to: uses[b][0].read}
		last := uses[b][0]
		for _, u := range uses[b][1:] {
			if u.before-(last.before+reads[last.read].Length) > near {
				p.visits = append(p.visits, v)
				v = visit{block: b, from: u.read}
			}
			v.to, last = u.read, u
		}
		p.visits = append(p.visits, v)
	}
	// Blocks of one read are used in the order of the file.
	slices.SortStableFunc(p.visits, func(a, b visit) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(p.blocks[a.block].offset, p.blocks[b.block].offset))
	})
	return p
}

// spread picks candidates (indices of blocks, in the order of use) of about budget bytes in all, and not more, spread
// evenly over the order: while pinned weights are being computed there is always something to read from disk.
func (p *plan) spread(candidates []int, budget int64) (picked []int, bytes int64) {
	var total, seen int64
	for _, b := range candidates {
		total += p.blocks[b].length
	}
	if budget >= total {
		return candidates, total
	}
	if budget <= 0 {
		return nil, 0
	}
	share := float64(budget) / float64(total)
	for _, b := range candidates {
		length := p.blocks[b].length
		seen += length
		if float64(bytes+length) <= float64(seen)*share { // bytes follows seen * share from below
			picked = append(picked, b)
			bytes += length
		}
	}
	return picked, bytes
}

// where lists the blocks that are pinned, or those that are not.
func (p *plan) where(pinned bool) []int {
	var out []int
	for b := range p.blocks {
		if p.blocks[b].pinned == pinned {
			out = append(out, b)
		}
	}
	return out
}

// streamed lists the visits to blocks that are not pinned.
func (p *plan) streamed() []visit {
	var out []visit
	for _, v := range p.visits {
		if !p.blocks[v.block].pinned {
			out = append(out, v)
		}
	}
	return out
}
