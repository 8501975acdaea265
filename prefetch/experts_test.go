package prefetch_test

// This file tests help for a mixture's experts in virtual time.

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/plan"
	"tensorcast/sim"
)

const (
	mixLayers  = 8
	mixExperts = 16
	mixChosen  = 2                                  // experts of a layer that a token chooses
	mixShared  = mixLayers * 8 * mib                // bytes that every token reads
	mixExpert  = 3 * mib                            // bytes of an expert
	mixRouted  = mixLayers * mixExperts * mixExpert // bytes of all experts
	// mixMargin is what is left free besides what is held and the experts: the reserve, and what reads that cannot
	// wait take for a moment.
	mixMargin = reserve + 24*mib
)

// mixtureCycle is a cycle of layers with 8 MiB that every token reads, and 16 experts of three slices each.
func mixtureCycle() *pattern.Cycle {
	c := &pattern.Cycle{}
	offset := int64(64 << 10)
	add := func(r pattern.CycleRead) {
		r.Op, r.Offset, r.Nanos = "MUL_MAT", offset, r.Length/20
		if r.Experts {
			r.Op, r.Slice, r.Slices = "MUL_MAT_ID", r.Length/mixExperts, mixChosen
			r.Nanos /= mixExperts / mixChosen
		}
		offset += r.Length
		c.Reads = append(c.Reads, r)
	}
	for layer := range mixLayers {
		add(pattern.CycleRead{Tensor: fmt.Sprintf("blk.%d.attn_q.weight", layer), Length: 8 * mib})
		for _, name := range []string{"gate", "up", "down"} {
			add(pattern.CycleRead{
				Tensor: fmt.Sprintf("blk.%d.ffn_%s_exps.weight", layer, name), Length: mixExperts * mib, Experts: true,
			})
		}
	}
	return c
}

// routing sends tokens to experts. The chance of the expert at a rank is 1/rank^power. The first token, the warm-up,
// goes to all experts.
func routing(power float64) func(token, layer int) []int32 {
	return func(token, layer int) (ids []int32) {
		if token == 0 {
			for id := range int32(mixExperts) {
				ids = append(ids, id)
			}
			return ids
		}
		r := rand.New(rand.NewPCG(uint64(token), uint64(layer)))
		var weights [mixExperts]float64
		for rank := range weights {
			weights[(rank*7+layer*3)%mixExperts] = math.Pow(float64(rank+1), -power)
		}
		for range mixChosen {
			var sum float64
			for _, w := range weights {
				sum += w
			}
			at := r.Float64() * sum
			id := 0
			for ; id < mixExperts-1 && at >= weights[id]; id++ {
				at -= weights[id]
			}
			for weights[id] == 0 {
				id--
			}
			weights[id] = 0
			ids = append(ids, int32(id))
		}
		return ids
	}
}

const (
	skewed  = 1.5
	uniform = 0
)

// newMixtureRig is a rig whose target computes with a mixture.
func newMixtureRig(
	t *testing.T, limit int64, power float64, opts prefetch.Options, change func(*sim.Config),
) *rig {
	t.Helper()
	return newRigOf(t, mixtureCycle(), 1, opts, func(c *sim.Config) {
		c.Limit, c.Route, c.Readahead = limit, routing(power), 256<<10
		if change != nil {
			change(c)
		}
	})
}

// runMixtureAlone is a token of a mixture without a helper, on average.
func runMixtureAlone(t *testing.T, limit int64, power float64, change func(*sim.Config)) sim.Token {
	t.Helper()
	r := newMixtureRig(t, limit, power, prefetch.Options{}, change)
	r.Attach(nil)
	r.run(100)
	return r.run(50)
}

// runSettledMixture is a token of a mixture on average, once the Controller holds as much as it can.
func runSettledMixture(
	t *testing.T, limit int64, power float64, opts prefetch.Options, change func(*sim.Config),
) (*rig, sim.Token) {
	t.Helper()
	r := newMixtureRig(t, limit, power, opts, change)
	r.run(100)
	token := r.run(50)
	if r.Overcommitted() > 0 {
		t.Errorf("%d bytes exceed the limit, want 0", r.Overcommitted())
	}
	return r, token
}

