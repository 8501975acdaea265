package moe

// This file counts the use of experts: of each expert, of each layer's, by each token, and by several
// tokens together.

import (
	"math"
	"slices"
)

// Use is how often an expert was chosen.
type Use struct {
	Layer     int // an index of Trace.Layers
	Expert    int
	Prompt    int // by how many tokens of prompts
	Generated int // by how many generated tokens
	First     int // the first token that chose it; -1 if none did
	Last      int
	// Reuse is after how many tokens it was chosen again, on average; 0 if it was not chosen twice.
	Reuse float64
}

// Uses is the use of each expert, layer by layer.
func (t *Trace) Uses() []Use {
	s, first := t.Shape(), t.FirstDecode()
	all := make([]Use, s.Layers*s.Experts)
	for layer := range s.Layers {
		uses := all[layer*s.Experts : (layer+1)*s.Experts]
		for e := range uses {
			uses[e] = Use{Layer: layer, Expert: e, First: -1, Last: -1}
		}
		for token := range t.Tokens {
			for _, e := range t.Chosen(token, layer) {
				u := &uses[e]
				if token < first {
					u.Prompt++
				} else {
					u.Generated++
				}
				if u.First < 0 {
					u.First = token
				}
				u.Last = token
			}
		}
		for e := range uses {
			if n := uses[e].Prompt + uses[e].Generated; n > 1 {
				uses[e].Reuse = float64(uses[e].Last-uses[e].First) / float64(n-1)
			}
		}
	}
	return all
}

// TokenUse is what a token chose.
type TokenUse struct {
	Chosen  int // experts in all layers
	Kept    int // of them those that the token before chose in the same layer
	New     int // of them those that no token before had chosen
	Touched int // experts that have been chosen so far
}

// TokenUses has an element for each token.
func (t *Trace) TokenUses() []TokenUse {
	s := t.Shape()
	seen := make([]bool, s.Layers*s.Experts)
	all, touched := make([]TokenUse, len(t.Tokens)), 0
	for token := range all {
		u := &all[token]
		for layer := range s.Layers {
			var before []int32
			if token > 0 {
				before = t.Chosen(token-1, layer)
			}
			for _, e := range t.Chosen(token, layer) {
				u.Chosen++
				if slices.Contains(before, e) {
					u.Kept++
				}
				if at := layer*s.Experts + int(e); !seen[at] {
					seen[at] = true
					u.New++
				}
			}
		}
		touched += u.New
		u.Touched = touched
	}
	return all
}

// LayerUse says how a layer's experts are used.
type LayerUse struct {
	Layer   int     // an index of Trace.Layers
	Chosen  int     // how many choices there were
	Used    int     // experts that were chosen at all
	Entropy float64 // of their load, as a share of the greatest possible: 1 is even use
	Hottest int     // the expert that was chosen most; of several the first
	Coldest int     // the expert that was chosen least; of several the first
	Most    int     // how often the hottest was chosen
	Least   int
	Hot     int // choices that fall on the quarter of the experts that was chosen most
	Kept    int // choices that the token before made, too
}

// LayerUses is the use of each layer's experts by all tokens.
func (t *Trace) LayerUses() []LayerUse {
	s := t.Shape()
	all := make([]LayerUse, s.Layers)
	load := make([]int, s.Experts)
	for layer := range all {
		u := &all[layer]
		u.Layer = layer
		clear(load)
		var before []int32
		for token := range t.Tokens {
			now := t.Chosen(token, layer)
			for _, e := range now {
				load[e]++
				u.Chosen++
				if slices.Contains(before, e) {
					u.Kept++
				}
			}
			before = now
		}
		for e, n := range load {
			if n > 0 {
				u.Used++
			}
			if n > load[u.Hottest] {
				u.Hottest = e
			}
			if n < load[u.Coldest] {
				u.Coldest = e
			}
		}
		u.Most, u.Least, u.Entropy = load[u.Hottest], load[u.Coldest], entropy(load, u.Chosen)
		slices.SortFunc(load, func(a, b int) int { return b - a })
		for _, n := range load[:max(s.Experts/4, 1)] {
			u.Hot += n
		}
	}
	return all
}

// Together is the share of all experts that so many consecutive tokens touch, on average over where they
// begin. It is NaN where there are fewer tokens than that.
type Together struct {
	Tokens            int
	Prompt, Generated float64
}

// Together is that for 1, 2, 4, ... tokens, and for the whole prompt.
func (t *Trace) Together() []Together {
	first := t.FirstDecode()
	longest := max(first, len(t.Tokens)-first)
	var all []Together
	for n := 1; n <= longest; n *= 2 {
		all = append(all, Together{Tokens: n})
	}
	if first > 0 && !slices.ContainsFunc(all, func(o Together) bool { return o.Tokens == first }) {
		all = append(all, Together{Tokens: first})
		slices.SortFunc(all, func(a, b Together) int { return a.Tokens - b.Tokens })
	}
	prompt, generated := t.togetherShares(all, 0, first), t.togetherShares(all, first, len(t.Tokens))
	for i := range all {
		all[i].Prompt, all[i].Generated = prompt[i], generated[i]
	}
	return all
}

// togetherShares has a share for each number of tokens. It counts the windows of so many tokens, between
// from and to, in which an expert is used: all windows but those that lie between two uses.
func (t *Trace) togetherShares(together []Together, from, to int) []float64 {
	s := t.Shape()
	without := make([]int, len(together)) // windows in which an expert is not used, summed over the experts
	countUnused := func(gap int) {
		for i := range together {
			without[i] += max(gap-together[i].Tokens+1, 0)
		}
	}
	last := make([]int, s.Experts)
	for layer := range s.Layers {
		for e := range last {
			last[e] = from - 1
		}
		for token := from; token < to; token++ {
			for _, e := range t.Chosen(token, layer) {
				countUnused(token - last[e] - 1)
				last[e] = token
			}
		}
		for _, at := range last {
			countUnused(to - at - 1)
		}
	}
	shares := make([]float64, len(together))
	for i := range together {
		windows := to - from - together[i].Tokens + 1
		shares[i] = math.NaN()
		if windows > 0 {
			shares[i] = 1 - float64(without[i])/float64(windows*s.Layers*s.Experts)
		}
	}
	return shares
}
