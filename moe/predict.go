package moe

// This file says what a predictor is, and has those that need no model of the model: frequency, the
// previous token, the same token before.

import "math"

// Shape is the shape of a model's routing.
type Shape struct{ Layers, Experts, K int }

// Predictor scores the experts that a layer may choose, from what was observed so far. Its caller follows
// the target: Begin when a token begins, then Observe for each layer in order, as soon as its router has
// chosen. In between it may ask for Scores of any layer that comes: later in this token or, if layer has
// been observed, in the next one. Layers count from 0 to Shape.Layers-1.
//
// Scores are natural logarithms of the odds that the expert is among the chosen; only their order has to
// be right, but a mixture is better the better they are. A predictor that knows more than ids (a router's
// input) is told by a method of its own, between Observe and Scores.
//
// Memory is allocated when a predictor is made, and bounded; its methods allocate none, and their time is
// bounded. A predictor is for one goroutine.
type Predictor interface {
	// Begin starts a token. id is UnknownID if it is not known.
	Begin(id int32)
	// Scores writes a score for each expert to scores, which has Shape.Experts elements.
	Scores(layer int, scores []float32)
	// Observe tells what a layer's router chose, the highest score first; empty if that is not known.
	// chosen is not kept.
	Observe(layer int, chosen []int32)
}

// logit is the logarithm of the odds of p, bounded so that no single observation is a certainty.
func logit(p float32) float32 {
	const least = 1e-4
	p = min(max(p, least), 1-least)
	return float32(math.Log(float64(p / (1 - p))))
}

// Frequency predicts what a layer has chosen most often of late.
type Frequency struct {
	shape Shape
	decay float32
	p     []float32 // by layer and expert: the mean of how often it was chosen, with exponential decay
}

// NewFrequency makes a predictor that counts a token decay times as much as the next one, 0 < decay < 1.
func NewFrequency(s Shape, decay float64) *Frequency {
	f := &Frequency{shape: s, decay: float32(decay), p: make([]float32, s.Layers*s.Experts)}
	for i := range f.p {
		f.p[i] = float32(s.K) / float32(s.Experts)
	}
	return f
}

func (f *Frequency) of(layer int) []float32 {
	return f.p[layer*f.shape.Experts : (layer+1)*f.shape.Experts]
}

// Begin does nothing.
func (f *Frequency) Begin(int32) {}

// Scores implements Predictor.
func (f *Frequency) Scores(layer int, scores []float32) {
	for e, p := range f.of(layer) {
		scores[e] = logit(f.smooth(p))
	}
}

// smooth mixes a share of the uniform distribution in: an expert that was not chosen for long is not impossible.
func (f *Frequency) smooth(p float32) float32 {
	const share = 0.1
	return (1-share)*p + share*float32(f.shape.K)/float32(f.shape.Experts)
}

// Observe implements Predictor.
func (f *Frequency) Observe(layer int, chosen []int32) {
	if len(chosen) == 0 {
		return
	}
	p := f.of(layer)
	for e := range p {
		p[e] *= f.decay
	}
	for _, e := range chosen {
		p[e] += 1 - f.decay
	}
}

// rates learns how often an expert is chosen again that was chosen in a certain rank.
type rates struct {
	shape  Shape
	hit    []float32 // by layer and rank
	tried  []float32
	others []float32 // by layer: how often one is chosen that had no rank
}

func newRates(s Shape) rates {
	r := rates{
		shape: s, hit: make([]float32, s.Layers*s.K), tried: make([]float32, s.Layers*s.K),
		others: make([]float32, s.Layers),
	}
	const prior = 2
	for i := range r.hit {
		r.hit[i], r.tried[i] = prior*0.3, prior
	}
	for i := range r.others {
		r.others[i] = float32(s.K) / float32(s.Experts)
	}
	return r
}

