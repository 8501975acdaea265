package replay

// This file has the policies that know the future. They bound what others can reach.

import "tensorcast/moe"

// Belady keeps what is used next (MIN). Where all experts have the same size, no policy misses less
// without reading ahead.
type Belady struct {
	trace *moe.Trace
	// For each choice of the trace, in order of tokens, layers and slots: the router that chooses the
	// expert next; never if none does.
	next    []int32
	starts  []int32 // by router: the index of its first choice in next
	current []float32
	router  int
}

// NewBelady makes the policy for a replay of a trace.
func NewBelady(t *moe.Trace) *Belady {
	s := t.Shape()
	b := &Belady{trace: t, current: make([]float32, s.Layers*s.Experts)}
	for token := range t.Tokens {
		for layer := range s.Layers {
			b.starts = append(b.starts, int32(len(b.next)))
			b.next = append(b.next, make([]int32, len(t.Chosen(token, layer)))...)
		}
	}
	coming := make([]int32, s.Layers*s.Experts)
	for i := range coming {
		coming[i] = never
	}
	for router := len(b.starts) - 1; router >= 0; router-- {
		layer := router % s.Layers
		for slot, e := range t.Chosen(router/s.Layers, layer) {
			id := layer*s.Experts + int(e)
			b.next[int(b.starts[router])+slot] = coming[id]
			coming[id] = int32(router)
		}
	}
	for id := range b.current {
		b.current[id] = float32(coming[id])
	}
	return b
}

// Observe implements moe.Policy.
func (b *Belady) Observe(layer int, chosen []int32) {
	for slot, e := range chosen {
		b.current[layer*b.trace.Experts+int(e)] = float32(b.next[int(b.starts[b.router])+slot])
	}
	b.router++
}

// Worth implements moe.Policy.
func (b *Belady) Worth(layer int, expert int32) float32 {
	return -b.current[layer*b.trace.Experts+int(expert)]
}

// Pinned keeps what is chosen most often over all generated tokens. This is, in hindsight, the best that
// a fixed set can do.
type Pinned struct {
	*moe.LRU
	experts int
	count   []float32
}

// NewPinned makes the policy for a replay of a trace.
func NewPinned(t *moe.Trace) *Pinned {
	s := t.Shape()
	p := &Pinned{LRU: moe.NewLRU(s), experts: s.Experts, count: make([]float32, s.Layers*s.Experts)}
	for token := t.FirstDecode(); token < len(t.Tokens); token++ {
		for layer := range s.Layers {
			for _, e := range t.Chosen(token, layer) {
				p.count[layer*s.Experts+int(e)]++
			}
		}
	}
	return p
}

// Worth implements moe.Policy.
func (p *Pinned) Worth(layer int, expert int32) float32 {
	return p.count[layer*p.experts+int(expert)]
}
