package moe

// This file predicts a layer from what an earlier layer chose.

import "math"

// Markov predicts what a layer chooses from what was chosen some routers before. That is the layer before
// it (distance 1), the one before that, or the same layer for the previous token (distance Shape.Layers).
// It counts how often each expert followed each other expert.
type Markov struct {
	shape    Shape
	distance int
	prior    *Frequency
	last     choices // what each layer chose last
	// lastRouter is the router that was observed last, counted from the beginning of the first token; -1
	// before that.
	lastRouter int
	seenAt     []int   // when each layer was observed last, as lastRouter counts; -1 if it was not
	follows    []uint8 // by layer, expert chosen before, expert: how often
	total      []uint8 // by layer, expert chosen before: how often anything followed
}

const (
	markovPrior = 2.0 // observations that the prior counts for
	// The experts that were chosen before are not independent witnesses. A mixture weighs them anew.
	markovWeight = 0.8
	markovDecay  = 0.98
)

// MarkovBytes is roughly the memory that a Markov predictor takes.
func MarkovBytes(s Shape) int64 { return int64(s.Layers) * int64(s.Experts) * int64(s.Experts+2) }

// NewMarkov makes a predictor from what was chosen distance routers before, with 1 <= distance <=
// s.Layers.
func NewMarkov(s Shape, distance int) *Markov {
	m := &Markov{
		shape: s, distance: distance, prior: NewFrequency(s, markovDecay), last: newChoices(s, s.Layers),
		lastRouter: -1,
		seenAt:     make([]int, s.Layers),
		follows:    make([]uint8, s.Layers*s.Experts*s.Experts), total: make([]uint8, s.Layers*s.Experts),
	}
	for i := range m.seenAt {
		m.seenAt[i] = -1
	}
	return m
}

// Begin does nothing.
func (m *Markov) Begin(int32) {}

// source is what was chosen distance routers before the next choice of a layer; nil if that is not known
// yet.
func (m *Markov) source(layer int) []int32 {
	target := m.lastRouter + 1 // the next time that the layer's router chooses
	if rest := target % m.shape.Layers; rest != layer {
		target += (layer - rest + m.shape.Layers) % m.shape.Layers
	}
	from := target - m.distance
	if from < 0 || m.seenAt[from%m.shape.Layers] != from {
		return nil
	}
	return m.last.get(from % m.shape.Layers)
}

func (m *Markov) countsOf(layer int, before int32) ([]uint8, *uint8) {
	i := layer*m.shape.Experts + int(before)
	return m.follows[i*m.shape.Experts : (i+1)*m.shape.Experts], &m.total[i]
}

// Scores implements Predictor. Where the earlier choice is not known yet, it scores by frequency.
func (m *Markov) Scores(layer int, scores []float32) {
	m.prior.Scores(layer, scores)
	p := m.prior.sharesOf(layer)
	for _, a := range m.source(layer) {
		row, total := m.countsOf(layer, a)
		if *total == 0 {
			continue
		}
		n := float32(*total)
		nothing := float32(math.Log(float64(markovPrior / (n + markovPrior))))
		for e, c := range row {
			if c == 0 {
				scores[e] += markovWeight * nothing
				continue
			}
			q := m.prior.smoothed(p[e])
			scores[e] += markovWeight * float32(math.Log(float64((float32(c)+markovPrior*q)/((n+markovPrior)*q))))
		}
	}
}

// Observe implements Predictor.
func (m *Markov) Observe(layer int, chosen []int32) {
	for _, a := range m.source(layer) {
		if len(chosen) == 0 {
			break
		}
		row, total := m.countsOf(layer, a)
		// No count exceeds the total. What was long ago counts half.
		if *total == math.MaxUint8 {
			for e := range row {
				row[e] /= 2
			}
			*total /= 2
		}
		*total++
		for _, e := range chosen {
			row[e]++
		}
	}
	m.prior.Observe(layer, chosen)
	m.last.set(layer, chosen)
	m.lastRouter += (layer-(m.lastRouter+1)%m.shape.Layers+m.shape.Layers)%m.shape.Layers + 1
	m.seenAt[layer] = m.lastRouter
}
