package reuse

// This file computes LRU's misses for every size at once, by stack distances.
//
// R. L. Mattson, J. Gecsei, D. R. Slutz, I. L. Traiger: Evaluation techniques for storage
// hierarchies. IBM Systems Journal 9 (1970). With a Fenwick tree over the places of last uses each
// distance takes O(log n): P. M. Fenwick, A new data structure for cumulative frequency tables,
// Software: Practice and Experience 24 (1994).

import (
	"cmp"
	"slices"
)

// Curve is how many bytes a step misses, for each size of the memory: the byte miss-ratio curve,
// times what a step reads.
type Curve struct {
	points  []point
	perStep float64 // of what no memory holds
}

type point struct {
	size int64   // of a memory
	hits float64 // bytes that a step finds in memories of this size, or larger ones
}

// LRU returns the curve of the memory that drops what was used longest ago, on average over the
// steps from one on; those before fill it. A block is found if it and all different blocks used
// since fit.
func (s *Sequence) LRU(from int) *Curve {
	tree := make(fenwick, len(s.uses)+1)
	last := make([]int32, len(s.sizes)) // use + 1
	first := s.begin(from)
	found := map[int64]int64{} // bytes by stack distance
	for i, b := range s.uses {
		size := s.sizes[b]
		if at := last[b]; at > 0 {
			distance := tree.sum(i) - tree.sum(int(at)) + size
			if i >= first {
				found[distance] += size
			}
			tree.add(int(at), -size)
		}
		tree.add(i+1, size)
		last[b] = int32(i + 1)
	}
	c := &Curve{perStep: s.PerStep(from)}
	sum := int64(0)
	sizes := make([]int64, 0, len(found))
	for size := range found {
		sizes = append(sizes, size)
	}
	slices.Sort(sizes)
	for _, size := range sizes {
		sum += found[size]
		c.points = append(c.points, point{size, s.perStep(sum, from)})
	}
	return c
}

// Missed is how many bytes a step reads from disk with a memory of this size.
func (c *Curve) Missed(size int64) float64 {
	i, exact := slices.BinarySearchFunc(c.points, size,
		func(p point, size int64) int { return cmp.Compare(p.size, size) })
	if !exact {
		i--
	}
	if i < 0 {
		return c.perStep
	}
	return c.perStep - c.points[i].hits
}

// Sizes are the memories' sizes at which fewer bytes are missed than below, ascending.
func (c *Curve) Sizes() []int64 {
	sizes := make([]int64, len(c.points))
	for i, p := range c.points {
		sizes[i] = p.size
	}
	return sizes
}

// fenwick is a tree of sums of prefixes; places count from 1.
type fenwick []int64

func (f fenwick) add(at int, v int64) {
	for ; at < len(f); at += at & -at {
		f[at] += v
	}
}

// sum is that of places 1 to at.
func (f fenwick) sum(at int) (sum int64) {
	for ; at > 0; at -= at & -at {
		sum += f[at]
	}
	return sum
}
