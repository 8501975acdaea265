package moe

// This file measures predictors on a trace.

import (
	"context"
	"slices"
)

// budgets are the numbers of experts, in units of K, at which a prediction is judged.
var budgets = []float64{0.5, 1, 1.5, 2, 3}

// Score says how good the first n experts of predictions were.
type Score struct {
	Budget    float64 `json:"budget"`    // n in units of K
	N         int     `json:"n"`         // at least 1
	Recall    float64 `json:"recall"`    // the share of the chosen experts that were among the n
	Precision float64 `json:"precision"` // the share of the n that were chosen
}

// LeadScores are the scores of predictions that were made some routers ahead.
type LeadScores struct {
	Lead    int       `json:"lead"`
	Scores  []Score   `json:"scores"`   // at 0.5, 1, 1.5, 2 and 3 times K; nil if no layer was scored
	Curve   []float64 `json:"curve"`    // recall at K in each eighth of the scored tokens, in order
	ByLayer []float64 `json:"by_layer"` // recall at K
}

// Evaluation says how good a predictor is on a trace.
type Evaluation struct {
	Trained int          `json:"trained"` // tokens that were learned from before the first was scored
	Scored  int          `json:"scored"`  // tokens that were scored, and then learned from
	Leads   []LeadScores `json:"leads"`
}

// At is the score at a budget; the zero Score if there is none.
func (l *LeadScores) At(budget float64) Score {
	for _, s := range l.Scores {
		if s.Budget == budget {
			return s
		}
	}
	return Score{}
}

// CurvePoints is the number of points of a curve.
const CurvePoints = 8

// Evaluate runs a predictor, which has seen nothing yet, over a trace. Tokens from first on are scored,
// each before it is learned from. Those before are only learned from. A prediction with lead h of a layer
// is made when the router h layers before has chosen. In the first layers it is made when the token has
// begun. What a target computes as one batch, as a prompt, is learned token by token.
func Evaluate(ctx context.Context, t *Trace, p Predictor, first int, leads []int) (*Evaluation, error) {
	s := t.Shape()
	ev := &Evaluation{Trained: first, Scored: len(t.Tokens) - first}
	var sums []*Tally
	for range leads {
		sums = append(sums, NewTally(s))
	}
	wide := NewTally(s).Widest()
	scores, order := make([]float32, s.Experts), make([]int32, s.Experts)
	// The best experts of each lead and layer are kept from their prediction until the layer is observed.
	best := make([][]int32, len(leads)*s.Layers)
	for i := range best {
		best[i] = make([]int32, 0, wide)
	}
	predict := func(lead, layer int) {
		p.Scores(layer, scores)
		best[lead*s.Layers+layer] = append(best[lead*s.Layers+layer][:0], Top(scores, order, wide)...)
	}
	for token := range t.Tokens {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p.Begin(t.Tokens[token].ID)
		for i, h := range leads {
			for layer := range min(h, s.Layers) {
				predict(i, layer)
			}
		}
		for layer := range s.Layers {
			chosen := t.Chosen(token, layer)
			if token >= first && len(chosen) > 0 {
				part := (token - first) * CurvePoints / ev.Scored
				for i := range leads {
					sums[i].Add(best[i*s.Layers+layer], chosen, layer, part)
				}
			}
			p.Observe(layer, chosen)
			for i, h := range leads {
				if layer+h < s.Layers {
					predict(i, layer+h)
				}
			}
		}
	}
	for i, h := range leads {
		ev.Leads = append(ev.Leads, sums[i].Scores(h))
	}
	return ev, nil
}

// ExpertsFor is how many experts a budget in units of K has; at least 1.
func (s *Shape) ExpertsFor(budget float64) int {
	return min(max(int(budget*float64(s.K)), 1), s.Experts)
}

// Top returns the n experts with the highest scores, the highest first. Of equals, the lowest number
// comes first. It writes to order, which has room for all experts.
func Top(scores []float32, order []int32, n int) []int32 {
	order = order[:0]
	for e := range scores {
		at := len(order)
		for at > 0 && scores[order[at-1]] < scores[e] {
			at--
		}
		if at >= n {
			continue
		}
		if len(order) < n {
			order = append(order, 0)
		}
		copy(order[at+1:], order[at:])
		order[at] = int32(e)
	}
	return order
}

// Tally counts how many of the chosen experts were among those that a predictor named.
type Tally struct {
	shape       Shape
	hits, tried []int // by budget
	chosen      int
	byLayer     [][2]int // hits at K, and chosen experts, by layer
	curve       [CurvePoints][2]int
}

// NewTally makes an empty tally.
func NewTally(s Shape) *Tally {
	return &Tally{
		shape: s, hits: make([]int, len(budgets)), tried: make([]int, len(budgets)), byLayer: make([][2]int, s.Layers),
	}
}

// Widest is the greatest number of experts that is judged.
func (u *Tally) Widest() int { return u.shape.ExpertsFor(slices.Max(budgets)) }

// Add counts a prediction for a layer. best are the experts that were named, the best first, as many as
// Widest says. part is the point of the curve.
func (u *Tally) Add(best, chosen []int32, layer, part int) {
	u.chosen += len(chosen)
	for i, b := range budgets {
		n := min(u.shape.ExpertsFor(b), len(best))
		hits := 0
		for _, e := range best[:n] {
			if slices.Contains(chosen, e) {
				hits++
			}
		}
		u.hits[i] += hits
		u.tried[i] += n
		if b == 1 {
			u.byLayer[layer][0] += hits
			u.byLayer[layer][1] += len(chosen)
			u.curve[part][0] += hits
			u.curve[part][1] += len(chosen)
		}
	}
}

// Scores are the result, for predictions that were made so many routers ahead.
func (u *Tally) Scores(lead int) LeadScores {
	l := LeadScores{Lead: lead}
	for i, b := range budgets {
		if u.chosen > 0 {
			l.Scores = append(l.Scores, Score{
				Budget: b, N: u.shape.ExpertsFor(b), Recall: ratio(u.hits[i], u.chosen),
				Precision: ratio(u.hits[i], u.tried[i]),
			})
		}
	}
	for _, p := range u.curve {
		l.Curve = append(l.Curve, ratio(p[0], p[1]))
	}
	for _, p := range u.byLayer {
		l.ByLayer = append(l.ByLayer, ratio(p[0], p[1]))
	}
	return l
}

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
