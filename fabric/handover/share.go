package handover

// This file shares memory among weights, so that a token takes the least time: which of them are streamed
// from disk, which are kept in memory, and which the device holds, in how many planes. It is a knapsack in
// which one of several choices is taken for each item (multiple-choice knapsack). It is pure arithmetic.

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
	compute float64 // computing, with all processors
	read    float64 // reading from disk while other weights are computed
	wait    float64 // reading from disk while nothing can be computed, as with experts, whose choice is known too late
	// What the planes' error counts for: so little that it only decides between plans that take the same time.
	loss float64
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

// time is that of a token: reading and computing take place at the same time.
func (c *cost) time() float64 { return c.wait + max(c.compute, c.read) }

// shareSteps is how many weights of computing against reading are tried. Which of the two takes longer is
// known only when all is chosen.
const shareSteps = 16

// shareMemory chooses one of each item's choices, so that a token takes the least time with so many bytes
// of memory. The first choice of each item must take no memory. Memory is given where it saves most for
// each byte, the last of it as far as it fits: so the result is longer than the shortest time by at most
// what the choices of one item differ in. Of items that save as much, the first ones get memory first.
func shareMemory(items [][]choice, memory int64) (chosen []int, of cost) {
	best := math.Inf(1)
	for step := range shareSteps + 1 {
		part := float64(step) / shareSteps
		got := shareByCost(items, memory, func(o *choice) float64 {
			return o.wait + part*o.compute +
				(1-part)*o.read + o.loss
		})
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

// exchange is that of an item's choice for the next larger one that is worth it.
type exchange struct {
	item, to int
	memory   int64
	density  float64 // cost that each byte saves
	class    int     // number of a class of densities that count as equal; the greatest come first
}

// sameDensity is by how much densities may differ that count as equal: rows of planes are padded, by more or less.
const sameDensity = 0.1

// shareByCost is shareMemory for costs that add up.
func shareByCost(items [][]choice, memory int64, costOf func(*choice) float64) []int {
	chosen := make([]int, len(items))
	var steps []exchange
	for i, all := range items {
		last := 0
		for _, n := range plan.Hull(len(all), func(n int) int64 { return all[n].memory },
			func(n int) float64 { return costOf(&all[n]) }) {
			if n == 0 {
				continue
			}
			bytes := all[n].memory - all[last].memory
			saved := costOf(&all[last]) - costOf(&all[n])
			steps = append(steps, exchange{item: i, to: n, memory: bytes, density: saved / float64(max(bytes, 1))})
			last = n
		}
	}
	slices.SortStableFunc(steps, func(a, b exchange) int { return cmp.Compare(b.density, a.density) })
	first := 0.0
	for i := range steps {
		if i == 0 || steps[i].density < first*(1-sameDensity) {
			first = steps[i].density
			steps[i].class = i + 1
		} else {
			steps[i].class = steps[i-1].class
		}
	}
	slices.SortStableFunc(steps, func(a, b exchange) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.item, b.item))
	})
	size := func(s exchange) (int, int64) { return s.item, s.memory }
	plan.Fill(len(items), steps, memory, size, func(s exchange) { chosen[s.item] = s.to })
	return chosen
}
