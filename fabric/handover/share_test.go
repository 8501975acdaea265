package handover

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestShare compares shareMemory with all ways to share memory. Its result fits, and takes at most as much longer than
// the best one as the choices of one item differ in.
func TestShare(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	found, least := 0.0, 0.0
	for range 400 {
		var items [][]choice
		widest := 0.0
		for range 2 + r.IntN(5) {
			all := []choice{{compute: r.Float64(), read: 2 * r.Float64()}}
			if r.IntN(3) == 0 { // an expert
				all[0].read, all[0].wait = 0, 2*r.Float64()
			}
			most := all[0].compute + all[0].read + all[0].wait
			for k := range r.IntN(4) {
				compute := all[0].compute * (0.5 + r.Float64())
				all = append(all, choice{planes: k, memory: 1 + r.Int64N(20), compute: compute})
				most = max(most, all[len(all)-1].compute)
			}
			widest = max(widest, most)
			items = append(items, all)
		}
		memory := r.Int64N(40)
		best := math.Inf(1)
		var try func(i int, c cost)
		try = func(i int, c cost) {
			if i == len(items) {
				best = min(best, c.time())
				return
			}
			for k := range items[i] {
				with := c
				if with.add(&items[i][k]); with.memory <= memory {
					try(i+1, with)
				}
			}
		}
		try(0, cost{})
		chosen, of := shareMemory(items, memory)
		if got := of.time(); len(chosen) != len(items) || of.memory > memory || got < best-1e-9 || got > best+widest {
			t.Fatalf("%v takes %d bytes of %d and %.3f s, want %.3f to %.3f s",
				chosen, of.memory, memory, got, best, best+widest)
		}
		found, least = found+of.time(), least+best
	}
	t.Logf("%.3f times the least", found/least)
	if found > 1.1*least {
		t.Errorf("%.3f times the least time on average, want at most 1.1", found/least)
	}
}

// TestShareEqual: of items that save as much, the first ones get the memory.
func TestShareEqual(t *testing.T) {
	var items [][]choice
	for i := range 10 {
		items = append(items, []choice{{read: 1}, {planes: 2, memory: int64(10 + i%2)}})
	}
	if got, of := shareMemory(items, 45); !slices.Equal(got, []int{1, 1, 1, 1, 0, 0, 0, 0, 0, 0}) || of.memory != 42 {
		t.Errorf("choices %v of %d bytes, want the first four items, 42 bytes", got, of.memory)
	}
}