func (r *rates) scores(layer int, before []int32, scores []float32) {
	rest := logit(r.others[layer])
	for e := range scores {
		scores[e] = rest
	}
	for rank, e := range before[:min(len(before), r.shape.K)] {
		i := layer*r.shape.K + rank
		scores[e] = logit(r.hit[i] / r.tried[i])
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
		r.hit[i] *= decay
		r.tried[i] = r.tried[i]*decay + 1
		if contains(chosen, e) {
			r.hit[i]++
			hits++
		}
	}
	if n := r.shape.Experts - len(before); n > 0 {
		const step = 0.05
		r.others[layer] += step * (float32(len(chosen)-hits)/float32(n) - r.others[layer])
	}
}

func contains(chosen []int32, e int32) bool {
	for _, c := range chosen {
		if c == e {
			return true
		}
	}
	return false
}

// Previous predicts what the previous token chose in the layer. It learns for each rank how often that is right.
type Previous struct {
	rates rates
	last  choices
}

// NewPrevious makes such a predictor.
func NewPrevious(s Shape) *Previous { return &Previous{newRates(s), newChoices(s, s.Layers)} }

// Begin does nothing.
func (p *Previous) Begin(int32) {}

// Scores implements Predictor.
func (p *Previous) Scores(layer int, scores []float32) {
	p.rates.scores(layer, p.last.at(layer), scores)
}

// Observe implements Predictor.
func (p *Previous) Observe(layer int, chosen []int32) {
	p.rates.observe(layer, p.last.at(layer), chosen)
	p.last.set(layer, chosen)
}

// choices is a table of sets of at most K experts.
type choices struct {
	k  int
	n  []uint16
	of []int32
}

func newChoices(s Shape, sets int) choices {
	return choices{k: s.K, n: make([]uint16, sets), of: make([]int32, sets*s.K)}
}

func (c *choices) at(i int) []int32 { return c.of[i*c.k : i*c.k+int(c.n[i])] }

func (c *choices) set(i int, chosen []int32) {
	c.n[i] = uint16(copy(c.of[i*c.k:(i+1)*c.k], chosen))
}

// SameToken predicts what the layer chose when it last met a token of the same id. It remembers a bounded
// number of ids: one that falls on another's place replaces it.
type SameToken struct {
	rates  rates
	layers int
	ids    []int32
	sets   choices // by place and layer
	place  int     // of the current token; -1 if its id is not known
	known  bool    // it was met before
}

// NewSameToken makes a predictor that takes about bytes of memory, and remembers as many tokens as fit, 1
// to 4096: most of a text is of fewer.
func NewSameToken(s Shape, bytes int64) *SameToken {
	const most = 4096
	ids := int(min(max(bytes/int64(s.Layers*(4*s.K+2)+4), 1), most))
	t := &SameToken{
		rates: newRates(s), layers: s.Layers, ids: make([]int32, ids), sets: newChoices(s, ids*s.Layers), place: -1,
	}
	for i := range t.ids {
		t.ids[i] = UnknownID
	}
	return t
}

// Begin implements Predictor.
func (t *SameToken) Begin(id int32) {
	t.place, t.known = -1, false
	if id < 0 {
		return
	}
	t.place = int(uint32(id) * 2654435769 % uint32(len(t.ids))) // Knuth's multiplicative hash
	if t.known = t.ids[t.place] == id; !t.known {
		t.ids[t.place] = id
		first := t.place * t.layers
		clear(t.sets.n[first : first+t.layers])
	}
}

// before is what a layer chose for the current token when it was last met.
func (t *SameToken) before(layer int) []int32 {
	if t.place < 0 {
		return nil
	}
	return t.sets.at(t.place*t.layers + layer)
}

// Scores implements Predictor. Of the next token it knows nothing yet.
func (t *SameToken) Scores(layer int, scores []float32) {
	t.rates.scores(layer, t.before(layer), scores)
}

// Observe implements Predictor.
func (t *SameToken) Observe(layer int, chosen []int32) {
	if t.place < 0 {
		return
	}
	t.rates.observe(layer, t.before(layer), chosen)
	t.sets.set(t.place*t.layers+layer, chosen)
}
