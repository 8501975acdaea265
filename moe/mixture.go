package moe

// This file mixes predictors.

import (
	"math"
	"slices"
)

// Mixture weighs predictors by how good they were lately. Its score is a weighted sum of theirs. After
// each layer the weights take a step of logistic regression towards what was chosen. Weights are learned
// for each lead, which is how many routers ahead the score was asked for. All layers share them, and for
// each layer its difference is learned. Scores are calibrated: of the experts with a score, the logistic
// function of the score is the share that is chosen.
type Mixture struct {
	shape     Shape
	members   []Predictor
	leads     []lead
	lastLayer int // -1 at the beginning of a token
	residuals []float32
	scratch   []float32 // inputs of a lead that is not learned
}

// lead is what a mixture knows of predictions that are made some routers ahead.
type lead struct {
	ahead   int
	shared  []weight // of each predictor, and a constant
	own     []weight // by layer: added to shared
	pending []pending
}

type weight struct{ value, squares float32 }

// pending is a prediction whose layer has not chosen yet.
type pending struct {
	layer  int // -1: none
	inputs []float32
}

// findPending finds the prediction of a layer. If there is none, it finds a free one, or else the one to
// be replaced.
func (l *lead) findPending(layer int) *pending {
	found := &l.pending[layer%l.ahead]
	for i := range l.pending {
		switch p := &l.pending[i]; {
		case p.layer == layer:
			return p
		case p.layer < 0 && found.layer >= 0:
			found = p
		}
	}
	return found
}

const (
	mixStep    = 0.05
	mixOwnStep = 0.01
)

// NewMixture mixes predictors, which belong to it from now on. It learns weights for each of leads, such
// as 1, 2 and 4.
func NewMixture(s Shape, leads []int, members ...Predictor) *Mixture {
	m := &Mixture{
		shape: s, members: members, lastLayer: -1, residuals: make([]float32, s.Experts),
		scratch: make([]float32, len(members)*s.Experts),
	}
	n := len(members) + 1
	for _, ahead := range leads {
		l := lead{
			ahead: ahead, shared: make([]weight, n), own: make([]weight, n*s.Layers), pending: make([]pending, ahead),
		}
		for i := range members {
			l.shared[i].value = 1 / float32(len(members))
		}
		for i := range l.pending {
			l.pending[i] = pending{layer: -1, inputs: make([]float32, len(members)*s.Experts)}
		}
		m.leads = append(m.leads, l)
	}
	return m
}

// Begin implements Predictor.
func (m *Mixture) Begin(id int32) {
	m.lastLayer = -1
	for _, p := range m.members {
		p.Begin(id)
	}
}

// Scores implements Predictor. Of several calls for a layer with the same lead, the last one is learned
// from.
func (m *Mixture) Scores(layer int, scores []float32) {
	ahead := layer - m.lastLayer
	if ahead <= 0 {
		ahead += m.shape.Layers
	}
	l := &m.leads[0]
	for i := range m.leads {
		if m.leads[i].ahead <= ahead {
			l = &m.leads[i]
		}
	}
	inputs := m.scratch
	if l.ahead == ahead {
		p := l.findPending(layer)
		p.layer, inputs = layer, p.inputs
	}
	for i, p := range m.members {
		p.Scores(layer, inputs[i*m.shape.Experts:(i+1)*m.shape.Experts])
	}
	m.mixScores(l, layer, inputs, scores)
}

func (m *Mixture) mixScores(l *lead, layer int, inputs, scores []float32) {
	n, own := len(m.members), l.own[layer*len(l.shared):]
	bias := l.shared[n].value + own[n].value
	for e := range scores {
		scores[e] = bias
	}
	for i := range n {
		w := l.shared[i].value + own[i].value
		in := inputs[i*m.shape.Experts : (i+1)*m.shape.Experts]
		for e := range scores {
			scores[e] += w * in[e]
		}
	}
}

// Observe implements Predictor.
func (m *Mixture) Observe(layer int, chosen []int32) {
	for i := range m.leads {
		l := &m.leads[i]
		if p := l.findPending(layer); p.layer == layer {
			p.layer = -1
			if len(chosen) > 0 {
				m.learn(l, layer, p.inputs, chosen)
			}
		}
	}
	for _, p := range m.members {
		p.Observe(layer, chosen)
	}
	m.lastLayer = layer
}

func (m *Mixture) learn(l *lead, layer int, inputs []float32, chosen []int32) {
	m.mixScores(l, layer, inputs, m.residuals)
	for e, z := range m.residuals {
		m.residuals[e] = 1 / (1 + float32(math.Exp(-float64(z))))
	}
	for _, e := range chosen {
		m.residuals[e]--
	}
	n := len(m.members)
	own := l.own[layer*(n+1):]
	for i := range n + 1 {
		g := float32(0)
		if i == n {
			for _, d := range m.residuals {
				g += d
			}
		} else {
			for e, x := range inputs[i*m.shape.Experts : (i+1)*m.shape.Experts] {
				g += m.residuals[e] * x
			}
		}
		l.shared[i].descend(g, mixStep)
		own[i].descend(g, mixOwnStep)
	}
}

// descend moves a weight against a gradient. The more it was moved before, the smaller the step
// (Adagrad).
func (w *weight) descend(g, size float32) {
	w.squares += g * g
	if w.squares > 0 {
		w.value -= size * g / float32(math.Sqrt(float64(w.squares)))
	}
}

// NewIDMixture mixes all predictors that need only the chosen experts, and the tokens' ids where they are
// known. Their tables take roughly bytes of memory. What does not fit is left out; the nearest routers
// come first.
func NewIDMixture(s Shape, leads []int, bytes int64) *Mixture {
	members := []Predictor{NewFrequency(s, 0.9), NewFrequency(s, 0.98), NewPrevious(s), NewSameToken(s, bytes/16)}
	bytes -= bytes / 16
	var used []int
	for _, distance := range []int{1, 2, 4, s.Layers, 3} {
		if distance > s.Layers || slices.Contains(used, distance) {
			continue
		}
		if bytes -= MarkovBytes(s); bytes < 0 {
			break
		}
		used = append(used, distance)
		members = append(members, NewMarkov(s, distance))
	}
	return NewMixture(s, leads, members...)
}