// countReadsOfOracle is how many experts are read per token, in tokens [from, to), by an oracle with room for some
// experts. It evicts the expert whose next choice is farthest in the future (Belady's optimum).
func countReadsOfOracle(route func(token, layer int) []int32, room, from, to int) float64 {
	next := map[[2]int][]int{} // selections, by layer and expert
	for token := range to {
		for layer := range mixLayers {
			for _, id := range route(token, layer) {
				next[[2]int{layer, int(id)}] = append(next[[2]int{layer, int(id)}], token*mixLayers+layer)
			}
		}
	}
	there := map[[2]int]bool{}
	misses := 0
	for token := range to {
		for layer := range mixLayers {
			for _, id := range route(token, layer) {
				key := [2]int{layer, int(id)}
				next[key] = next[key][1:]
				if !there[key] && token >= from {
					misses++
				}
				there[key] = true
			}
			for len(there) > room {
				last, at := [2]int{}, -1
				for key := range there {
					n := math.MaxInt
					if len(next[key]) > 0 {
						n = next[key][0]
					}
					if n > at {
						last, at = key, n
					}
				}
				delete(there, last)
			}
		}
	}
	return float64(misses) / float64(to-from)
}

// countReadsOfCounter is the same for a cache that evicts the expert that was chosen least often so far.
func countReadsOfCounter(route func(token, layer int) []int32, room, from, to int) float64 {
	counts, there := map[[2]int]int{}, map[[2]int]bool{}
	misses := 0
	for token := 1; token < to; token++ {
		for layer := range mixLayers {
			now := map[[2]int]bool{}
			for _, id := range route(token, layer) {
				key := [2]int{layer, int(id)}
				counts[key]++
				if !there[key] && token >= from {
					misses++
				}
				there[key], now[key] = true, true
			}
			for len(there) > room {
				var least [2]int
				n := math.MaxInt
				for key := range there {
					if !now[key] && counts[key] < n {
						least, n = key, counts[key]
					}
				}
				delete(there, least)
			}
		}
	}
	return float64(misses) / float64(to-from)
}

// What a router has chosen is read at once, what it is likely to choose is kept, and all that every token reads is
// held.
func TestExperts(t *testing.T) {
	for limit, share := range map[int64]time.Duration{200 * mib: 70, 300 * mib: 80, 400 * mib: 95} {
		r, token := runSettledMixture(t, limit, skewed, prefetch.Options{}, nil)
		plain := runMixtureAlone(t, limit, skewed, nil)
		s := r.Summary()
		if s.Pinned < mixShared || s.Experts == nil || s.Learned != 1 {
			t.Fatalf("limit %d MiB: %+v, want at least %d bytes held, and experts; learned once",
				limit/mib, s, mixShared)
		}
		if token.Misses > 50 || token.TargetBytes > mib/4 { // of 50 tokens
			t.Errorf("limit %d MiB: %d misses in 50 tokens, want at most 50; "+
				"the target reads %d bytes a token, want at most %d",
				limit/mib, token.Misses, token.TargetBytes, mib/4)
		}
		if token.Time > plain.Time*share/100 {
			t.Errorf("limit %d MiB: %v a token, want at most %d %% of the %v without help",
				limit/mib, token.Time, share, plain.Time)
		}
		x := s.Experts
		if room := limit - s.Pinned - mixMargin; x.Room != room || x.Kept > x.Room || x.Kept < x.Room-2*mixExpert ||
			x.Read < x.All/4 || x.Missed > x.Chosen/2 {
			t.Errorf("limit %d MiB: %+v, want room for %d bytes of experts, nearly full; "+
				"at least a quarter of all read, at most half of the chosen missed", limit/mib, *x, room)
		}
		least := countReadsOfOracle(routing(skewed), int(limit-mixShared)/mixExpert, 100, 150)
		most := countReadsOfCounter(routing(skewed), int(s.Experts.Room)/mixExpert, 100, 150)
		if read := float64(token.HelperBytes+token.TargetBytes) / mixExpert; read < least || read > most*1.15+0.5 {
			t.Errorf("limit %d MiB: %.2f experts read per token, want at least the oracle's %.2f, and about "+
				"the counter's %.2f",
				limit/mib, read, least, most)
		}
	}
}

