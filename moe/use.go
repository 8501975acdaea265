package moe

// This file counts the use of experts: of each, token by token, and of how many.

// Use is how often an expert was chosen.
type Use struct {
	Layer     int // an index of Trace.Layers
	Expert    int
	Prompt    int // by tokens of prompts
	Generated int // by generated tokens
	First     int // the first token that chose it, of all; -1 if none did
	Last      int
	// Reuse is after how many tokens it was chosen again, on average; 0 if it was chosen once.
	Reuse float64
}

// Use is that of each expert, layer by layer.
func (t *Trace) Use() []Use {
	s, first := t.Shape(), t.FirstDecode()
	all := make([]Use, s.Layers*s.Experts)
	for layer := range s.Layers {
		of := all[layer*s.Experts : (layer+1)*s.Experts]
		for e := range of {
			of[e] = Use{Layer: layer, Expert: e, First: -1, Last: -1}
		}
		for token := range t.Tokens {
			for _, e := range t.Chosen(token, layer) {
				u := &of[e]
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
		for e := range of {
			if n := of[e].Prompt + of[e].Generated; n > 1 {
				of[e].Reuse = float64(of[e].Last-of[e].First) / float64(n-1)
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
	Touched int // experts that have been chosen up to here
}

// TokenUses has an element for each token: Touched is the curve of first touches.
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
				if contains(before, e) {
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
