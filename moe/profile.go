package moe

// This file says how a model uses its experts, independent of caches and predictors.

import (
	"math"
	"slices"
)

// Profile says how unevenly experts are used, and how soon again. Shares are of the choices of the
// generated tokens, or of all tokens if none was generated. A choice is one expert of a token in a layer.
type Profile struct {
	Tokens int `json:"tokens"`
	// Entropy is the entropy of the experts' load as a share of the greatest possible, on average over
	// layers. 1 is even use.
	Entropy float64 `json:"entropy"`
	Least   float64 `json:"least"` // the entropy of the least even layer
	Hot     int     `json:"hot"`   // a quarter of a layer's experts
	// HotLoad is the share of the second half's choices that fall on the quarter of each layer's experts
	// that was used most before. Chosen in hindsight, that quarter would have a large share in any short
	// trace.
	HotLoad float64 `json:"hot_load"`
	Touched float64 `json:"touched"` // share of all experts that were used at least once
	Overlap float64 `json:"overlap"` // share of a token's experts that the token before chose in the same layer
	Chance  float64 `json:"chance"`  // what that would be if all choices were random
	New     float64 `json:"new"`     // share of the choices that were the first of their expert
	// Reuse is after how many tokens an expert was chosen again, at the quantiles 0.5, 0.75 and 0.9 of
	// those choices that were not the first.
	Reuse [3]int `json:"reuse"`
}

// NewProfile computes a trace's profile.
func NewProfile(t *Trace) Profile {
	s, first := t.Shape(), t.FirstDecode()
	if first == len(t.Tokens) {
		first = 0
	}
	p := Profile{Tokens: len(t.Tokens) - first, Hot: max(s.Experts/4, 1), Least: 1, Chance: ratio(s.K, s.Experts)}
	var hot, later, touched, chosen, pairs, again int
	var distances []int
	load, last, order := make([]int, s.Experts), make([]int, s.Experts), make([]int, s.Experts)
	middle := first + p.Tokens/2
	for layer := range s.Layers {
		clear(load)
		for e := range last {
			last[e] = -1
		}
		total, before := 0, []int32(nil)
		for token := first; token < len(t.Tokens); token++ {
			now := t.Chosen(token, layer)
			if before != nil {
				pairs += len(now)
			}
			for _, e := range now {
				load[e]++
				total++
				if slices.Contains(before, e) {
					again++
				}
				if last[e] >= 0 {
					distances = append(distances, token-last[e])
				} else {
					touched++
				}
				last[e] = token
			}
			before = now
		}
		chosen += total
		h := entropy(load, total)
		p.Entropy += h / float64(s.Layers)
		p.Least = min(p.Least, h)
		clear(load)
		for token := range middle {
			for _, e := range t.Chosen(token, layer) {
				load[e]++
			}
		}
		for e := range order {
			order[e] = e
		}
		slices.SortStableFunc(order, func(a, b int) int { return load[b] - load[a] })
		for token := middle; token < len(t.Tokens); token++ {
			for _, e := range t.Chosen(token, layer) {
				later++
				if slices.Contains(order[:p.Hot], int(e)) {
					hot++
				}
			}
		}
	}
	p.HotLoad, p.Touched, p.Overlap, p.New = ratio(hot, later), ratio(touched, s.Layers*s.Experts),
		ratio(again, pairs), ratio(touched, chosen)
	slices.Sort(distances)
	for i, q := range []float64{0.5, 0.75, 0.9} {
		if len(distances) > 0 {
			p.Reuse[i] = distances[int(q*float64(len(distances)-1))]
		}
	}
	return p
}

// entropy is the entropy of a distribution, divided by the greatest possible: that of an even
// distribution over as many experts as could have been chosen.
func entropy(load []int, total int) float64 {
	most := min(len(load), total)
	if most < 2 {
		return 1
	}
	h := 0.0
	for _, n := range load {
		if n > 0 {
			q := float64(n) / float64(total)
			h -= q * math.Log(q)
		}
	}
	return h / math.Log(float64(most))
}
