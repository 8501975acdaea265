package moe

// This file says what a predictor is, and has those that go by choices and ids alone: frequency, the
// previous token, the same token before.

import (
	"math"
	"slices"
)

// Shape is the shape of a model's routing: layers with experts, experts of a layer, and the most that a
// token chooses in a layer.
type Shape struct{ Layers, Experts, K int }

// Predictor scores the experts that a layer may choose, from what was observed so far. Its caller follows
// the target. It calls Begin when a token begins, then Observe for each layer in order, as soon as the
// layer's router has chosen. In between it may ask for the Scores of any layer that comes: later in this
// token or, if the layer has been observed, in the next one. Layers count from 0 to Shape.Layers-1.
//
// Scores are natural logarithms of the odds that the expert is among the chosen ones. Only their order
// has to be right, but the better they are, the better is a mixture of them. A predictor that knows more
// than ids, such as a router's input, is told by a method of its own, between Observe and Scores.
//
// Memory is allocated when a predictor is made, and is bounded. Its methods allocate none, and their time
// is bounded. A predictor is for one goroutine.
type Predictor interface {
	// Begin starts a token. id is UnknownID if it is not known.
	Begin(id int32)
	// Scores writes a score for each expert to scores, which has Shape.Experts elements.
	Scores(layer int, scores []float32)
	// Observe tells what a layer's router chose, the highest score first; empty if that is not known. The
	// slice is not kept.
	Observe(layer int, chosen []int32)
}

// logit is the logarithm of the odds of p. It is bounded, so that no single observation is a certainty.
func logit(p float32) float32 {
	const least = 1e-4
	p = min(max(p, least), 1-least)
	return float32(math.Log(float64(p / (1 - p))))
}

// Frequency predicts what a layer has chosen most often lately.
type Frequency struct {
	shape  Shape
	decay  float32
	shares []float32 // by layer and expert: how often it was chosen, a mean with exponential decay
}

// NewFrequency makes a predictor that counts a token decay times as much as the next one, with 0 < decay
// < 1.
func NewFrequency(s Shape, decay float64) *Frequency {
	f := &Frequency{shape: s, decay: float32(decay), shares: make([]float32, s.Layers*s.Experts)}
	for i := range f.shares {
		f.shares[i] = float32(s.K) / float32(s.Experts)
	}
	return f
}

func (f *Frequency) sharesOf(layer int) []float32 {
	return f.shares[layer*f.shape.Experts : (layer+1)*f.shape.Experts]
}

// Begin does nothing.
func (f *Frequency) Begin(int32) {}

// Scores implements Predictor.
func (f *Frequency) Scores(layer int, scores []float32) {
	for e, p := range f.sharesOf(layer) {
		scores[e] = logit(f.smoothed(p))
	}
}

// smoothed mixes a share of the uniform distribution in: an expert that was not chosen for long is not
// impossible.
func (f *Frequency) smoothed(p float32) float32 {
	const share = 0.1
	return (1-share)*p + share*float32(f.shape.K)/float32(f.shape.Experts)
}

// Observe implements Predictor.
func (f *Frequency) Observe(layer int, chosen []int32) {
	if len(chosen) == 0 {
		return
	}
	p := f.sharesOf(layer)
	for e := range p {
		p[e] *= f.decay
	}
	for _, e := range chosen {
		p[e] += 1 - f.decay
	}
}

// rates learns how often an expert is chosen again, by the rank in which it was chosen before.
type rates struct {
	shape  Shape
	hits   []float32 // by layer and rank
	tries  []float32
	others []float32 // by layer: how often an expert is chosen that was not chosen before
}

func newRates(s Shape) rates {
	r := rates{
		shape: s, hits: make([]float32, s.Layers*s.K), tries: make([]float32, s.Layers*s.K),
		others: make([]float32, s.Layers),
	}
	const prior = 2
	for i := range r.hits {
		r.hits[i], r.tries[i] = prior*0.3, prior
	}
	for i := range r.others {
		r.others[i] = float32(s.K) / float32(s.Experts)
	}
	return r
}

