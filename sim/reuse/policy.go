package reuse

// This file computes misses with memories that have no curve: one size at a time.

import (
	"cmp"
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
)

// Random is how many bytes a step from one on misses if what is dropped is chosen at random,
// uniformly among blocks. The choices are the same in each call.
func (s *Sequence) Random(size int64, from int) float64 {
	r := rand.New(rand.NewPCG(1, 2))
	var in []int32
	at := make([]int32, len(s.sizes)) // in in, + 1
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

// Belady is how many bytes a step from one on misses if what is dropped is that which is used again
// last (L. A. Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems
// Journal 5, 1966). With blocks of one size no memory that must hold what is used misses less; with
// extents of several sizes one might, by little.
func (s *Sequence) Belady(size int64, from int) float64 {
	next := make([]int32, len(s.uses)) // use of the same block
	later := make([]int32, len(s.sizes))
	for b := range later {
		later[b] = math.MaxInt32
	}
	for i := len(s.uses) - 1; i >= 0; i-- {
		next[i] = later[s.uses[i]]
		later[s.uses[i]] = int32(i)
	}
	in := make([]bool, len(s.sizes))
	at := later // from here on: the next use of each block
	var order furthest
	return s.replay(size, from, func(b int32) bool { return in[b] }, func(_ int, b int32) {
		in[b] = true
	}, func() int32 {
		for {
			top := heap.Pop(&order).(use)
			if in[top.block] && at[top.block] == top.next { // else it was used since
				in[top.block] = false
				return top.block
			}
		}
	}, func(i int, b int32) {
		at[b] = next[i]
		if len(order) > 4*len(s.sizes)+1024 { // most of it is of blocks that were used since
			order = slices.DeleteFunc(order, func(u use) bool { return !in[u.block] || at[u.block] != u.next })
			heap.Init(&order)
		}
		heap.Push(&order, use{next[i], b})
	})
}

// replay runs the uses through a memory. Fetched is called for a block that was not in, drop
// chooses one that leaves, and used is called after each use, of what is in.
func (s *Sequence) replay(
	size int64, from int, in func(int32) bool, fetched func(int, int32), drop func() int32,
	used func(int, int32),
) float64 {
	first := s.begin(from)
	var held, missed int64
	for i, b := range s.uses {
		bytes := s.sizes[b]
		hit := in(b)
		if !hit {
			if i >= first {
				missed += bytes
			}
			if bytes > size { // it streams through, and leaves what is there
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
	return s.perStep(missed, from)
}

// use is the next use of a block.
type use struct{ next, block int32 }

// furthest is a heap: the use that comes last is on top.
type furthest []use

func (f furthest) Len() int           { return len(f) }
func (f furthest) Less(i, j int) bool { return f[i].next > f[j].next }
func (f furthest) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *furthest) Push(x any)        { *f = append(*f, x.(use)) }
func (f *furthest) Pop() any {
	last := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return last
}

// Fixed is how many bytes a step from one on misses if a set of blocks is kept, and nothing else
// is: those that are used most often, in hindsight, as many as fit. A block of the set is read when
// it is used first.
func (s *Sequence) Fixed(size int64, from int) float64 {
	first := s.begin(from)
	count, fresh := make([]int64, len(s.sizes)), make([]bool, len(s.sizes)) // fresh: it was not used before
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
	return s.perStep(missed, from)
}
