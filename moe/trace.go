// Package moe is about which experts a mixture-of-experts model chooses. It has traces of routing,
// predictors that say which experts a layer will choose, measures of how good these are, and policies
// that say which experts to keep. It does not know how routing is observed, nor how bytes are moved. Its
// subpackage replay runs a trace through a cache of experts.
package moe

// This file has the routing trace, and the checks that every reader's rows pass.

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Bounds of a trace. Published models have up to 94 layers, 896 experts and 16 per token.
const (
	maxLayers       = 1 << 10
	maxExperts      = 1 << 14
	maxChosen       = 1 << 8  // per token and layer
	maxCells        = 1 << 22 // tokens times layers: 32 MiB
	maxChoices      = 1 << 25 // in all: 128 MiB
	maxLayerExperts = 1 << 17 // layers times experts
	maxBytes        = 1 << 40 // of an expert
	maxTotal        = 1 << 53 // bytes that all tokens need together, so that sums and times do not overflow
)

// Phase says what a token was for.
type Phase uint8

// A token is part of a prompt, or it was generated before it was routed.
const (
	Prompt Phase = iota
	Decode
)

func (p Phase) String() string {
	if p == Prompt {
		return "prompt"
	}
	return "decode"
}

// UnknownID is the id of a token that was not observed.
const UnknownID = -1

// Layer is a layer that has experts.
type Layer struct {
	Number int32 // in the model
	Bytes  int64 // of one expert, all its matrices; 0 if unknown
}

// Token is a token that was routed.
type Token struct {
	Step     int32 // of the decode call; ascending
	Position int32 // within the step's batch
	Phase    Phase
	ID       int32 // in the vocabulary; UnknownID if unknown
}

// Trace is what a model's routers chose for a sequence of tokens. It does not change once it was read,
// and may be used concurrently.
type Trace struct {
	Model   string // its name, as the trace's maker calls it
	Experts int    // per layer
	K       int    // the most that a token chooses in a layer
	Layers  []Layer
	Tokens  []Token

	cells  []cell // len(Tokens) x len(Layers)
	chosen []int32
}

// cell says where in Trace.chosen the experts are that a token chose in a layer.
type cell struct{ first, n uint32 }

// Chosen are the experts that a token chose in a layer, the highest score first. The layer is an index of
// Layers. The result is empty if the choice was not observed, or not computed: a prompt's last layer is
// computed for its last token only. Do not write to it.
func (t *Trace) Chosen(token, layer int) []int32 {
	c := t.cells[token*len(t.Layers)+layer]
	return t.chosen[c.first : c.first+c.n : c.first+c.n]
}

// Shape is the shape of the model's routing.
func (t *Trace) Shape() Shape { return Shape{Layers: len(t.Layers), Experts: t.Experts, K: t.K} }

// FirstDecode is the index of the first generated token; len(Tokens) if there is none.
func (t *Trace) FirstDecode() int {
	for i := range t.Tokens {
		if t.Tokens[i].Phase == Decode {
			return i
		}
	}
	return len(t.Tokens)
}

// Split is the index of the first token that predictors are scored on: the first generated one, as a
// target begins with its prompt. In a trace that is all prompt it is the middle.
func (t *Trace) Split() int {
	if first := t.FirstDecode(); first < len(t.Tokens) {
		return first
	}
	return len(t.Tokens) / 2
}

// TokenBytes is how many bytes of experts a token needs that chooses K in each layer. It is 0 if the size
// of a layer's experts is not known.
func (t *Trace) TokenBytes() int64 {
	sum := int64(0)
	for _, l := range t.Layers {
		if l.Bytes == 0 {
			return 0
		}
		sum += l.Bytes * int64(t.K) // at most 2^58 in all
	}
	return sum
}

// ErrNoRoutes says that a trace has no rows: its model is dense, or its routers were not observed.
var ErrNoRoutes = errors.New("no routes")

// builder makes a trace of rows. Rows of a prompt come by layer, and those of generated tokens by token.
// Either way, tokens have to ascend within a layer, and the slots of a token have to be consecutive.
type builder struct {
	trace       *Trace
	layers      map[int32]int // index by number
	turns       []int32       // of each token
	lastToken   []int         // by layer: the token of the last row; -1: none
	lastChooser []uint32      // by expert: the number of the choice that had it last, to find doubles
	row         uint32
	rowLimit    int // the greatest number of rows
}

func newBuilder(t *Trace) (*builder, error) {
	if len(t.Layers) < 1 || len(t.Layers) > maxLayers || t.Experts < 1 || t.Experts > maxExperts {
		return nil, fmt.Errorf("%d layers with %d experts, want 1 to %d layers and 1 to %d experts", len(t.Layers),
			t.Experts, maxLayers, maxExperts)
	}
	if len(t.Layers)*t.Experts > maxLayerExperts {
		return nil, fmt.Errorf("%d layers with %d experts, want %d experts at most in all", len(t.Layers), t.Experts,
			maxLayerExperts)
	}
	b := &builder{
		trace: t, rowLimit: maxChoices, layers: map[int32]int{}, lastToken: make([]int, len(t.Layers)),
		lastChooser: make([]uint32, t.Experts),
	}
	for i, l := range t.Layers {
		if _, twice := b.layers[l.Number]; twice || l.Bytes < 0 || l.Bytes > maxBytes {
			return nil, fmt.Errorf("layer %d is there twice, or has experts of %d bytes", l.Number, l.Bytes)
		}
		b.layers[l.Number] = i
		b.lastToken[i] = -1
	}
	return b, nil
}

