package main

// This file tells whatif what a mixture of experts misses with prefetchd: its choices are replayed by prefetchd's own
// policy, as what is missed depends on which experts are kept, and not on how many bytes fit.

import (
	"context"
	"errors"
	"math"
	"runtime"
	"time"

	"tensorcast/internal/tabular"
	"tensorcast/moe"
	"tensorcast/moe/replay"
	"tensorcast/pattern"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/plan"
	"tensorcast/sim/whatif"
)

// chosenExperts are the choices of a capture's tokens.
type chosenExperts struct {
	ctx   context.Context
	trace *moe.Trace // its first generated token counts as prompt: it fills the memory
	cycle *pattern.Cycle
	least int64 // bytes that have to be in memory while they are used: what two layers choose
}

// newChosenExperts reads the choices. It is nil if the capture does not have those of a token at a time.
func newChosenExperts(ctx context.Context, st *study, cycle *pattern.Cycle, group int) (*chosenExperts, error) {
	if cycle == nil || group > 1 || !st.pattern.Generates() {
		return nil, nil
	}
	t, err := st.routes()
	if errors.Is(err, moe.ErrNoRoutes) {
		return nil, nil
	}
	if err != nil {
		return nil, st.in.reading(err)
	}
	if t = replay.CountAsPrompt(t, 1); t.FirstDecode() == len(t.Tokens) || t.TokenBytes() == 0 {
		return nil, nil
	}
	return &chosenExperts{ctx: ctx, trace: t, cycle: cycle, least: 2 * t.TokenBytes() / int64(len(t.Layers))}, nil
}

// missed is how many bytes a token misses with prefetchd and so much memory. It is NaN if the context has ended.
func (x *chosenExperts) missed(memory int64) float64 {
	// What every token reads is kept first. Neither compute nor disk matter to what is kept.
	f := plan.Foresee(x.cycle, plan.Pin{}, memory, time.Second, math.MaxInt32)
	held := int64(0)
	for _, r := range f.Held {
		held += r.Length
	}
	// It never keeps less than what is used at the moment. What the memory does not hold is missed all the same.
	room := min(mixture.RoomFor(f.Room-held, x.least), max(memory-held, 0))
	results, err := replay.Run(x.ctx, x.trace, replay.Forecast{}, replay.Config{
		Capacity: room, Policy: moe.NewScored(x.trace.Shape()), Threshold: 1, Full: true,
	})
	if err != nil {
		return math.NaN()
	}
	return float64(f.Missed) + float64(results[0].DemandBytes)/float64(results[0].Tokens)
}

// locality says what memory for experts buys, on the machine of a configuration.
func (x *chosenExperts) locality(c *whatif.Config) (*replay.Locality, error) {
	layer := c.Compute / time.Duration(len(x.trace.Layers))
	return replay.NewLocality(x.ctx, x.trace, replay.Options{
		Disk:    replay.Disk{Bandwidth: max(c.Bandwidth, replay.MinBandwidth)},
		Compute: replay.Compute{Before: layer / 2, After: layer - layer/2}, Workers: runtime.GOMAXPROCS(0),
	})
}

// localityLines is what is printed of a Locality; nothing of none.
func localityLines(l *replay.Locality) tabular.Document {
	if l == nil {
		return nil
	}
	return tabular.Document{tabular.Lines(l.Sentences())}
}
