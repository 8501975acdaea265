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
	mixChosen  = 2 // of a layer, by a token
	mixTrunk   = mixLayers * 8 * mib
	mixExpert  = 3 * mib
	mixRouted  = mixLayers * mixExperts * mixExpert
	// mixMargin is what is left free beside what is held and the experts: the reserve, and what reads at once take for moments.
	mixMargin = reserve + 24*mib
)

// mixtureCycle is a cycle of layers with 8 MiB that every token reads and 16 experts of three slices.
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
			add(pattern.CycleRead{Tensor: fmt.Sprintf("blk.%d.ffn_%s_exps.weight", layer, name), Length: mixExperts * mib, Experts: true})
		}
	}
	return c
}

// routing sends tokens to experts; the chance of the one at a rank falls with its power. The first token, the warm-up, goes to all.
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

// mixRig is a machine that computes with a mixture.
func mixRig(t *testing.T, limit int64, power float64, opts prefetch.Options, change func(*sim.Config)) *rig {
	t.Helper()
	r := newRigOf(t, mixtureCycle(), 1, opts, func(c *sim.Config) {
		c.Limit, c.Route, c.Readahead = limit, routing(power), 256<<10
		if change != nil {
			change(c)
		}
	})
	r.Warmup = true
	r.At(time.Nanosecond, func() { r.Warmup = false }) // the first decode has begun
	return r
}

// mixAlone is a token without a helper, on average.
func mixAlone(t *testing.T, limit int64, power float64, change func(*sim.Config)) sim.Token {
	t.Helper()
	r := mixRig(t, limit, power, prefetch.Options{}, change)
	r.Attach(nil)
	r.run(100)
	return r.run(50)
}

// mixHelp has a helper settle, and is a token after that, on average.
func mixHelp(t *testing.T, limit int64, power float64, opts prefetch.Options, change func(*sim.Config)) (*rig, sim.Token) {
	t.Helper()
	r := mixRig(t, limit, power, opts, change)
	r.run(100)
	token := r.run(50)
	if r.Overcommitted() > 0 {
		t.Errorf("%d bytes beyond the limit", r.Overcommitted())
	}
	return r, token
}

