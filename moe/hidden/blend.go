package hidden

// This file weighs what ids and inputs tell by how right they were of late.

import "math"

// blend is a logistic regression on log-odds: of ids, of some links, and a constant. Its weights are
// learned by all layers together, and for each layer what differs there.
type blend struct {
	links  int
	shared []weight
	own    []weight // by layer
}

type weight struct{ w, squares float32 }

const (
	blendStep    = 0.05
	blendOwnStep = 0.02
)

func newBlend(layers, links int, ids bool) *blend {
	n := links + 2
	b := &blend{links: links, shared: make([]weight, n), own: make([]weight, n*layers)}
	b.shared[1].w = 1 // the best link
	if ids {
		b.shared[0].w = 0.2
	}
	return b
}

func (b *blend) weight(layer, i int) float32 { return b.shared[i].w + b.own[layer*len(b.shared)+i].w }

// mix computes the scores from the log-odds of ids and of the links, one after the other.
func (b *blend) mix(layer int, ids, links, scores []float32) {
	n := len(ids)
	wi, constant := b.weight(layer, 0), b.weight(layer, b.links+1)
	for e, x := range ids {
		scores[e] = constant + wi*x
	}
	for i := range b.links {
		w := b.weight(layer, 1+i)
		for e, x := range links[i*n : (i+1)*n] {
			scores[e] += w * x
		}
	}
}

// learn takes a step towards what was chosen. wrong is scratch memory for the experts.
func (b *blend) learn(layer int, ids, links []float32, chosen []int32, wrong []float32) {
	n := len(ids)
	b.mix(layer, ids, links, wrong)
	for e, z := range wrong {
		wrong[e] = sigmoid(z)
	}
	for _, e := range chosen {
		if int(e) < n && e >= 0 {
			wrong[e]--
		}
	}
	own := b.own[layer*len(b.shared):]
	for i := range b.links + 2 {
		g := float32(0)
		switch {
		case i == 0:
			for e, x := range ids {
				g += wrong[e] * x
			}
		case i <= b.links:
			for e, x := range links[(i-1)*n : i*n] {
				g += wrong[e] * x
			}
		default:
			for _, d := range wrong {
				g += d
			}
		}
		b.shared[i].step(g, blendStep)
		own[i].step(g, blendOwnStep)
	}
}

// step moves a weight against a gradient, by a step that is the smaller the more it was moved before (Adagrad).
func (w *weight) step(g, size float32) {
	w.squares += g * g
	if w.squares > 0 {
		w.w -= size * g / float32(math.Sqrt(float64(w.squares)))
	}
}
