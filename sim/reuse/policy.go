package reuse

// This file computes the misses of policies for which there is no curve, one size at a time. All
// results are averages over the steps from one on. The steps before fill the memory.

import (
	"cmp"
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
)

// Random returns how many bytes a step misses if the dropped block is chosen at random, uniformly
// among blocks. The choices are the same in each call.
func (s *Sequence) Random(size int64, from int) float64 {
	r := rand.New(rand.NewPCG(1, 2))
	var in []int32
	at := make([]int32, len(s.sizes)) // 1 + the index in in, by block; 0 if it is not there
	return s.replay(size, from, func(b int32) bool { return at[b] > 0 }, func(_ int, b int32) {
		in = append(in, b)
		at[b] = int32(len(in))
	}, func() int32 {
		i := r.IntN(len(in))
		victim, last := in[i], in[len(in)-1]
		in[i], at[last] = last, int32(i+1)
		in, at[victim] = in[:len(in)-1], 0
		return victim
	}, nil)
}

// Belady returns how many bytes a step misses if the dropped block is the one whose next use is
// latest (L. A. Belady, A study of replacement algorithms for a virtual-storage computer, IBM
// Systems Journal 5, 1966). With blocks of one size, no policy that must hold each used block
// misses less. With extents of several sizes one might miss a little less.
func (s *Sequence) Belady(size int64, from int) float64 {
	next := make([]int32, len(s.uses)) // the next use of the same block, by use
	later := make([]int32, len(s.sizes))
	for b := range later {
		later[b] = math.MaxInt32
	}
	for i := len(s.uses) - 1; i >= 0; i-- {
		next[i] = later[s.uses[i]]
		later[s.uses[i]] = int32(i)
	}
	in := make([]bool, len(s.sizes))
	at := later // from here on, the next use of each block
	var order furthestFirst
	return s.replay(size, from, func(b int32) bool { return in[b] }, func(_ int, b int32) {
		in[b] = true
	}, func() int32 {
		for {
			top := heap.Pop(&order).(nextUse)
			if in[top.block] && at[top.block] == top.next { // else the block was used since
				in[top.block] = false
				return top.block
			}
		}
	}, func(i int, b int32) {
		at[b] = next[i]
		if len(order) > 4*len(s.sizes)+1024 { // most entries are outdated
			order = slices.DeleteFunc(order, func(u nextUse) bool { return !in[u.block] || at[u.block] != u.next })
			heap.Init(&order)
		}
		heap.Push(&order, nextUse{next[i], b})
	})
}

// replay runs the uses through a memory. in reports whether a block is there. fetched is called for
// a block that was not, drop chooses a block to remove, and used, if not nil, is called after each
// use of a block that is there.
func (s *Sequence) replay(
	size int64, from int, in func(int32) bool, fetched func(int, int32), drop func() int32,
	used func(int, int32),
) float64 {
	first := s.firstUse(from)
	var held, missed int64
	for i, b := range s.uses {
		bytes := s.sizes[b]
		hit := in(b)
		if !hit {
			if i >= first {
				missed += bytes
			}
			if bytes > size { // it streams through, and the memory stays as it is
				continue
			}
			for held+bytes > size {
				held -= s.sizes[drop()]
			}
			held += bytes
			fetched(i, b)
		}
		if used != nil {
			used(i, b)
		}
	}
	return s.averagePerStep(missed, from)
}

// nextUse is the next use of a block, as an index of Sequence.uses.
type nextUse struct{ next, block int32 }

// furthestFirst is a heap with the latest use on top.
type furthestFirst []nextUse

func (f furthestFirst) Len() int           { return len(f) }
func (f furthestFirst) Less(i, j int) bool { return f[i].next > f[j].next }
func (f furthestFirst) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *furthestFirst) Push(x any)        { *f = append(*f, x.(nextUse)) }
func (f *furthestFirst) Pop() any {
	last := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return last
}

// Fixed returns how many bytes a step misses if only a fixed set of blocks is kept: in hindsight,
// those that are used most often, as many as fit. A block of the set is read at its first use.
func (s *Sequence) Fixed(size int64, from int) float64 {
	first := s.firstUse(from)
	count, fresh := make([]int64, len(s.sizes)), make([]bool, len(s.sizes)) // fresh: the block was not used before
	for b := range fresh {
		fresh[b] = true
	}
	for _, b := range s.uses[:first] {
		fresh[b] = false
	}
	for _, b := range s.uses[first:] {
		count[b]++
	}
	order := make([]int32, len(s.sizes))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(count[b], count[a]) })
	var missed int64
	for _, b := range order {
		switch {
		case s.sizes[b] > size:
			missed += count[b] * s.sizes[b]
			continue
		case fresh[b]:
			missed += s.sizes[b]
		}
		size -= s.sizes[b]
	}
	return s.averagePerStep(missed, from)
}
