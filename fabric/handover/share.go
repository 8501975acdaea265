package handover

// This file shares memory among weights: which of them are streamed from disk, which are kept, and which the device holds, in how many planes, so that a token takes the least time. It is a knapsack in
// which one of several choices is taken for each thing (multiple-choice knapsack), and pure arithmetic.

import (
	"cmp"
	"math"
	"slices"

	"tensorcast/fabric/plan"
)

// choice is a way to have weights computed. Times are what an average token takes for it, in seconds.
type choice struct {
	planes  int     // that the device holds; 0: the CPU computes
	memory  int64   // bytes
	compute float64 // of all processors
	read    float64 // from disk, while other weights are computed
	wait    float64 // from disk, while nothing can be computed: which experts are needed is known too late
	loss    float64 // what the planes' error counts for, little enough to decide only between plans that take the same time
}

// cost is what several choices add up to.
type cost struct {
	memory                      int64
	compute, read, wait, losses float64
}

func (c *cost) add(o *choice) {
	c.memory += o.memory
	c.compute += o.compute
	c.read += o.read
	c.wait += o.wait
	c.losses += o.loss
}

// time of a token: what is read while others are computed takes no time of its own, as long as that is less.
func (c *cost) time() float64 { return c.wait + max(c.compute, c.read) }

// shareSteps is how many weights of computing against reading are tried: which of the two a token takes longer for is known only when all is chosen.
const shareSteps = 16

// share chooses one of each item's choices, so that a token takes the least time with so many bytes of memory. The first choice of each must take none. The result can take more time than the least that there is by no more than
// what the choices of one item differ in, as each bit of memory is given where it saves most, the last of it as far as it fits.
// Of items that save as much the first ones get memory first.
func share(items [][]choice, memory int64) (chosen []int, of cost) {
	best := math.Inf(1)
	for step := range shareSteps + 1 {
		part := float64(step) / shareSteps
		got := shareBy(items, memory, func(o *choice) float64 { return o.wait + part*o.compute + (1-part)*o.read + o.loss })
		var c cost
		for i, n := range got {
			c.add(&items[i][n])
		}
		if t := c.time() + c.losses; t < best {
			best, chosen, of = t, got, c
		}
	}
	return chosen, of
}

// step is the exchange of an item's choice for the next larger one that is worth it.
type step struct {
	item, to int
	memory   int64
	density  float64 // cost that is saved by each byte
	class    int     // of densities that count as equal, the greatest first
}

// sameDensity is by how much densities may differ that count as equal: rows are filled up to a few columns more.
const sameDensity = 0.1

// shareBy is share for costs that add up.
func shareBy(items [][]choice, memory int64, costOf func(*choice) float64) []int {
	chosen := make([]int, len(items))
	var steps []step
	for i, all := range items {
		last := 0
		for _, n := range plan.Hull(len(all), func(n int) int64 { return all[n].memory }, func(n int) float64 { return costOf(&all[n]) }) {
			if n == 0 {
				continue
			}
			bytes := all[n].memory - all[last].memory
			steps = append(steps, step{item: i, to: n, memory: bytes, density: (costOf(&all[last]) - costOf(&all[n])) / float64(max(bytes, 1))})
			last = n
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(b.density, a.density) })
	first := 0.0
	for i := range steps {
		if i == 0 || steps[i].density < first*(1-sameDensity) {
			first = steps[i].density
			steps[i].class = i + 1
		} else {
			steps[i].class = steps[i-1].class
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.item, b.item)) })
	plan.Fill(len(items), steps, memory, func(s step) (int, int64) { return s.item, s.memory }, func(s step) { chosen[s.item] = s.to })
	return chosen
}
