package hidden

// This file has how a router chooses experts by their products (logits), as llama.cpp's build_moe_ffn
// does, and how far an expert is from being chosen.

import (
	"math"

	"tensorcast/moe"
)

// chooser computes a layer's choice. It is not changed by it, save for its scratch memory.
type chooser struct {
	gate               gating
	experts, k         int
	groups, groupsUsed int

	compared []float32 // what is compared, by expert; of groups that are not chosen, less what those lack
	slope    []float32 // of what is compared, against the logit
	group    []float32 // scores of groups
	order    []int32   // room for the experts and groups
}

func newChooser(r *Routers) chooser {
	return chooser{
		gate: r.gate, experts: r.Experts, k: r.K, groups: r.groups, groupsUsed: r.groupsUsed,
		compared: make([]float32, r.Experts), slope: make([]float32, r.Experts), group: make([]float32, r.groups),
		order: make([]int32, r.Experts),
	}
}

// leastSlope bounds how far from the choice an expert can seem to be whose probability hardly depends on its logit.
const leastSlope = 1e-3

// compare computes what is compared.
func (c *chooser) compare(l *router, logits []float32) {
	if c.gate == gateLogits || l.prefer == nil && c.groups == 0 { // the order is the logits' own
		copy(c.compared, logits)
		for e := range c.slope {
			c.slope[e] = 1
		}
	}
	switch {
	case l.prefer == nil && c.groups == 0:
		return
	case c.gate == gateSoftmax:
		most := logits[0]
		for _, z := range logits {
			most = max(most, z)
		}
		sum := 0.0
		for e, z := range logits {
			p := math.Exp(float64(z - most))
			c.compared[e] = float32(p)
			sum += p
		}
		for e := range c.compared {
			p := c.compared[e] / float32(sum)
			c.compared[e], c.slope[e] = p, max(p*(1-p), leastSlope)
		}
	case c.gate == gateSigmoid:
		for e, z := range logits {
			p := sigmoid(z)
			c.compared[e], c.slope[e] = p, max(p*(1-p), leastSlope)
		}
	case c.gate == gateSqrtSoftplus:
		for e, z := range logits {
			soft := float64(z)
			if z < 20 { // beyond that it is z
				soft = math.Log1p(math.Exp(soft))
			}
			root := float32(math.Sqrt(soft))
			c.compared[e], c.slope[e] = root, max(sigmoid(z)/(2*max(root, leastSlope)), leastSlope)
		}
	}
	for e, b := range l.prefer {
		c.compared[e] += b
	}
	c.limit()
}

func sigmoid(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }

// limit takes from the experts of groups that are not chosen what the group lacks. A group's score is the
// sum of its best two.
func (c *chooser) limit() {
	if c.groups == 0 {
		return
	}
	size := c.experts / c.groups
	for g := range c.group {
		best, second := float32(math.Inf(-1)), float32(0)
		for i, x := range c.compared[g*size : (g+1)*size] {
			switch {
			case x > best:
				if i > 0 {
					second = best
				}
				best = x
			case i == 1 || x > second:
				second = x
			}
		}
		c.group[g] = best + second
	}
	chosen := moe.Top(c.group, c.order, c.groupsUsed)
	last := c.group[chosen[c.groupsUsed-1]]
	for _, g := range chosen {
		c.group[g] = last
	}
	for g, score := range c.group {
		if lacks := last - score; lacks > 0 {
			for e := g * size; e < (g+1)*size; e++ {
				c.compared[e] -= lacks
			}
		}
	}
}

// choice writes what the layer chooses by its logits to chosen, which has room for K, the best first.
func (c *chooser) choice(l *router, logits []float32, chosen []int32) []int32 {
	c.compare(l, logits)
	if c.groups > 0 { // here a group that is not chosen has no chance at all
		size := c.experts / c.groups
		best := moe.Top(c.group, c.order, c.groupsUsed)
		for g := range c.group {
			if !has(best, int32(g)) {
				for e := g * size; e < (g+1)*size; e++ {
					c.compared[e] = float32(math.Inf(-1))
				}
			}
		}
	}
	return append(chosen[:0], moe.Top(c.compared, c.order, c.k)...)
}

func has(list []int32, x int32) bool {
	for _, v := range list {
		if v == x {
			return true
		}
	}
	return false
}

// margins writes by how much the logit of each expert exceeds what is needed to be chosen. It may be the
// same slice as logits.
func (c *chooser) margins(l *router, logits, margins []float32) {
	c.compare(l, logits)
	n := min(c.k+1, c.experts)
	best := moe.Top(c.compared, c.order, n)
	threshold := c.compared[best[n-1]]
	if n > c.k {
		threshold = (threshold + c.compared[best[c.k-1]]) / 2
	}
	for e, x := range c.compared {
		margins[e] = (x - threshold) / c.slope[e]
	}
}
