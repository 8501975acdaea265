package hidden

// This file weighs what ids and inputs tell by how right they were lately.

import "math"

// blend is a logistic regression on log-odds: those of ids, those of some links, and a constant. All
// layers share its weights, and for each layer its difference is learned.
type blend struct {
	links  int
	shared []weight
	own    []weight // by layer: added to shared
}

type weight struct{ value, squares float32 }

const (
	blendStep    = 0.05
	blendOwnStep = 0.02
)

func newBlend(layers, links int, ids bool) *blend {
	n := links + 2
	b := &blend{links: links, shared: make([]weight, n), own: make([]weight, n*layers)}
	b.shared[1].value = 1 // the best link
	if ids {
		b.shared[0].value = 0.2
	}
	return b
}

func (b *blend) weight(layer, i int) float32 {
	return b.shared[i].value + b.own[layer*len(b.shared)+i].value
}

// mixScores computes the scores from the log-odds of ids and of the links, which lie one after the other.
func (b *blend) mixScores(layer int, ids, links, scores []float32) {
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
	b.mixScores(layer, ids, links, wrong)
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
		b.shared[i].descend(g, blendStep)
		own[i].descend(g, blendOwnStep)
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