// row is one expert that a token chose.
type row struct {
	turn, step, position int32
	layer, slot, expert  int32
	phase                Phase
	id                   int32
}

func (b *builder) addRow(r row) error {
	t := b.trace
	layer, ok := b.layers[r.layer]
	switch {
	case !ok:
		return fmt.Errorf("layer %d is none of the model's %d with experts", r.layer, len(t.Layers))
	case r.expert < 0 || int(r.expert) >= t.Experts:
		return fmt.Errorf("expert %d, want 0 to %d", r.expert, t.Experts-1)
	case len(t.chosen) >= b.rowLimit:
		return fmt.Errorf("more than %d rows are too many", b.rowLimit)
	case r.slot < 0 || r.slot >= maxChosen || t.K > 0 && int(r.slot) >= t.K:
		return fmt.Errorf("slot %d, want 0 to %d", r.slot, cmp.Or(t.K, maxChosen)-1)
	}
	token, err := b.findToken(&r)
	if err != nil {
		return err
	}
	if tok := &t.Tokens[token]; tok.Phase != r.phase {
		return fmt.Errorf("step %d is of the phase %s, and of %s before", r.step, r.phase, tok.Phase)
	}
	c := &t.cells[token*len(t.Layers)+layer]
	switch {
	case token < b.lastToken[layer]:
		return fmt.Errorf("step %d, position %d after step %d, position %d of the same layer", r.step, r.position,
			t.Tokens[b.lastToken[layer]].Step, t.Tokens[b.lastToken[layer]].Position)
	case r.slot != int32(c.n) || c.n > 0 && int(c.first+c.n) != len(t.chosen):
		return fmt.Errorf("slot %d of step %d, layer %d: want slot %d next, and one after the other", r.slot, r.step,
			r.layer, c.n)
	}
	if c.n == 0 {
		c.first = uint32(len(t.chosen))
		b.row++
	}
	if b.lastChooser[r.expert] == b.row {
		return fmt.Errorf("step %d, layer %d chooses expert %d twice", r.step, r.layer, r.expert)
	}
	b.lastChooser[r.expert] = b.row
	b.lastToken[layer] = token
	c.n++
	t.chosen = append(t.chosen, r.expert)
	return nil
}

// findToken finds a row's token, or appends it.
func (b *builder) findToken(r *row) (int, error) {
	t := b.trace
	if r.turn < 0 || r.step < 0 || r.position < 0 {
		return 0, fmt.Errorf("turn %d, step %d, position %d", r.turn, r.step, r.position)
	}
	compare := func(i int) int {
		return cmp.Or(cmp.Compare(r.turn, b.turns[i]), cmp.Compare(r.step, t.Tokens[i].Step),
			cmp.Compare(r.position, t.Tokens[i].Position))
	}
	n := len(t.Tokens)
	if n > 0 && compare(n-1) == 0 {
		return n - 1, nil
	}
	if n == 0 || compare(n-1) > 0 {
		if (n+1)*len(t.Layers) > maxCells {
			return 0, fmt.Errorf("more than %d tokens are too many", n)
		}
		t.Tokens = append(t.Tokens, Token{Step: r.step, Position: r.position, Phase: r.phase, ID: r.id})
		b.turns = append(b.turns, r.turn)
		t.cells = append(t.cells, make([]cell, len(t.Layers))...)
		return n, nil
	}
	low, high := 0, n // the first token that is not before the row's
	for low < high {
		if mid := (low + high) / 2; compare(mid) > 0 {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if compare(low) != 0 {
		return 0, fmt.Errorf("step %d, position %d after step %d: steps must ascend", r.step, r.position,
			t.Tokens[n-1].Step)
	}
	return low, nil
}

// finish returns the trace without the layers in which no token was routed.
func (b *builder) finish() (*Trace, error) {
	t := b.trace
	if len(t.chosen) == 0 {
		return nil, ErrNoRoutes
	}
	old := len(t.Layers)
	var used []int
	for i, last := range b.lastToken {
		if last >= 0 {
			used = append(used, i)
		}
	}
	layers := make([]Layer, 0, len(used))
	cells := make([]cell, 0, len(used)*len(t.Tokens))
	for _, i := range used {
		layers = append(layers, t.Layers[i])
	}
	k := uint32(0)
	for token := range t.Tokens {
		for _, i := range used {
			c := t.cells[token*old+i]
			k = max(k, c.n)
			cells = append(cells, c)
		}
	}
	t.Layers, t.cells, t.K = layers, cells, int(k)
	if bytes := t.TokenBytes(); bytes > maxTotal/int64(len(t.Tokens)) {
		return nil, fmt.Errorf("%d tokens of %d bytes of experts are too many", len(t.Tokens), bytes)
	}
	t.Tokens, t.chosen = slices.Clip(t.Tokens), slices.Clip(t.chosen)
	return t, nil
}