// fewest is how many experts somebody who knows all that is to come would read per token, in tokens [from, to), with room for some: a layer's are read if they are not there, and those
// give way that are chosen again last.
func fewest(route func(token, layer int) []int32, room, from, to int) float64 {
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

// often is the same for somebody who keeps those that were chosen most often so far.
func often(route func(token, layer int) []int32, room, from, to int) float64 {
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

// What a router has chosen is read at once; what it is going to choose is kept; the trunk is there whole.
func TestExperts(t *testing.T) {
	for limit, share := range map[int64]time.Duration{200 * mib: 70, 300 * mib: 80, 400 * mib: 95} {
		r, token := mixHelp(t, limit, skewed, prefetch.Options{}, nil)
		plain := mixAlone(t, limit, skewed, nil)
		s := r.Summary()
		if s.Pinned < mixTrunk || s.Experts == nil || s.Learned != 1 {
			t.Fatalf("limit %d MiB: %+v", limit/mib, s)
		}
		if token.Misses > 50 || token.TargetBytes > mib/4 { // of 50 tokens
			t.Errorf("limit %d MiB: %d misses, the target reads %d bytes a token", limit/mib, token.Misses, token.TargetBytes)
		}
		if token.Time > plain.Time*share/100 {
			t.Errorf("limit %d MiB: %v a token, %v without help", limit/mib, token.Time, plain.Time)
		}
		if x := s.Experts; x.Room != limit-s.Pinned-mixMargin || x.Kept > x.Room || x.Kept < x.Room-2*mixExpert || x.Read < x.All/4 || x.Missed > x.Chosen/2 {
			t.Errorf("limit %d MiB: %+v", limit/mib, *x)
		}
		least := fewest(routing(skewed), int(limit-mixTrunk)/mixExpert, 100, 150)
		most := often(routing(skewed), int(s.Experts.Room)/mixExpert, 100, 150)
		if read := float64(token.HelperBytes+token.TargetBytes) / mixExpert; read < least || read > most*1.15+0.5 {
			t.Errorf("limit %d MiB: %.2f experts read per token; whoever knows the future reads %.2f, whoever counts %.2f", limit/mib, read, least, most)
		}
	}
}

// The trunk comes first: it is held whole while experts have to give way.
func TestTrunkFirst(t *testing.T) {
	limit := int64(mixTrunk + mixMargin + 2*window + 12*mib)
	r, _ := mixHelp(t, limit, skewed, prefetch.Options{}, nil)
	if s := r.Summary(); s.Pinned < mixTrunk-8*mib || s.Experts.Room > 48*mib {
		t.Errorf("%d bytes of %d are held; %+v", s.Pinned, mixTrunk, *s.Experts)
	}
}

// A router that has no favourites is helped by reads at once, at least it is not harmed. The same with less room than the trunk takes.
func TestExpertsWithoutFavourites(t *testing.T) {
	for limit, power := range map[int64]float64{300 * mib: uniform, 70 * mib: skewed, 64 * mib: uniform} {
		plain := mixAlone(t, limit, power, nil)
		r := mixRig(t, limit, power, prefetch.Options{}, nil)
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
			t.Errorf("limit %d MiB: %v a token, %v without help; %d bytes beyond the limit", limit/mib, token.Time, plain.Time, r.Overcommitted())
		}
		if least := int64(2 * mixChosen * mixExpert); s.Experts.Room < least || limit < 100*mib && s.Pinned+s.Window+least > limit-reserve {
			t.Errorf("limit %d MiB: %d bytes held, %+v", limit/mib, s.Pinned, *s.Experts)
		}
	}
}

// Where trunk and experts fit there is nothing to win, whatever the strategy; where only the trunk does there is.
func TestExpertsFit(t *testing.T) {
	for _, strategy := range plan.Strategies() {
		if strategy.Name() == "pattern" {
			continue // needs a stored one
		}
		r := mixRig(t, mixTrunk+mixRouted+mixMargin+window, skewed, prefetch.Options{Strategy: strategy}, nil)
		var stood *prefetch.StandBack
		if _, err := r.Run(1, r.cycle, 10); !errors.As(err, &stood) || stood.Reason != prefetch.Fits || stood.Bytes < mixTrunk+mixRouted {
			t.Errorf("%s: %v", strategy.Name(), err)
		}
		r = mixRig(t, mixTrunk+mixRouted-mib, skewed, prefetch.Options{Strategy: strategy, Always: true}, nil)
		r.run(20)
		if s := r.Summary(); s.Idle != "" || s.PerToken == 0 {
			t.Errorf("%s: stands back where only the trunk fits: %s", strategy.Name(), s.Idle)
		}
	}
}

// Experts give way to a limit that falls, and come back.
func TestExpertsShrink(t *testing.T) {
	r, before := mixHelp(t, 400*mib, skewed, prefetch.Options{Always: true}, nil) // a comparison would leave experts to the target
	r.SetLimit(220 * mib)
	r.run(3)
	s := r.Summary()
	if s.Pinned < mixTrunk || s.Experts.Room > 220*mib-s.Pinned-mixMargin || s.Experts.Room < 80*mib || s.Experts.Kept > s.Experts.Room {
		t.Errorf("limit 220 MiB: %d bytes held, %+v", s.Pinned, *s.Experts)
	}
	r.run(20)
	if token := r.run(10); token.Misses > 10 {
		t.Errorf("limit 220 MiB: %d misses", token.Misses)
	}
	if err := r.Sleep(time.Second); err != nil {
		t.Fatal(err)
	}
	r.SetLimit(180 * mib)
	if err := r.Sleep(200 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if x := r.Summary().Experts; x.Kept > x.Room || x.Room > 80*mib {
		t.Errorf("limit 180 MiB, while the target rests: %+v", *x)
	}
	r.SetLimit(400 * mib)
	r.run(60)
	if token := r.run(30); token.Time > before.Time*12/10 || r.Summary().Experts.Kept < 220*mib {
		t.Errorf("limit 400 MiB again: %v a token, %v before; %+v", token.Time, before.Time, *r.Summary().Experts)
	}
	if r.Overcommitted() > 0 {
		t.Errorf("%d bytes beyond the limit", r.Overcommitted())
	}
}

// Who only streams keeps no experts; who only pins leaves them alone.
func TestStrategiesAndExperts(t *testing.T) {
	r, token := mixHelp(t, 300*mib, skewed, prefetch.Options{Strategy: plan.Stream{}, Always: true}, nil)
	if s := r.Summary(); s.Pinned != 0 || s.Experts.Kept > 2*mixChosen*mixExpert || s.Experts.Room != 2*mixChosen*mixExpert {
		t.Errorf("stream: %d bytes held, %+v", s.Pinned, *s.Experts)
	}
	if token.Misses > 50*mixLayers {
		t.Errorf("stream: %d misses", token.Misses)
	}
	r, _ = mixHelp(t, 300*mib, skewed, prefetch.Options{Strategy: plan.Pin{}, Always: true, Lock: true}, nil)
	before := r.pages.Calls
	token = r.run(20)
	if s := r.Summary(); s.Experts != nil || s.Pinned < mixTrunk || token.HelperBytes > 0 || r.pages.Calls.PageOut != before.PageOut {
		t.Errorf("pin: %d bytes held, experts %v, %d read", s.Pinned, s.Experts, token.HelperBytes)
	}
}

// The least that is left to experts is what a token chooses, not all that the warm-up did.
func TestLeastAfterWarmup(t *testing.T) {
	limit := int64(mixTrunk + mixMargin + 2*window)
	r, _ := mixHelp(t, limit, skewed, prefetch.Options{Always: true}, nil)
	if s := r.Summary(); s.Pinned < mixTrunk-16*mib {
		t.Errorf("%d bytes of %d are held", s.Pinned, mixTrunk)
	}
}

// A prompt's tokens choose many experts: more than have room are not read for them, and what is kept serves the tokens after it.
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
		r := mixRig(t, limit, uniform, prefetch.Options{Always: true}, prompts)
		r.run(49)
		r.Batch = 64
		read := r.Summary().Experts.Read
		r.run(1)
		r.Batch = 0
		s := r.Summary()
		if most := int64(mixLayers) * max(s.Experts.Room, 2*mixChosen*mixExpert); s.Experts.Read == read || s.Experts.Read-read > most {
			t.Errorf("limit %d MiB: a prompt's experts took reads of %d bytes, with room for %d", limit/mib, s.Experts.Read-read, s.Experts.Room)
		}
		if held := s.Pinned; limit == 300*mib && held < mixTrunk || r.Overcommitted() > 0 {
			t.Errorf("limit %d MiB: %d bytes held after a prompt, %d beyond the limit; %d taken", limit/mib, held, r.Overcommitted(), s.Taken)
		}
		r.run(10)
		if token := r.run(20); limit == 300*mib && token.Misses > 20 {
			t.Errorf("limit %d MiB: %d misses after a prompt", limit/mib, token.Misses)
		}
	}
}

