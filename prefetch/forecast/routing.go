package forecast

// This file says which share of the chosen experts is found in memory.

import (
	"cmp"
	"math"
	"slices"
)

// Routing says which share of its experts a token finds in memory, where a share of all experts is there.
type Routing struct {
	// Least and Most are between what the share lies. They are nearer to each other where a run is known.
	Least, Most func(share float64) float64
	About       string // where they are from, for people
	Known       bool   // how the last run has chosen is known
}

// RoutingOf is what a model's file alone tells: the least is routing at random, the most what sessions of real models
// had.
func RoutingOf(e *Experts) *Routing {
	most := func(share float64) float64 {
		r := e.With(int64(share * float64(e.Bytes)))
		return r.Recorded[len(r.Recorded)-1].HitRate // they ascend
	}
	return &Routing{
		Least: func(share float64) float64 { return min(max(share, 0), 1) }, Most: most,
		About: "the ranges go from routers that choose at random to recorded sessions of real models",
	}
}

// RoutingBy is how the model's last run has chosen. Of all experts together those are in memory that it used most. That
// is the most that is found, because the scores also have what was chance in that run. The least has so much more
// missing that it lies in the middle, on a logarithmic scale, between that and routing at random. The scores say how
// likely a token is to choose each expert, by layer and expert (mixture.Scores). The result is nil if they say nothing.
func RoutingBy(scores map[int32][]float32) *Routing {
	var all []float64
	var sum float64
	for _, layer := range scores {
		for _, s := range layer {
			all = append(all, float64(s))
			sum += float64(s)
		}
	}
	if !(sum > 0) {
		return nil
	}
	slices.SortFunc(all, func(a, b float64) int { return cmp.Compare(b, a) })
	hits := make([]float64, len(all)+1)
	for i, s := range all {
		hits[i+1] = hits[i] + s/sum
	}
	found := func(share float64) float64 {
		at := min(max(share, 0), 1) * float64(len(all))
		i := min(int(at), len(all)-1)
		return min(hits[i]+(at-float64(i))*(hits[i+1]-hits[i]), 1)
	}
	least := func(share float64) float64 {
		return 1 - math.Sqrt((1-min(max(share, 0), 1))*(1-found(share)))
	}
	return &Routing{Least: least, Most: found, About: "routers are taken to choose about as in the model's last run with prefetchd", Known: true}
}
