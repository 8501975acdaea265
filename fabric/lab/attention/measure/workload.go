package measure

// This file generates the synthetic workloads.

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Workload is the input of attention: for each head, the keys and values of Positions positions,
// and the queries of Group query heads. Each has Dim elements.
type Workload struct {
	Name           string
	Dim, Positions int
	Group          int
	Keys, Values   [][]float32
	Queries        [][]float32
}

// scale is the factor of the scores.
func (w *Workload) scale() float32 { return float32(1 / math.Sqrt(float64(w.Dim))) }

// Kinds are the names of the synthetic workloads.
//
//   - flat: all elements are standard normal, and so are the scores. Hundreds of positions have most of
//     the softmax. No selection of a few positions can approximate this well.
//   - peaks: keys next to each other are correlated (0.7). Four keys are added to each query, so that
//     these have scores 9 above the others. This makes the queries longer, which spreads the other
//     scores, too: with standard deviations of 1.9 (128 elements) to 2.5 (64).
//   - outliers: like peaks, with keys like those of real models. Their common part is larger than their
//     differences. Every 16th element has four times the standard deviation of the others, and a mean of
//     about ten.
var Kinds = []string{"flat", "peaks", "outliers"}

const (
	peakCount   = 4
	peakScore   = 9
	correlation = 0.7 // correlation of an element in neighbouring positions
)

// Synthetic returns a workload of random numbers of the given kind.
func Synthetic(kind string, dim, positions, heads, group int, seed uint64) (*Workload, error) {
	if kind != "flat" && kind != "peaks" && kind != "outliers" {
		return nil, fmt.Errorf("a workload %q: want one of %v", kind, Kinds)
	}
	w := &Workload{Name: kind, Dim: dim, Positions: positions, Group: group}
	rng := rand.New(rand.NewPCG(seed, 1))
	for range heads {
		mean, deviation := make([]float64, dim), make([]float64, dim)
		for i := range dim {
			deviation[i] = 1
			if kind == "outliers" {
				mean[i] = 2 * rng.NormFloat64()
				if i%16 == 3 {
					deviation[i], mean[i] = 4, 10*rng.NormFloat64()
				}
			}
		}
		keys, values := make([]float32, positions*dim), make([]float32, positions*dim)
		queries := make([]float32, group*dim)
		last := make([]float64, dim) // the last key, before mean and deviation are applied
		differ := make([]float64, positions*dim)
		for p := range positions {
			for i := range dim {
				x := rng.NormFloat64()
				if kind != "flat" && p > 0 {
					x = correlation*last[i] + math.Sqrt(1-correlation*correlation)*x
				}
				last[i], differ[p*dim+i] = x, x
				keys[p*dim+i] = float32(mean[i] + deviation[i]*x)
				values[p*dim+i] = float32(rng.NormFloat64())
			}
		}
		for g := range group {
			q := make([]float64, dim)
			for i := range q {
				q[i] = rng.NormFloat64()
			}
			if kind != "flat" {
				for range peakCount {
					key := differ[rng.IntN(positions)*dim:][:dim]
					for i, x := range key {
						q[i] += x * peakScore / math.Sqrt(float64(dim))
					}
				}
			}
			for i, x := range q {
				// Scores are as without outliers, except for a constant.
				queries[g*dim+i] = float32(x / deviation[i])
			}
		}
		w.Keys, w.Values, w.Queries = append(w.Keys, keys), append(w.Values, values), append(w.Queries, queries)
	}
	return w, nil
}
