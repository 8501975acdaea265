package mixture

// This file compares what a mixture keeps with moe.Scored, by which routing traces are replayed.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/moe"
	"tensorcast/moe/replay"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
	"tensorcast/trace/tables"
)

// everything is a page cache in which nothing ever happens by itself: what the mixture believes is what counts.
type everything struct{ recorder }

func (p *everything) ResidentBytes(r pages.Range) (int64, error) { return r.Length, nil }

// A mixture misses what a replay with moe.Scored misses, of choices that are uneven, local, and change over time, in
// memories of several sizes. So what analyze says of prefetchd is what prefetchd does.
func TestReplayedAsLive(t *testing.T) {
	needPages(t)
	const layers, experts, chosen, tokens, filling, slice = 6, 32, 3, 700, 100, 4 * page
	r := rand.New(rand.NewPCG(11, 12))
	cycle := &pattern.Cycle{}
	empty := &moe.Trace{Experts: experts}
	for layer := range int64(layers) {
		cycle.Reads = append(cycle.Reads,
			expertsRead(0, fmt.Sprintf("blk.%d.a", layer), layer*experts*slice, slice, experts, chosen))
		empty.Layers = append(empty.Layers, moe.Layer{Number: int32(layer), Bytes: slice})
	}
	all := make([][layers][]int32, tokens)
	steps := map[int32]moe.Step{}
	for i := range all {
		for l := range all[i] {
			var ids []int32
			for len(ids) < chosen {
				e := int32(min(r.IntN(experts), r.IntN(experts))+i/200*5+l) % experts
				if i > 0 && r.IntN(3) == 0 {
					e = all[i-1][l][len(ids)]
				}
				if !slices.Contains(ids, e) {
					ids = append(ids, e)
				}
			}
			all[i][l] = ids
		}
		phase := moe.Decode
		if i < filling {
			phase = moe.Prompt
		}
		steps[int32(i)] = moe.Step{Phase: phase}
	}
	tr, err := moe.FromRoutes(empty, func(yield func(tables.Route, error) bool) {
		for i := range all {
			for l, ids := range all[i] {
				for slot, e := range ids {
					if !yield(tables.Route{Step: int32(i), Layer: int32(l), Slot: int32(slot), Expert: e}, nil) {
						return
					}
				}
			}
		}
	}, steps)
	if err != nil {
		t.Fatal(err)
	}
	for _, share := range []float64{0.15, 0.4, 0.7, 0.9} {
		room := int64(share*layers*experts) * slice
		x := New(cycle, nil, Options{
			Levers: &everything{}, Keep: true, Refuse: func(what string, args ...any) { t.Fatal(what, args) },
			Now: time.Now,
		})
		x.room, x.exact, x.least = room, true, 0
		var before totals
		for i := range all {
			if i == filling {
				before = x.total
			}
			for l, ids := range all[i] {
				if _, err := x.Select(event.Selected{
					Decode: uint32(i + 1), Layer: int32(l), IDs: ids, IDRows: 1,
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
		live := 1 - float64(x.total.missed-before.missed)/float64(x.total.chosen-before.chosen)
		results, err := replay.Run(t.Context(), tr, replay.Forecast{},
			replay.Config{Capacity: room, Policy: moe.NewScored(tr.Shape()), Threshold: 1})
		if err != nil {
			t.Fatal(err)
		}
		// Of experts that are worth the same the two choose different ones, and the mixture finds who gives way not at
		// each choice anew.
		if replayed := results[0].HitRate(); math.Abs(replayed-live) > 0.008 {
			t.Errorf("with %.0f %% of the experts in memory the mixture finds %.2f %%, the replay %.2f %%", 100*share,
				100*live, 100*replayed)
		} else {
			t.Logf("%.0f %%: %.2f %%, replayed %.2f %%", 100*share, 100*live, 100*replayed)
		}
	}
}