// What every token reads comes first: all of it is held, while experts have to give way.
func TestEveryTokensReadsFirst(t *testing.T) {
	limit := int64(mixShared + mixMargin + 2*window + 12*mib)
	r, _ := runSettledMixture(t, limit, skewed, prefetch.Options{}, nil)
	if s := r.Summary(); s.Pinned < mixShared-8*mib || s.Experts.Room > 48*mib {
		t.Errorf("%d bytes are held, want about %d; room for %d bytes of experts, want at most %d",
			s.Pinned, mixShared, s.Experts.Room, 48*mib)
	}
}

// If a router has no favourites, reads of what it has chosen help, or at least do no harm. The same holds with less
// room than what every token reads takes.
func TestExpertsWithoutFavourites(t *testing.T) {
	for limit, power := range map[int64]float64{300 * mib: uniform, 70 * mib: skewed, 64 * mib: uniform} {
		plain := runMixtureAlone(t, limit, power, nil)
		r := newMixtureRig(t, limit, power, prefetch.Options{}, nil)
		_, err := r.Run(1, r.cycle, 100)
		var stood *prefetch.StandBack
		if errors.As(err, &stood) && stood.Reason == prefetch.NoWin {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		token := r.run(50)
		s := r.Summary()
		if token.Time > plain.Time*102/100 || r.Overcommitted() > 0 {
			t.Errorf("limit %d MiB: %v a token, want at most about the %v without help; "+
				"%d bytes exceed the limit, want 0",
				limit/mib, token.Time, plain.Time, r.Overcommitted())
		}
		least := int64(2 * mixChosen * mixExpert)
		if s.Experts.Room < least || limit < 100*mib && s.Pinned+s.Window+least > limit-reserve {
			t.Errorf("limit %d MiB: %d bytes held, a window of %d, %+v; want room for %d bytes of experts beside them",
				limit/mib, s.Pinned, s.Window, *s.Experts, least)
		}
	}
}

// If everything fits, experts too, there is nothing to win, whatever the strategy. If all but some experts fits,
// there is.
func TestExpertsFit(t *testing.T) {
	for _, strategy := range plan.Strategies() {
		if strategy.Name() == "pattern" {
			continue // needs a stored one
		}
		r := newMixtureRig(t, mixShared+mixRouted+mixMargin+window, skewed, prefetch.Options{Strategy: strategy}, nil)
		var stood *prefetch.StandBack
		_, err := r.Run(1, r.cycle, 10)
		if !errors.As(err, &stood) || stood.Reason != prefetch.Fits || stood.Bytes < mixShared+mixRouted {
			t.Errorf("%s: %v, want a stand back (%v) for at least %d bytes",
				strategy.Name(), err, prefetch.Fits, mixShared+mixRouted)
		}
		r = newMixtureRig(t, mixShared+mixRouted-mib, skewed, prefetch.Options{Strategy: strategy, Always: true}, nil)
		r.run(20)
		if s := r.Summary(); s.Idle != "" || s.PerToken == 0 {
			t.Errorf("%s: Idle = %q, PerToken = %d where some experts do not fit, want no stand back",
				strategy.Name(), s.Idle, s.PerToken)
		}
	}
}

// When the limit falls, experts give way. When it rises again, they come back.
func TestExpertsShrink(t *testing.T) {
	// Always, because a comparison would leave experts to the target.
	r, before := runSettledMixture(t, 400*mib, skewed, prefetch.Options{Always: true}, nil)
	r.SetLimit(220 * mib)
	r.run(3)
	s := r.Summary()
	most := 220*mib - s.Pinned - mixMargin
	if s.Pinned < mixShared || s.Experts.Room > most || s.Experts.Room < 80*mib || s.Experts.Kept > s.Experts.Room {
		t.Errorf("limit 220 MiB: %d bytes held, want at least %d; %+v, want room for %d to %d bytes, and no more kept",
			s.Pinned, mixShared, *s.Experts, 80*mib, most)
	}
	r.run(20)
	if token := r.run(10); token.Misses > 10 {
		t.Errorf("limit 220 MiB: %d misses in 10 tokens, want at most 10", token.Misses)
	}
	if err := r.Sleep(time.Second); err != nil {
		t.Fatal(err)
	}
	r.SetLimit(180 * mib)
	if err := r.Sleep(200 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if x := r.Summary().Experts; x.Kept > x.Room || x.Room > 80*mib {
		t.Errorf("limit 180 MiB, while the target rests: %+v, want room for at most %d bytes, and no more kept",
			*x, 80*mib)
	}
	r.SetLimit(400 * mib)
	r.run(60)
	if token := r.run(30); token.Time > before.Time*12/10 || r.Summary().Experts.Kept < 220*mib {
		t.Errorf("limit 400 MiB again: %v a token, want about %v as before; %+v, want at least %d bytes kept",
			token.Time, before.Time, *r.Summary().Experts, 220*mib)
	}
	if r.Overcommitted() > 0 {
		t.Errorf("%d bytes exceed the limit, want 0", r.Overcommitted())
	}
}

// A strategy that only streams keeps no experts for later tokens. One that only pins leaves them to the target.
func TestStrategiesAndExperts(t *testing.T) {
	r, token := runSettledMixture(t, 300*mib, skewed, prefetch.Options{Strategy: plan.Stream{}, Always: true}, nil)
	const needed = 2 * mixChosen * mixExpert
	if s := r.Summary(); s.Pinned != 0 || s.Experts.Kept > needed || s.Experts.Room != needed {
		t.Errorf("stream: %d bytes held, want 0; %+v, want room for %d bytes, and no more kept",
			s.Pinned, *s.Experts, needed)
	}
	if token.Misses > 50*mixLayers {
		t.Errorf("stream: %d misses in 50 tokens, want at most %d", token.Misses, 50*mixLayers)
	}
	r, _ = runSettledMixture(t, 300*mib, skewed, prefetch.Options{Strategy: plan.Pin{}, Always: true, Lock: true}, nil)
	before := r.pages.Calls
	token = r.run(20)
	s, out := r.Summary(), r.pages.Calls.PageOut-before.PageOut
	if s.Experts != nil || s.Pinned < mixShared || token.HelperBytes > 0 || out != 0 {
		t.Errorf("pin: experts %+v, want none; %d bytes held, want at least %d; "+
			"%d read, %d calls that page out, want 0",
			s.Experts, s.Pinned, mixShared, token.HelperBytes, out)
	}
}

// The least room that is left to experts is for what a token chooses, not for all that the warm-up chose.
func TestLeastAfterWarmup(t *testing.T) {
	limit := int64(mixShared + mixMargin + 2*window)
	r, _ := runSettledMixture(t, limit, skewed, prefetch.Options{Always: true}, nil)
	if s := r.Summary(); s.Pinned < mixShared-16*mib {
		t.Errorf("%d bytes are held, want about %d", s.Pinned, mixShared)
	}
}

// The tokens of a prompt choose many experts. No more are read for them than have room, and what is kept serves the
// tokens after the prompt.
func TestExpertsOfPrompt(t *testing.T) {
	prompts := func(c *sim.Config) {
		route := c.Route
		c.Route = func(token, layer int) (ids []int32) {
			if token%50 != 49 {
				return route(token, layer)
			}
			for row := range 64 {
				ids = append(ids, route(1000+token*100+row, layer)...)
			}
			return ids
		}
	}
	for _, limit := range []int64{130 * mib, 300 * mib} {
		r := newMixtureRig(t, limit, uniform, prefetch.Options{Always: true}, prompts)
		r.run(49)
		r.Batch = 64
		read := r.Summary().Experts.Read
		r.run(1)
		r.Batch = 0
		s := r.Summary()
		most := int64(mixLayers) * max(s.Experts.Room, 2*mixChosen*mixExpert)
		if s.Experts.Read == read || s.Experts.Read-read > most {
			t.Errorf("limit %d MiB: %d bytes of experts were read for a prompt, want some, at most %d",
				limit/mib, s.Experts.Read-read, most)
		}
		if held := s.Pinned; limit == 300*mib && held < mixShared || r.Overcommitted() > 0 {
			t.Errorf("limit %d MiB: after a prompt %d bytes are held, want at least %d with 300 MiB; "+
				"%d bytes exceed the limit, want 0; %d were taken",
				limit/mib, held, mixShared, r.Overcommitted(), s.Taken)
		}
		r.run(10)
		if token := r.run(20); limit == 300*mib && token.Misses > 20 {
			t.Errorf("limit %d MiB: %d misses in 20 tokens after a prompt, want at most 20", limit/mib, token.Misses)
		}
	}
}

// A selection that cannot be true is ignored, with one warning for all of them.
func TestHostileSelected(t *testing.T) {
	var logged strings.Builder
	log := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
	r, _ := runSettledMixture(t, 300*mib, skewed, prefetch.Options{Always: true, Log: log}, nil)
	const decode = 7000
	send := func(e event.Event) {
		t.Helper()
		if err := r.Handle(e); err != nil {
			t.Fatal(err)
		}
	}
	describe := func() string {
		s := r.Summary()
		return fmt.Sprintf("%+v %d", *s.Experts, s.Pinned)
	}
	if err := r.Sleep(5 * time.Millisecond); err != nil { // until the end of the last decode is reported
		t.Fatal(err)
	}
	before, used := describe(), r.Used()
	good := event.Selected{TID: 1, Decode: decode, Layer: 3, IDs: []int32{14, 15}, IDRows: 1}
	idle := good
	idle.Decode = 0
	send(idle) // no decode is under way
	if now := describe(); now != before {
		t.Errorf("between decodes: %s, want %s as before", now, before)
	}
	send(event.DecodeBegin{PID: 1, TID: 1, Context: 1, Decode: decode, Tokens: 1})
	for name, change := range map[string]func(e *event.Selected){
		"negative id":   func(e *event.Selected) { e.IDs = []int32{-1, 1} },
		"large id":      func(e *event.Selected) { e.IDs = []int32{1, math.MaxInt32} },
		"one too large": func(e *event.Selected) { e.IDs = []int32{mixExperts} },
		"no rows":       func(e *event.Selected) { e.IDRows = 0 },
		"negative rows": func(e *event.Selected) { e.IDRows = -1 },
		"more rows":     func(e *event.Selected) { e.IDRows = math.MaxInt32 },
		"uneven rows":   func(e *event.Selected) { e.IDs, e.IDRows = []int32{1, 2, 3}, 2 },
		"no ids":        func(e *event.Selected) { e.IDs = nil },
		"unknown layer": func(e *event.Selected) { e.Layer = 77 },
		"no layer":      func(e *event.Selected) { e.Layer = -1 },
		"other thread":  func(e *event.Selected) { e.TID = 2 },
		"other decode":  func(e *event.Selected) { e.Decode++ },
		"no decode":     func(e *event.Selected) { e.Decode = 0 },
	} {
		e := good
		change(&e)
		send(e)
		if now := describe(); now != before || r.Used() != used {
			t.Errorf("%s: %s with %d bytes in memory, want %s with %d as before", name, now, r.Used(), before, used)
		}
	}
	if strings.Count(logged.String(), "\n") != 1 {
		t.Errorf("logged %q, want one line", logged.String())
	}
	send(good)
	if describe() == before {
		t.Errorf("a true selection: %s as before, want a difference", before)
	}
}

// While tokens without help are measured, experts are left to the target. Afterwards those that are in memory are
// taken over.
func TestExpertsCompared(t *testing.T) {
	plain := runMixtureAlone(t, 200*mib, skewed, nil)
	r := newMixtureRig(t, 200*mib, skewed, prefetch.Options{}, nil)
	rest := func() {
		if err := r.Sleep(5 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	rest() // so that the time is not 0, which means that none is known
	r.Warmup = true
	r.run(1)
	r.Warmup = false
	rest() // until its end is reported
	// The warm-up reads all experts, so it is no token to compare with.
	if s := r.Status(); s.Activity != prefetch.Comparing || s.Before != 0 {
		t.Errorf("after the warm-up: %+v, want %s, and no speed of before", s, prefetch.Comparing)
	}
	r.run(149)
	// Nor is the token after it, which finds nothing in memory.
	if before := r.Status().Before; before*plain.Time.Seconds() < 0.7 {
		t.Errorf("%.2f tokens per second without help are assumed, want about the true %.2f",
			before, 1/plain.Time.Seconds())
	}
	for i := range r.cycle.Reads {
		r.cycle.Reads[i].Nanos *= 6
	}
	compared := false
	var aside int64
	for range 200 {
		token := r.run(1)
		if r.Status().Activity != prefetch.Comparing {
			if compared {
				break
			}
			continue
		}
		if compared && token.HelperBytes != 0 {
			t.Errorf("the helper read %d bytes for a token without help, want 0", token.HelperBytes)
		}
		compared, aside = true, r.Summary().Experts.Kept
	}
	if !compared || aside != 0 {
		t.Fatalf("compared %v, with %d bytes of experts kept meanwhile, want a comparison with 0", compared, aside)
	}
	if x := r.Summary().Experts; x.Kept < x.Room/2 {
		t.Errorf("%d bytes of experts are taken over, want at least %d", x.Kept, x.Room/2)
	}
}

// If tokens take far longer without help, fewer of them are measured.
func TestExpertsComparedShort(t *testing.T) {
	for ahead, most := range map[int64]int{16 * mib: 2, 64 << 10: 4} {
		r := newMixtureRig(t, 200*mib, skewed, prefetch.Options{}, func(c *sim.Config) { c.Readahead = ahead })
		r.run(20)
		n := 0
		for range 150 {
			r.run(1)
			if err := r.Sleep(5 * time.Millisecond); err != nil { // until its end is reported
				t.Fatal(err)
			}
			if s := r.Status(); s.Activity == prefetch.Comparing {
				n++
			} else if n > 0 {
				break
			}
		}
		if n == 0 || n > most {
			t.Errorf("readahead %d: %d tokens without help in a comparison, want some, at most %d", ahead, n, most)
		}
	}
}

// A stored pattern has experts, too. They are read for the first token already.
func TestStoredExperts(t *testing.T) {
	r := newMixtureRig(t, 300*mib, skewed, prefetch.Options{Strategy: plan.Pattern{}}, nil)
	r.run(0)
	if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0), Base: r.Base(0)}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Sleep(time.Second); err != nil {
		t.Fatal(err)
	}
	r.run(1) // the warm-up
	token := r.run(1)
	s := r.Summary()
	if !s.Stored || s.Learned != 1 || s.Pinned < mixShared || s.Experts == nil || s.Experts.Chosen == 0 ||
		token.TargetBytes > mib {
		t.Errorf("%+v, experts %+v; want the stored pattern, %d bytes held, and experts that were chosen; "+
			"the target read %d bytes itself, want at most %d", s, s.Experts, mixShared, token.TargetBytes, mib)
	}
}

// Experts are not helped if their tensor is said to have millions of them.
func TestTooManyExperts(t *testing.T) {
	c := mixtureCycle()
	for i := range c.Reads {
		if r := &c.Reads[i]; r.Experts {
			r.Slice = 4
		}
	}
	r := newMixtureRig(t, 70*mib, skewed, prefetch.Options{}, nil)
	if err := r.Use(c, []models.Mapped{{Path: r.Path(0), Base: r.Base(0)}}); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(c.Reads, func(r pattern.CycleRead) bool { return r.Experts }) {
		t.Fatal("the cycle has no experts: the test does not meet its case")
	}
	if s := r.Summary(); s.Experts != nil {
		t.Errorf("experts %+v, want none", s.Experts)
	}
}
