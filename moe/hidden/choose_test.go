package hidden

// This file compares choices with the plainest code that does what llama.cpp does.

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// chosenPlainly computes what llama.cpp does, as plainly as possible.
func chosenPlainly(gate gating, k, groups, used int, prefer, logits []float32) []int32 {
	n := len(logits)
	score := make([]float64, n)
	sum := 0.0
	for _, z := range logits {
		sum += math.Exp(float64(z))
	}
	for e, z := range logits {
		x := float64(z)
		switch gate {
		case gateSoftmax:
			x = math.Exp(x) / sum
		case gateSigmoid:
			x = 1 / (1 + math.Exp(-x))
		case gateSqrtSoftplus:
			x = math.Sqrt(math.Log(1 + math.Exp(x)))
		}
		if prefer != nil {
			x += float64(prefer[e])
		}
		score[e] = x
	}
	if groups > 0 {
		size := n / groups
		best := make([]float64, groups)
		order := make([]int, groups)
		for g := range groups {
			s := slices.Sorted(slices.Values(score[g*size : (g+1)*size]))
			best[g], order[g] = s[size-1]+s[size-2], g
		}
		slices.SortFunc(order, func(a, b int) int { return -cmpFloat(best[a], best[b]) })
		for _, g := range order[used:] {
			for e := g * size; e < (g+1)*size; e++ {
				score[e] = math.Inf(-1)
			}
		}
	}
	var all []int32
	for e := range n {
		all = append(all, int32(e))
	}
	slices.SortFunc(all, func(a, b int32) int { return -cmpFloat(score[a], score[b]) })
	return all[:k]
}

func cmpFloat(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Each kind of router chooses what llama.cpp's does. The margins of the chosen experts are positive, and
// no others.
func TestChoice(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const n, k = 32, 5
	for _, gate := range []gating{gateSoftmax, gateSigmoid, gateLogits, gateSqrtSoftplus} {
		for _, biased := range []bool{false, true} {
			for _, groups := range []int{0, 4, 16} {
				r := &Routers{Experts: n, K: k, gate: gate, groups: groups, groupsUsed: groups / 2}
				c := newChooser(r)
				l := &router{}
				differ := 0
				for range 200 {
					logits := gaussian(rng, n)
					if biased {
						l.prefer = gaussian(rng, n)
						for e := range l.prefer {
							l.prefer[e] *= 0.1
						}
					}
					want := chosenPlainly(gate, k, groups, groups/2, l.prefer, logits)
					got := c.choose(l, logits, make([]int32, 0, k))
					if !slices.Equal(got, want) {
						t.Fatalf("gating %d, bias %v, %d groups: %v, want %v", gate, biased, groups, got, want)
					}
					if !slices.Equal(want, chosenPlainly(gateLogits, k, 0, 0, nil, logits)) {
						differ++
					}
					margins := make([]float32, n)
					c.margins(l, logits, margins)
					for e, m := range margins {
						if !isFinite(m) || groups == 0 && (m > 0) != slices.Contains(want, int32(e)) {
							t.Fatalf("gating %d, bias %v: expert %d has the margin %g, chosen are %v", gate, biased,
								e, m, want)
						}
					}
				}
				if (biased || groups > 0) && differ == 0 {
					t.Errorf("gating %d, bias %v, %d groups: the choice is always that without them", gate, biased,
						groups)
				}
			}
		}
	}
	// All experts are chosen.
	c := newChooser(&Routers{Experts: 3, K: 3, gate: gateSoftmax})
	if got := c.choose(&router{}, []float32{1, 3, 2}, make([]int32, 0, 3)); !slices.Equal(got, []int32{1, 2, 0}) {
		t.Errorf("choice %v, want all experts: 1, 2, 0", got)
	}
	margins := make([]float32, 3)
	c.margins(&router{}, []float32{1, 3, 2}, margins)
	if margins[0] < 0 {
		t.Errorf("margins %v, want none below 0", margins)
	}
}
