package hidden

// This file has how a router chooses experts by their products (logits), as llama.cpp's build_moe_ffn
// does it, and how far an expert is from being chosen.

import (
	"math"
	"slices"

	"tensorcast/moe"
)

// chooser computes a layer's choice. Only its scratch memory changes.
type chooser struct {
	gating             gating
	experts, k         int
	groups, groupsUsed int

	// compared has the value of each expert by which experts are compared. For groups that are not chosen
	// it is less by what the group lacks.
	compared    []float32
	slope       []float32 // derivative of compared by the logit
	groupScores []float32 // scores of groups
	order       []int32   // room for the experts and groups
}

func newChooser(r *Routers) chooser {
	return chooser{
		gating: r.gate, experts: r.Experts, k: r.K, groups: r.groups, groupsUsed: r.groupsUsed,
		compared: make([]float32, r.Experts), slope: make([]float32, r.Experts), groupScores: make([]float32, r.groups),
		order: make([]int32, r.Experts),
	}
}

// leastSlope bounds how far from being chosen an expert can seem whose probability hardly depends on its
// logit.
const leastSlope = 1e-3

// computeCompared computes what is compared.
func (c *chooser) computeCompared(l *router, logits []float32) {
	if c.gating == gateLogits || l.prefer == nil && c.groups == 0 { // the order is that of the logits
		copy(c.compared, logits)
		for e := range c.slope {
			c.slope[e] = 1
		}
	}
	switch {
	case l.prefer == nil && c.groups == 0:
		return
	case c.gating == gateSoftmax:
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
	case c.gating == gateSigmoid:
		for e, z := range logits {
			p := sigmoid(z)
			c.compared[e], c.slope[e] = p, max(p*(1-p), leastSlope)
		}
	case c.gating == gateSqrtSoftplus:
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
	c.penalizeGroups()
}

func sigmoid(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }

// penalizeGroups takes from the experts of groups that are not chosen what their group lacks. A group's
// score is the sum of its best two experts.
func (c *chooser) penalizeGroups() {
	if c.groups == 0 {
		return
	}
	size := c.experts / c.groups
	for g := range c.groupScores {
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
		c.groupScores[g] = best + second
	}
	chosen := moe.Top(c.groupScores, c.order, c.groupsUsed)
	last := c.groupScores[chosen[c.groupsUsed-1]]
	for _, g := range chosen {
		c.groupScores[g] = last
	}
	for g, score := range c.groupScores {
		if lacks := last - score; lacks > 0 {
			for e := g * size; e < (g+1)*size; e++ {
				c.compared[e] -= lacks
			}
		}
	}
}

// choose writes what the layer chooses by its logits to chosen, the best first. chosen has room for K.
func (c *chooser) choose(l *router, logits []float32, chosen []int32) []int32 {
	c.computeCompared(l, logits)
	if c.groups > 0 { // here a group that is not chosen has no chance at all
		size := c.experts / c.groups
		best := moe.Top(c.groupScores, c.order, c.groupsUsed)
		for g := range c.groupScores {
			if !slices.Contains(best, int32(g)) {
				for e := g * size; e < (g+1)*size; e++ {
					c.compared[e] = float32(math.Inf(-1))
				}
			}
		}
	}
	return append(chosen[:0], moe.Top(c.compared, c.order, c.k)...)
}

// margins writes by how much the logit of each expert exceeds what is needed to be chosen. margins may be
// the same slice as logits.
func (c *chooser) margins(l *router, logits, margins []float32) {
	c.computeCompared(l, logits)
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