// What cannot be true of a selection is not acted on, and told once.
func TestHostileSelected(t *testing.T) {
	var said strings.Builder
	log := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
	r, _ := mixHelp(t, 300*mib, skewed, prefetch.Options{Always: true, Log: log}, nil)
	const decode = 7000
	send := func(e event.Event) {
		t.Helper()
		if err := r.Handle(e); err != nil {
			t.Fatal(err)
		}
	}
	look := func() string { s := r.Summary(); return fmt.Sprintf("%+v %d", *s.Experts, s.Pinned) }
	if err := r.Sleep(5 * time.Millisecond); err != nil { // the end of the last decode is told
		t.Fatal(err)
	}
	before, used := look(), r.Used()
	good := event.Selected{TID: 1, Decode: decode, Layer: 3, IDs: []int32{14, 15}, IDRows: 1}
	idle := good
	idle.Decode = 0
	send(idle) // no decode is under way
	if now := look(); now != before {
		t.Errorf("between decodes: %s, before %s", now, before)
	}
	send(event.DecodeBegin{PID: 1, TID: 1, Context: 1, Decode: decode, Tokens: 1})
	for name, change := range map[string]func(e *event.Selected){
		"negative id":      func(e *event.Selected) { e.IDs = []int32{-1, 1} },
		"large id":         func(e *event.Selected) { e.IDs = []int32{1, math.MaxInt32} },
		"one too large":    func(e *event.Selected) { e.IDs = []int32{mixExperts} },
		"no rows":          func(e *event.Selected) { e.IDRows = 0 },
		"negative rows":    func(e *event.Selected) { e.IDRows = -1 },
		"more rows":        func(e *event.Selected) { e.IDRows = math.MaxInt32 },
		"rows that do not": func(e *event.Selected) { e.IDs, e.IDRows = []int32{1, 2, 3}, 2 },
		"no ids":           func(e *event.Selected) { e.IDs = nil },
		"unknown layer":    func(e *event.Selected) { e.Layer = 77 },
		"no layer":         func(e *event.Selected) { e.Layer = -1 },
		"other thread":     func(e *event.Selected) { e.TID = 2 },
		"other decode":     func(e *event.Selected) { e.Decode++ },
		"no decode":        func(e *event.Selected) { e.Decode = 0 },
	} {
		e := good
		change(&e)
		send(e)
		if now := look(); now != before || r.Used() != used {
			t.Errorf("%s: %s, before %s", name, now, before)
		}
	}
	if strings.Count(said.String(), "\n") != 1 {
		t.Errorf("said %q", said.String())
	}
	send(good)
	if look() == before {
		t.Error("what is true does nothing either")
	}
}

