package moe

// This file has the policies that say which experts to keep in memory.

// Policy says what it is worth to keep an expert. Its caller follows the target like that of a Predictor:
// Observe for each layer in order. Memory is allocated when a policy is made. A policy is for one
// goroutine.
type Policy interface {
	// Observe tells what a layer's router chose; empty if that is not known. It comes before experts are
	// taken out to make room for these.
	Observe(layer int, chosen []int32)
	// Worth of keeping an expert, now: that with the least goes first. Only the order means something.
	Worth(layer int, expert int32) float32
}

// LRU keeps what was used last.
type LRU struct {
	experts int
	clock   float32
	used    []float32
}

// NewLRU makes such a policy.
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
func (l LFU) Worth(layer int, expert int32) float32 { return l.of(layer)[expert] }

// ExpectedUse keeps what is expected to be used soonest, if each token chooses an expert as often as it
// was chosen of late.
type ExpectedUse struct {
	often *Frequency
	at    int // the layer that was observed last
}

// NewExpectedUse makes such a policy. decay is that of the frequency.
func NewExpectedUse(s Shape, decay float64) *ExpectedUse {
	return &ExpectedUse{often: NewFrequency(s, decay)}
}

// Observe implements Policy.
func (u *ExpectedUse) Observe(layer int, chosen []int32) {
	u.often.Observe(layer, chosen)
	u.at = layer
}

// Worth implements Policy: it is the expected time until the next use, in tokens, negative.
func (u *ExpectedUse) Worth(layer int, expert int32) float32 {
	return 1 - u.often.shape.until(u.at, layer) - 1/u.often.smooth(u.often.of(layer)[expert])
}

// until is how long it takes from when one layer was observed until another comes, in tokens: more than 0, at most 1.
func (s *Shape) until(at, layer int) float32 {
	ahead := layer - at
	if ahead <= 0 {
		ahead += s.Layers
	}
	return float32(ahead) / float32(s.Layers)
}

// Chance keeps what is most probably chosen when its layer comes next, per time that it has to be kept.
// It is told these probabilities by whoever has a predictor; where it is not, it goes by frequency. It
// keeps more of what is needed than ExpectedUse does: an expert that is chosen seldom waits long, but how
// long is known least of all.
type Chance struct {
	often *Frequency
	next  []float32 // by layer and expert: the probability
	at    int
}

// NewChance makes such a policy. decay is that of the frequency.
func NewChance(s Shape, decay float64) *Chance {
	c := &Chance{often: NewFrequency(s, decay)}
	c.next = append(c.next, c.often.p...)
	return c
}

// Observe implements Policy. Until Expect is called, the layer's experts are expected as often as they were used.
func (c *Chance) Observe(layer int, chosen []int32) {
	c.often.Observe(layer, chosen)
	c.Expect(layer, c.often.of(layer))
	c.at = layer
}

// Expect tells how probable it is that each expert of a layer is chosen when that comes next.
func (c *Chance) Expect(layer int, p []float32) {
	n := c.often.shape.Experts
	copy(c.next[layer*n:(layer+1)*n], p)
}

// Worth implements Policy: it is the probability, divided by the time until then and a token more, for
// which it is kept on the average in any case.
func (c *Chance) Worth(layer int, expert int32) float32 {
	return c.next[layer*c.often.shape.Experts+int(expert)] / (1 + c.often.shape.until(c.at, layer))
}
