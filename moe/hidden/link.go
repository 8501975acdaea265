package hidden

// This file has a link: what is learned about one layer's logits from one input before it. The first
// guess is the layer's router, applied to that input. How the layers in between change the logits is
// learned by recursive least squares (a Kalman filter) from the true logits, which the layer's router
// tells each time. It is a correction that is linear in the input of this token and in that of the token
// before, at which attention looks most.

import (
	"fmt"
	"math"

	"tensorcast/internal/vec"
)

// tuning has the constants of learning. They were chosen on one text, and are judged on others: see
// TestRecall.
type tuning struct {
	// gain is the prior variance of a correction's weights, in units of the noise, times the number of
	// inputs.
	gain     float64
	previous float64 // the same for the token before
	// drift is the share of the prior variance that is added after each token: what was learned may
	// change.
	drift float64
	clip  float32 // errors beyond so many standard deviations count as that many
}

var usualTuning = tuning{gain: 3, previous: 0.5, drift: 1e-4, clip: 6}

// link is what is learned. What its method state returns is saved.
type link struct {
	inputs, previous, experts int // features: of the input, of the token before, and a constant 1

	// Learned.
	weights  []float32 // features x experts
	variance []float32 // features x features: of the weights, in units of the noise
	errors   []float32 // by expert: the variance of the predictions' errors, a mean over the last tokens

	// Of the current token.
	isKnown  bool
	features []float32
	guess    []float32 // by the router alone
	logits   []float32 // corrected
	gain     []float32 // scratch: variance times features
}

// checkState says what is impossible in a state that was read.
func (l *link) checkState(state [][]float32) error {
	n := len(l.features)
	for i := range n {
		if state[1][i*n+i] < 0 {
			return fmt.Errorf("the variance of feature %d is negative", i)
		}
	}
	for e := range l.experts {
		if state[2][e] < leastVariance {
			return fmt.Errorf("the error of expert %d is less than possible", e)
		}
	}
	return nil
}

// leastVariance is the least variance of errors: no prediction is exact.
const leastVariance = 1e-8

// linkBytes is the memory that a link with so many features takes.
func linkBytes(features, experts int) int64 {
	return 4 * (int64(features)*int64(features+experts+2) + int64(experts)*3)
}

func newLink(inputs, before, experts int, t *tuning) *link {
	n := inputs + before + 1
	l := &link{
		inputs: inputs, previous: before, experts: experts,
		weights: make([]float32, n*experts), variance: make([]float32, n*n), errors: make([]float32, experts),
		features: make([]float32, n), guess: make([]float32, experts), logits: make([]float32, experts),
		gain: make([]float32, n),
	}
	l.resetVariance(t)
	for e := range experts {
		l.errors[e] = 1
	}
	return l
}

// state is what is saved.
func (l *link) state() [][]float32 {
	return [][]float32{l.weights, l.variance, l.errors}
}

// prior is the variance of a feature's weights before anything is learned.
func (l *link) prior(feature int, t *tuning) float32 {
	switch {
	case feature < l.inputs:
		return float32(t.gain / float64(l.inputs))
	case feature < l.inputs+l.previous:
		return float32(t.previous / float64(l.previous))
	}
	return 1
}

// resetVariance forgets how certain the weights are.
func (l *link) resetVariance(t *tuning) {
	clear(l.variance)
	n := len(l.features)
	for i := range n {
		l.variance[i*n+i] = l.prior(i, t)
	}
}

// predictLogits computes logits from guess and features.
func (l *link) predictLogits() {
	copy(l.logits, l.guess)
	for i, x := range l.features {
		if x != 0 {
			vec.AXPY(l.logits, x, l.weights[i*l.experts:(i+1)*l.experts])
		}
	}
}

// learn learns from the true logits of a prediction. wrong is scratch memory for the experts.
func (l *link) learn(truth, wrong []float32, t *tuning) {
	for e, z := range truth {
		const step = 0.02
		v := &l.errors[e]
		most := t.clip * float32(math.Sqrt(float64(*v)))
		d := min(max(z-l.logits[e], -most), most)
		*v = max(*v+step*(d*d-*v), leastVariance)
		wrong[e] = d
	}
	l.updateWeights(wrong, t)
}

// updateWeights moves the weights against the errors, as far as the features tell something new.
func (l *link) updateWeights(wrong []float32, t *tuning) {
	n := len(l.features)
	for i := range n {
		l.gain[i] = vec.Dot(l.variance[i*n:(i+1)*n], l.features)
	}
	s := 1 + vec.Dot(l.gain, l.features)
	// After long, rounding can make variances negative. Then the weights stay, but how certain they are
	// is forgotten.
	if !(s >= 0.5 && s < math.MaxFloat32) {
		l.resetVariance(t)
		return
	}
	for i, g := range l.gain {
		if g == 0 {
			continue
		}
		vec.AXPY(l.weights[i*l.experts:(i+1)*l.experts], g/s, wrong)
		vec.AXPY(l.variance[i*n:(i+1)*n], -g/s, l.gain)
	}
	if t.drift == 0 {
		return
	}
	for i := range n {
		most := l.prior(i, t)
		v := &l.variance[i*n+i]
		*v = min(*v+float32(t.drift)*most, max(*v, most))
	}
}
