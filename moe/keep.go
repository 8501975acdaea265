package moe

// This file has the policies that say which experts to keep in memory.

import "slices"

// Policy says how much it is worth to keep an expert in memory. Its caller follows the target as that of
// a Predictor does: it calls Observe for each layer in order. Memory is allocated when a policy is made.
// A policy is for one goroutine.
type Policy interface {
	// Observe tells what a layer's router chose; empty if that is not known. It is called before experts
	// are dropped to make room for the chosen ones.
	Observe(layer int, chosen []int32)
	// Worth is the worth of keeping an expert now. The expert with the least is dropped first. Only the
	// order counts. That of the experts of one layer among each other changes only when this layer is observed,
	// or when the policy is told what to expect of it.
	Worth(layer int, expert int32) float32
}

// LRU keeps what was used last.
type LRU struct {
	experts int
	clock   float32
	used    []float32
}

// NewLRU makes a policy that has seen nothing.
func NewLRU(s Shape) *LRU { return &LRU{experts: s.Experts, used: make([]float32, s.Layers*s.Experts)} }

// Observe implements Policy.
func (l *LRU) Observe(layer int, chosen []int32) {
	l.clock++
	for _, e := range chosen {
		l.used[layer*l.experts+int(e)] = l.clock
	}
}

// Worth implements Policy.
func (l *LRU) Worth(layer int, expert int32) float32 { return l.used[layer*l.experts+int(expert)] }

// LFU keeps what its layer chose most often, with exponential decay.
type LFU struct{ *Frequency }

// NewLFU makes a policy that counts a token decay times as much as the next one.
func NewLFU(s Shape, decay float64) LFU { return LFU{NewFrequency(s, decay)} }

// Worth implements Policy.
func (l LFU) Worth(layer int, expert int32) float32 { return l.sharesOf(layer)[expert] }

// ExpectedUse keeps what is expected to be used soonest, if each token chooses an expert as often as it
// was chosen lately.
type ExpectedUse struct {
	frequency *Frequency
	lastLayer int // the layer that was observed last
}

// NewExpectedUse makes a policy. decay is that of the frequency.
func NewExpectedUse(s Shape, decay float64) *ExpectedUse {
	return &ExpectedUse{frequency: NewFrequency(s, decay)}
}

// Observe implements Policy.
func (u *ExpectedUse) Observe(layer int, chosen []int32) {
	u.frequency.Observe(layer, chosen)
	u.lastLayer = layer
}

// Worth implements Policy. It is the negative of the expected time until the next use, in tokens.
func (u *ExpectedUse) Worth(layer int, expert int32) float32 {
	return 1 - u.frequency.shape.tokensUntil(u.lastLayer,
		layer) - 1/u.frequency.smoothed(u.frequency.sharesOf(layer)[expert])
}

// Scored keeps what prefetchd keeps (package prefetch/mixture, which has the same rule in its own types): what is
// expected to be used soonest, if each token chooses an expert as often as it was chosen in about the last 64
// tokens. It remembers longer than ExpectedUse with its usual decay does, and takes an expert that was not chosen
// lately to be nearly never chosen.
type Scored struct {
	shape     Shape
	scores    []float64 // by layer and expert: the sum of the steps of the choices that had it
	steps     []float64 // by layer: what the last choice added; it grows, so that choices of long ago count less
	lastLayer int       // the layer that was observed last
}

// Constants of prefetchd's rule. A test of package prefetch/mixture fails if they differ from those there.
const (
	scoredMemory = 64    // about how many tokens a layer's choices are remembered for
	scoredMost   = 1e200 // when scores are scaled down
	scoredNever  = 1e-4  // the chance, in a token, of an expert that was not chosen lately
)

// NewScored makes a policy that has seen nothing.
func NewScored(s Shape) *Scored {
	return &Scored{
		shape: s, scores: make([]float64, s.Layers*s.Experts), steps: slices.Repeat([]float64{1}, s.Layers),
	}
}

// Observe implements Policy.
func (c *Scored) Observe(layer int, chosen []int32) {
	c.lastLayer = layer
	if len(chosen) == 0 {
		return
	}
	scores, step := c.scores[layer*c.shape.Experts:(layer+1)*c.shape.Experts], &c.steps[layer]
	*step *= 1 + 1.0/scoredMemory
	for _, e := range chosen {
		scores[e] += *step
	}
	if *step > scoredMost {
		for e := range scores {
			scores[e] /= *step
		}
		*step = 1
	}
}

// Worth implements Policy. It is the negative of the expected time until the next use, in tokens.
func (c *Scored) Worth(layer int, expert int32) float32 {
	score := c.scores[layer*c.shape.Experts+int(expert)]
	chance := min(score/c.steps[layer]/scoredMemory+scoredNever, 1)
	return float32(1 - 1/chance - float64(c.shape.tokensUntil(c.lastLayer, layer)))
}

// tokensUntil is how long it takes after one layer was observed until another comes, in tokens: more than
// 0, at most 1.
func (s *Shape) tokensUntil(observed, layer int) float32 {
	ahead := layer - observed
	if ahead <= 0 {
		ahead += s.Layers
	}
	return float32(ahead) / float32(s.Layers)
}

// HitDensity keeps what is most likely to be chosen when its layer comes next, per time that it has to be
// kept. (The name is that of Beckmann, Chen and Cidon, "LHD: Improving Cache Hit Rate by Maximizing Hit
// Density", NSDI 2018.) A caller that has a predictor sets these probabilities with Expect; otherwise they
// are the frequencies. HitDensity keeps more of what is needed than ExpectedUse does: an expert that is
// seldom chosen has a long time until its next use, and that time is the least certain.
type HitDensity struct {
	frequency   *Frequency
	probability []float32 // by layer and expert
	lastLayer   int
}

// NewHitDensity makes a policy. decay is that of the frequency.
func NewHitDensity(s Shape, decay float64) *HitDensity {
	c := &HitDensity{frequency: NewFrequency(s, decay)}
	c.probability = append(c.probability, c.frequency.shares...)
	return c
}

// Observe implements Policy. Until Expect is called, the layer's experts are expected as often as they
// were used.
func (c *HitDensity) Observe(layer int, chosen []int32) {
	c.frequency.Observe(layer, chosen)
	c.Expect(layer, c.frequency.sharesOf(layer))
	c.lastLayer = layer
}

// Expect tells how likely it is that each expert of a layer is chosen when the layer comes next.
func (c *HitDensity) Expect(layer int, p []float32) {
	n := c.frequency.shape.Experts
	copy(c.probability[layer*n:(layer+1)*n], p)
}

// Worth implements Policy. It is the probability divided by a time: that until the layer comes, and one
// token more, for which an expert is kept on average in any case.
func (c *HitDensity) Worth(layer int, expert int32) float32 {
	shape := &c.frequency.shape
	return c.probability[layer*shape.Experts+int(expert)] / (1 + shape.tokensUntil(c.lastLayer, layer))
}
