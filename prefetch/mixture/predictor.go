package mixture

// This file defines what a predictor of experts is, and tells it what routers read and choose.

import (
	"cmp"
	"math"
	"slices"

	"tensorcast/event"
)

// Routers are those of a mixture that a Predictor is for.
type Routers struct {
	// Blocks has the numbers of their layers in the model, in the order of use. Elsewhere a layer is an index of it.
	Blocks  []int32
	Experts int // the most that a layer has
	Chosen  int // how many of them a token is sent to
	File    int // the file that has the first expert, by the levers' number; the model may have others
}

// Predictor says which experts routers are likely to choose next. The predictors of package moe are such, and
// say in which order the calls come. No call may take long: whoever makes it has a processor meanwhile that
// the target wants.
type Predictor interface {
	// Begin starts a token, whose id is negative if it is not known.
	Begin(id int32)
	// Observe tells what a layer has chosen, the highest score first.
	Observe(layer int, chosen []int32)
	// Scores writes the natural logarithms of the odds that a layer chooses each of its experts when it comes
	// next.
	Scores(layer int, scores []float32)
}

// InputPredictor is a Predictor that also goes by what routers and attention read (event.RouterInput).
type InputPredictor interface {
	Predictor
	// Attention tells what the attention of a layer reads. Scores of that layer are better from then on.
	Attention(layer int, input []float32)
	// Router tells what the router of a layer reads.
	Router(layer int, input []float32)
	// Learn learns from what was told of a layer. It may take longer than the other calls.
	Learn(layer int)
}

const (
	// leastScore is the log-odds above which an expert is predicted: it is more likely to be chosen than not.
	leastScore = 0
	// mostExperts is how many experts a layer may have to be predicted.
	mostExperts = 1024
	// unknownToken is the id of a token that was not observed.
	unknownToken = -1
)

// WantsInputs says whether an event.RouterInput is of use now.
func (m *Mixture) WantsInputs() bool { return m.ahead.inputs != nil }

// NoteInput tells the predictor what a layer is about to compute with.
func (m *Mixture) NoteInput(e event.RouterInput) {
	at, known := m.index[e.Layer]
	if !known || e.Rows != 1 || !m.WantsInputs() {
		return
	}
	m.beginToken(e.Decode)
	switch e.Point {
	case event.PointRouter:
		m.ahead.inputs.Router(at, e.Values)
	case event.PointAttention:
		m.ahead.inputs.Attention(at, e.Values)
		if at == m.next() {
			m.predictNext()
		}
	}
}

// observeChoice tells the predictor what a layer, by its index, has chosen, and asks it for the next one. A
// prompt, which chooses for many tokens, and the warm-up, which chooses all, are not told.
func (m *Mixture) observeChoice(at int, e event.Selected) {
	a := &m.ahead
	if e.IDRows != 1 || len(e.IDs) >= len(m.layers[at].experts) {
		m.forgetPredicted()
		return
	}
	if !m.hasPredictor(len(e.IDs)) {
		return
	}
	m.beginToken(e.Decode)
	a.predictor.Observe(at, e.IDs)
	m.predictNext()
	if a.inputs != nil {
		a.inputs.Learn(at)
	}
}

// hasPredictor makes a predictor once it is known how many experts a token chooses. It says whether there is
// one.
func (m *Mixture) hasPredictor(chosen int) bool {
	a := &m.ahead
	if a.predictor != nil || a.none {
		return !a.none
	}
	r := Routers{Blocks: make([]int32, len(m.layers)), Chosen: chosen, File: m.layers[0].experts[0].slices[0].File}
	for number, at := range m.index {
		r.Blocks[at] = number
		r.Experts = max(r.Experts, len(m.layers[at].experts))
	}
	if m.opts.Predict != nil && r.Experts <= mostExperts {
		a.predictor = m.opts.Predict(r)
	}
	if a.none = a.predictor == nil; a.none {
		return false
	}
	a.inputs, _ = a.predictor.(InputPredictor)
	a.scores = make([]float32, r.Experts)
	a.idleFor = slices.Repeat([]float64{-1}, len(m.layers))
	return true
}

// beginToken begins a token, unless that was done.
func (m *Mixture) beginToken(decode uint32) {
	if m.ahead.decode != decode {
		m.ahead.decode = decode
		m.ahead.predictor.Begin(unknownToken)
	}
}

// next is the index of the layer behind the one whose experts are under way.
func (m *Mixture) next() int { return (m.now + 1) % len(m.layers) }

// predictNext asks what the next layer is likely to choose, and queues what is missing of that, the likeliest
// first.
func (m *Mixture) predictNext() {
	a, at := &m.ahead, m.next()
	l := &m.layers[at]
	a.predictor.Scores(at, a.scores)
	a.queue = a.queue[:0]
	for i := range l.experts {
		e := &l.experts[i]
		e.predicted = 0
		if score := a.scores[i]; score > leastScore {
			e.predicted = 1 / (1 + math.Exp(-float64(score)))
			if !e.elsewhere && !e.resident {
				a.queue = append(a.queue, e)
			}
		}
	}
	slices.SortStableFunc(a.queue, func(a, b *expert) int { return cmp.Compare(b.predicted, a.predicted) })
}
