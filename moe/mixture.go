package moe

// This file mixes predictors.

import (
	"math"
	"slices"
)

// Mixture weighs predictors by how they did of late: its score is a weighted sum of theirs, and after
// each layer the weights take a step of logistic regression towards what was chosen. Weights are learned
// for each lead (how many routers ahead the score was asked for), by all layers together, and for each
// layer what differs there. Its scores are calibrated: the logistic function of one is the share of
// experts with that score that are chosen.
type Mixture struct {
	shape  Shape
	of     []Predictor
	leads  []lead
	at     int // the layer that was observed last; -1 at the beginning of a token
	sigma  []float32
	scored []float32 // of a lead that is not learned
}

// lead is what a mixture knows of predictions some routers ahead.
type lead struct {
	ahead   int
	shared  []weight // of each predictor, and a constant
	own     []weight // by layer: added to shared
	pending []pending
}

type weight struct{ w, squares float32 }

// pending is a prediction whose truth is not known yet.
type pending struct {
	layer  int // -1: none
	inputs []float32
}

// pend finds the prediction of a layer; if there is none, a free one, or the one that waits in its place.
func (l *lead) pend(layer int) *pending {
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

// NewMixture mixes predictors, which belong to it from now on. It learns weights for each of leads, such as 1, 2 and 4.
func NewMixture(s Shape, leads []int, of ...Predictor) *Mixture {
	m := &Mixture{
		shape: s, of: of, at: -1, sigma: make([]float32, s.Experts), scored: make([]float32, len(of)*s.Experts),
	}
	n := len(of) + 1
	for _, ahead := range leads {
		l := lead{
			ahead: ahead, shared: make([]weight, n), own: make([]weight, n*s.Layers), pending: make([]pending, ahead),
		}
		for i := range of {
			l.shared[i].w = 1 / float32(len(of))
		}
		for i := range l.pending {
			l.pending[i] = pending{layer: -1, inputs: make([]float32, len(of)*s.Experts)}
		}
		m.leads = append(m.leads, l)
	}
	return m
}

// Begin implements Predictor.
func (m *Mixture) Begin(id int32) {
	m.at = -1
	for _, p := range m.of {
		p.Begin(id)
	}
}

// Scores implements Predictor. Of several calls for one layer, the last one for each lead is learned from.
func (m *Mixture) Scores(layer int, scores []float32) {
	ahead := layer - m.at
	if ahead <= 0 {
		ahead += m.shape.Layers
	}
	l := &m.leads[0]
	for i := range m.leads {
		if m.leads[i].ahead <= ahead {
			l = &m.leads[i]
		}
	}
	inputs := m.scored
	if l.ahead == ahead {
		p := l.pend(layer)
		p.layer, inputs = layer, p.inputs
	}
	for i, p := range m.of {
		p.Scores(layer, inputs[i*m.shape.Experts:(i+1)*m.shape.Experts])
	}
	m.mix(l, layer, inputs, scores)
}

func (m *Mixture) mix(l *lead, layer int, inputs, scores []float32) {
	n, own := len(m.of), l.own[layer*len(l.shared):]
	bias := l.shared[n].w + own[n].w
	for e := range scores {
		scores[e] = bias
	}
	for i := range n {
		w := l.shared[i].w + own[i].w
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
		if p := l.pend(layer); p.layer == layer {
			p.layer = -1
			if len(chosen) > 0 {
				m.learn(l, layer, p.inputs, chosen)
			}
		}
	}
	for _, p := range m.of {
		p.Observe(layer, chosen)
	}
	m.at = layer
}

func (m *Mixture) learn(l *lead, layer int, inputs []float32, chosen []int32) {
	m.mix(l, layer, inputs, m.sigma)
	for e, z := range m.sigma {
		m.sigma[e] = 1 / (1 + float32(math.Exp(-float64(z))))
	}
	for _, e := range chosen {
		m.sigma[e]--
	}
	n := len(m.of)
	own := l.own[layer*(n+1):]
	for i := range n + 1 {
		g := float32(0)
		if i == n {
			for _, d := range m.sigma {
				g += d
			}
		} else {
			for e, x := range inputs[i*m.shape.Experts : (i+1)*m.shape.Experts] {
				g += m.sigma[e] * x
			}
		}
		l.shared[i].step(g, mixStep)
		own[i].step(g, mixOwnStep)
	}
}

// step moves a weight against a gradient, by a step that is the smaller the more it was moved before (Adagrad).
func (w *weight) step(g, size float32) {
	w.squares += g * g
	if w.squares > 0 {
		w.w -= size * g / float32(math.Sqrt(float64(w.squares)))
	}
}

// NewIDs mixes all that can be told from the chosen experts alone, and from the tokens' ids where they
// are known. Its tables take at most about bytes of memory: what does not fit is left out, what is
// nearest comes first.
func NewIDs(s Shape, leads []int, bytes int64) *Mixture {
	of := []Predictor{NewFrequency(s, 0.9), NewFrequency(s, 0.98), NewPrevious(s), NewSameToken(s, bytes/16)}
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
		of = append(of, NewMarkov(s, distance))
	}
	return NewMixture(s, leads, of...)
}