// While tokens are compared with those without help, experts are left to the target; afterwards those that are in memory are taken over.
func TestExpertsCompared(t *testing.T) {
	plain := mixAlone(t, 200*mib, skewed, nil)
	r := mixRig(t, 200*mib, skewed, prefetch.Options{}, nil)
	rest := func() {
		if err := r.Sleep(5 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	rest() // a time of 0 is none
	r.Warmup = true
	r.run(1)
	r.Warmup = false
	rest()                                                                  // its end is told
	if s := r.Status(); s.Activity != prefetch.Comparing || s.Before != 0 { // the warm-up, which reads all experts, is no token to compare with
		t.Errorf("after the warm-up: %+v", s)
	}
	r.run(149)
	if before := r.Status().Before; before*plain.Time.Seconds() < 0.7 { // nor is the token after it, which finds nothing in memory
		t.Errorf("%.2f tok/s without help, it says; a token takes %v", before, plain.Time)
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
			t.Errorf("%d bytes read for a token without help", token.HelperBytes)
		}
		compared, aside = true, r.Summary().Experts.Kept
	}
	if !compared || aside != 0 {
		t.Fatalf("compared %v, %d bytes of experts then", compared, aside)
	}
	if x := r.Summary().Experts; x.Kept < x.Room/2 {
		t.Errorf("only %d bytes of experts are taken over", x.Kept)
	}
}

// Tokens without help that take far longer are compared in fewer of them.
func TestExpertsComparedShort(t *testing.T) {
	for ahead, most := range map[int64]int{16 * mib: 2, 64 << 10: 4} {
		r := mixRig(t, 200*mib, skewed, prefetch.Options{}, func(c *sim.Config) { c.Readahead = ahead })
		r.run(20)
		n := 0
		for range 150 {
			r.run(1)
			if err := r.Sleep(5 * time.Millisecond); err != nil { // its end is told
				t.Fatal(err)
			}
			if s := r.Status(); s.Activity == prefetch.Comparing {
				n++
			} else if n > 0 {
				break
			}
		}
		if n == 0 || n > most {
			t.Errorf("readahead %d: %d tokens without help in a comparison, want %d at most", ahead, n, most)
		}
	}
}

// A stored pattern has experts, too, which are helped from the first token on.
func TestStoredExperts(t *testing.T) {
	r := mixRig(t, 300*mib, skewed, prefetch.Options{Strategy: plan.Pattern{}}, nil)
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
	if !s.Stored || s.Learned != 1 || s.Pinned < mixTrunk || s.Experts == nil || s.Experts.Chosen == 0 || token.TargetBytes > mib {
		t.Errorf("%+v; %+v; the target read %d bytes itself", s, s.Experts, token.TargetBytes)
	}
}

// A target that says that a tensor has millions of experts gets no help for them.
func TestTooManyExperts(t *testing.T) {
	c := mixtureCycle()
	for i := range c.Reads {
		if r := &c.Reads[i]; r.Experts {
			r.Slice = 4
		}
	}
	r := mixRig(t, 70*mib, skewed, prefetch.Options{}, nil)
	if err := r.Use(c, []models.Mapped{{Path: r.Path(0), Base: r.Base(0)}}); err != nil {
		t.Fatal(err)
	}
	if s := r.Summary(); s.Experts != nil || !slices.ContainsFunc(c.Reads, func(r pattern.CycleRead) bool { return r.Experts }) {
		t.Errorf("%+v", s.Experts)
	}
}
