package hidden

// This file tests what a single link guesses and learns.

import (
	"math"
	"math/rand/v2"
	"testing"

	"tensorcast/moe"
)

// Where nothing lies between two routers, the next one's logits follow from this one's input, whatever
// the norms.
func TestGuess(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	r := planted(rng, 2, 64, 16, 2)
	r.layers[1].shift, r.layers[1].bias = gaussian(rng, 64), gaussian(rng, 16)
	r.layers[0].shift, r.layers[0].attnShift = gaussian(rng, 64), gaussian(rng, 64)
	p := newPredictor(t, r, Options{Attention: true, IDs: -1, raw: true})
	for range 20 {
		x := gaussian(rng, 64)
		read := func(inverse, shift []float32) []float32 {
			y := normed(x, inverse)
			for i, s := range shift {
				y[i] += s
			}
			return y
		}
		p.Begin(moe.UnknownID)
		p.Router(0, read(r.layers[0].inverse, r.layers[0].shift))
		p.Attention(1, read(r.layers[1].attnInverse, nil))
		p.Router(1, read(r.layers[1].inverse, r.layers[1].shift))
		p.solveLogits(1)
		for kind := range p.kinds {
			l := p.updateLink(kind, 1)
			for e, z := range p.routerInputs[1].logits {
				if d := l.guess[e] - z; max(d, -d) > 1e-3 {
					t.Fatalf("kind %d: expert %d has the guess %g, want %g", kind, e, l.guess[e], z)
				}
			}
		}
	}
}

// A token that is far from all others moves the weights little. Variances that became negative by
// rounding are reset.
func TestLinkIsRobust(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const n, experts = 12, 4
	l, tu := newLink(n, n, experts, &usualTuning), usualTuning
	wrong, truth := make([]float32, experts), make([]float32, experts)
	plane := gaussian(rng, n)
	teach := func(odd float32) float64 {
		copy(l.features, gaussian(rng, 2*n))
		l.features[2*n] = 1
		sum := float32(0)
		for i, w := range plane {
			sum += w * l.features[i]
		}
		for e := range truth {
			truth[e] = sum*float32(e) + odd
		}
		l.predictLogits()
		off := math.Abs(float64(l.logits[3] - truth[3]))
		l.learn(truth, wrong, &tu)
		return off
	}
	mean := func(tokens int) float64 {
		sum := 0.0
		for range tokens {
			sum += teach(0)
		}
		return sum / float64(tokens)
	}
	mean(200)
	if e := mean(100); e > 1 { // a tenth of the errors' size at first
		t.Errorf("error of what is linear %g, want at most 1", e)
	}
	teach(1e6)
	if e := mean(20); e > 2 {
		t.Errorf("error after a token that was far off %g, want at most 2", e)
	}
	for i := range l.features {
		l.variance[i*len(l.features)+i] = -1
	}
	mean(100)
	if e := mean(100); !(e < 1) {
		t.Errorf("error after variances became negative %g, want less than 1", e)
	}
}