func (r *rates) score(layer int, before []int32, scores []float32) {
	rest := logit(r.others[layer])
	for e := range scores {
		scores[e] = rest
	}
	for rank, e := range before[:min(len(before), r.shape.K)] {
		i := layer*r.shape.K + rank
		scores[e] = logit(r.hits[i] / r.tries[i])
	}
}

func (r *rates) observe(layer int, before, chosen []int32) {
	if len(before) == 0 || len(chosen) == 0 {
		return
	}
	hits := 0
	for rank, e := range before[:min(len(before), r.shape.K)] {
		i := layer*r.shape.K + rank
		const decay = 0.98
		r.hits[i] *= decay
		r.tries[i] = r.tries[i]*decay + 1
		if slices.Contains(chosen, e) {
			r.hits[i]++
			hits++
		}
	}
	if n := r.shape.Experts - len(before); n > 0 {
		const step = 0.05
		r.others[layer] += step * (float32(len(chosen)-hits)/float32(n) - r.others[layer])
	}
}

// Previous predicts what the previous token chose in the layer. It learns for each rank how often that is
// right.
type Previous struct {
	rates rates
	last  choices
}

// NewPrevious makes a predictor that has seen nothing.
func NewPrevious(s Shape) *Previous { return &Previous{newRates(s), newChoices(s, s.Layers)} }

// Begin does nothing.
func (p *Previous) Begin(int32) {}

// Scores implements Predictor.
func (p *Previous) Scores(layer int, scores []float32) {
	p.rates.score(layer, p.last.get(layer), scores)
}

// Observe implements Predictor.
func (p *Previous) Observe(layer int, chosen []int32) {
	p.rates.observe(layer, p.last.get(layer), chosen)
	p.last.set(layer, chosen)
}

// choices is a table of sets of at most K experts.
type choices struct {
	k       int
	counts  []uint16
	experts []int32
}

func newChoices(s Shape, sets int) choices {
	return choices{k: s.K, counts: make([]uint16, sets), experts: make([]int32, sets*s.K)}
}

func (c *choices) get(i int) []int32 { return c.experts[i*c.k : i*c.k+int(c.counts[i])] }

func (c *choices) set(i int, chosen []int32) {
	c.counts[i] = uint16(copy(c.experts[i*c.k:(i+1)*c.k], chosen))
}

// SameToken predicts what the layer chose for the last token with the same id. It remembers a bounded
// number of ids. An id that falls on another's slot replaces it.
type SameToken struct {
	rates   rates
	layers  int
	ids     []int32
	choices choices // by slot and layer
	slot    int     // of the current token; -1 if its id is not known
}

// NewSameToken makes a predictor that takes roughly bytes of memory. It remembers as many ids as fit, 1
// to 4096, which is more than most texts have.
func NewSameToken(s Shape, bytes int64) *SameToken {
	const most = 4096
	ids := int(min(max(bytes/int64(s.Layers*(4*s.K+2)+4), 1), most))
	t := &SameToken{
		rates: newRates(s), layers: s.Layers, ids: make([]int32, ids), choices: newChoices(s, ids*s.Layers), slot: -1,
	}
	for i := range t.ids {
		t.ids[i] = UnknownID
	}
	return t
}

// Begin implements Predictor.
func (t *SameToken) Begin(id int32) {
	t.slot = -1
	if id < 0 {
		return
	}
	t.slot = int(uint32(id) * 2654435769 % uint32(len(t.ids))) // Knuth's multiplicative hash
	if t.ids[t.slot] != id {
		t.ids[t.slot] = id
		first := t.slot * t.layers
		clear(t.choices.counts[first : first+t.layers])
	}
}

// lastChoice is what a layer chose for the last token with the current token's id.
func (t *SameToken) lastChoice(layer int) []int32 {
	if t.slot < 0 {
		return nil
	}
	return t.choices.get(t.slot*t.layers + layer)
}

// Scores implements Predictor. Of the next token it knows nothing yet.
func (t *SameToken) Scores(layer int, scores []float32) {
	t.rates.score(layer, t.lastChoice(layer), scores)
}

// Observe implements Predictor.
func (t *SameToken) Observe(layer int, chosen []int32) {
	if t.slot < 0 {
		return
	}
	t.rates.observe(layer, t.lastChoice(layer), chosen)
	t.choices.set(t.slot*t.layers+layer, chosen)
}
