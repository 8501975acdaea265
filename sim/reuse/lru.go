package reuse

// This file computes LRU's misses for every size at once, by stack distances.
//
// See R. L. Mattson, J. Gecsei, D. R. Slutz, I. L. Traiger: Evaluation techniques for storage
// hierarchies. IBM Systems Journal 9 (1970). With a Fenwick tree over the positions of last uses,
// each distance takes O(log n): P. M. Fenwick, A new data structure for cumulative frequency
// tables, Software: Practice and Experience 24 (1994).

import (
	"cmp"
	"slices"
)

// Curve is how many bytes a step misses, for each size of the memory. It is the byte miss-ratio
// curve, times what a step reads.
type Curve struct {
	points  []curvePoint
	perStep float64 // bytes that a step reads; without memory all of them are missed
}

type curvePoint struct {
	size int64   // of a memory
	hits float64 // bytes that a step finds in memories of at least this size
}

// LRU returns the curve of a memory that drops the block that was used longest ago, averaged over
// the steps from one on. The steps before fill the memory. A block is found if it and all different
// blocks used since fit.
func (s *Sequence) LRU(from int) *Curve {
	tree := make(fenwick, len(s.uses)+1)
	last := make([]int32, len(s.sizes)) // use + 1
	first := s.firstUse(from)
	found := map[int64]int64{} // bytes by stack distance
	for i, b := range s.uses {
		size := s.sizes[b]
		if at := last[b]; at > 0 {
			distance := tree.prefixSum(i) - tree.prefixSum(int(at)) + size
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
		c.points = append(c.points, curvePoint{size, s.averagePerStep(sum, from)})
	}
	return c
}

// Missed returns how many bytes a step reads from disk with a memory of this size.
func (c *Curve) Missed(size int64) float64 {
	i, exact := slices.BinarySearchFunc(c.points, size,
		func(p curvePoint, size int64) int { return cmp.Compare(p.size, size) })
	if !exact {
		i--
	}
	if i < 0 {
		return c.perStep
	}
	return c.perStep - c.points[i].hits
}

// Sizes returns the sizes at which the curve falls, in ascending order.
func (c *Curve) Sizes() []int64 {
	sizes := make([]int64, len(c.points))
	for i, p := range c.points {
		sizes[i] = p.size
	}
	return sizes
}

// fenwick is a tree of prefix sums. Positions count from 1.
type fenwick []int64

func (f fenwick) add(at int, v int64) {
	for ; at < len(f); at += at & -at {
		f[at] += v
	}
}

// prefixSum returns the sum of positions 1 to at.
func (f fenwick) prefixSum(at int) (sum int64) {
	for ; at > 0; at -= at & -at {
		sum += f[at]
	}
	return sum
}
