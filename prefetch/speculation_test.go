package prefetch_test

// This file tests reads of experts before they are chosen, in virtual time, where it is known what they can win.

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/moe"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/mixture"
	"tensorcast/sim"
)

// oracle is a guesser that knows what routers are going to choose; or, if it lies, which experts they are not.
type oracle struct {
	route        func(token, layer int) []int32
	lies         bool
	each         func() // is called before each choice, if not nil
	token, layer int    // that chose last
	asked        int
}

// choose is the router's choice.
func (o *oracle) choose(token, layer int) []int32 {
	o.token, o.layer = token, layer
	if o.each != nil {
		o.each()
	}
	return o.route(token, layer)
}

func (o *oracle) Begin(int32)          {}
func (o *oracle) Observe(int, []int32) {}
func (o *oracle) Scores(layer int, scores []float32) {
	o.asked++
	token := o.token
	if layer <= o.layer {
		token++
	}
	for e := range scores {
		scores[e] = -5
	}
	chosen := o.route(token, layer)
	for _, e := range chosen {
		for o.lies && slices.Contains(chosen, e) {
			e = (e + 1) % int32(len(scores))
		}
		scores[e] = 5
	}
}

// guessing is a mixture of which a layer computes for slow times 0.7 ms, with a guesser; nil: that of ids.
func guessing(t *testing.T, power, slow float64, mode prefetch.Speculation, o *oracle) *rig {
	t.Helper()
	if o == nil {
		o = &oracle{}
	}
	opts := prefetch.Options{Always: true}
	opts.Experts.Speculate = mode
	opts.Experts.Predict = func(mixture.Routers, string, event.FileID) mixture.Predictor { return o }
	if o.route == nil {
		opts.Experts.Predict = func(r mixture.Routers, _ string, _ event.FileID) mixture.Predictor {
			return moe.NewIDs(moe.Shape{Layers: len(r.Blocks), Experts: r.Experts, K: r.Chosen}, []int{1, 2}, 1<<20)
		}
	}
	r := newMixtureRig(t, 300*mib, power, opts, func(c *sim.Config) {
		if o.route == nil {
			o.route = c.Route
		}
		c.Route = o.choose
	})
	for i := range r.cycle.Reads {
		r.cycle.Reads[i].Nanos = int64(float64(r.cycle.Reads[i].Nanos) * slow)
	}
	return r
}

// computes is how long a token computes if it waits for nothing.
func computes(c *pattern.Cycle) (d time.Duration) {
	for _, r := range c.Reads {
		d += time.Duration(r.Nanos)
	}
	return d
}

const patient = 10 // the disk is idle for most of a token

// Where it is known what the next layer chooses, and the disk has time, a token waits for next to nothing. That is found out.
func TestSpeculation(t *testing.T) {
	token := map[prefetch.Speculation]time.Duration{}
	var read int64
	for _, mode := range []prefetch.Speculation{prefetch.SpeculateOff, prefetch.SpeculateOn} {
		o := &oracle{route: routing(uniform)}
		r := guessing(t, uniform, patient, mode, o)
		r.run(350)
		token[mode] = r.run(60).Time - computes(r.cycle)
		x := r.Summary().Experts
		if mode == prefetch.SpeculateOff {
			if x.Speculation != nil || o.asked > 0 {
				t.Errorf("off: %+v, asked %d times", x.Speculation, o.asked)
			}
			read = x.Read
			continue
		}
		s := x.Speculation
		if s == nil || s.State != "on" {
			t.Fatalf("%s: speculation is %+v, want it on", mode, s)
		}
		if s.Used < s.Read*9/10 || s.Read < read/10 || x.Read > read*8/10 {
			t.Errorf("%s: %+v; %d bytes read when they were chosen, %d without guesses", mode, *s, x.Read, read)
		}
		if status := r.Status(); status.Early < mib || status.Early > read/100 {
			t.Errorf("%s: %d bytes a token are read for guesses, it says", mode, status.Early)
		}
		if r.Overcommitted() > 0 || x.Kept > x.Room {
			t.Errorf("%s: %d bytes beyond the limit, %d kept in room for %d", mode, r.Overcommitted(), x.Kept, x.Room)
		}
	}
	off, on := token[prefetch.SpeculateOff], token[prefetch.SpeculateOn]
	if on > off/4 {
		t.Errorf("a token waits for %v with predictions, want a quarter of %v at most", on, off)
	}
}

// A disk that is never idle reads nothing for guesses, right as they are.
func TestSpeculationBusyDisk(t *testing.T) {
	r := guessing(t, uniform, 0.01, prefetch.SpeculateOn, &oracle{route: routing(uniform)})
	r.run(200)
	if s := r.Summary().Experts.Speculation; s.Read > 200*guessPiece {
		t.Errorf("%d bytes were read, want %d at most: %+v, a token computes for %v", s.Read, int64(200*guessPiece), *s, computes(r.cycle))
	}
}

// guessPiece is read at a time.
const guessPiece = 512 << 10

// Where there is nothing to guess by, it makes no difference to ask for guesses.
func TestSpeculationWithoutLocality(t *testing.T) {
	off := guessing(t, uniform, patient, prefetch.SpeculateOff, nil).run(500)
	for _, mode := range []prefetch.Speculation{prefetch.SpeculateOn} {
		r := guessing(t, uniform, patient, mode, nil)
		token := r.run(500)
		s := r.Summary().Experts
		t.Logf("%s: %v a token, off %v: %+v", mode, token.Time, off.Time, *s.Speculation)
		if diff := (token.Time - off.Time).Abs(); diff > off.Time/200 {
			t.Errorf("%s: %v a token, off %v; %+v", mode, token.Time, off.Time, *s.Speculation)
		}
		if s.Speculation.Read > s.Read/50 {
			t.Errorf("%s: %d bytes read for guesses, %d for what was chosen", mode, s.Speculation.Read, s.Read)
		}
	}
}

// Where ids tell what comes next, a predictor of ids learns it, and that wins.
func TestSpeculationLearns(t *testing.T) {
	follows := func(token, layer int) []int32 { // a layer chooses what the one before it did, by a table; the first one at random
		r := rand.New(rand.NewPCG(uint64(token), 7))
		a := r.Int32N(mixExperts)
		for l := range layer {
			a = (a*5 + int32(l) + 3) % mixExperts
		}
		return []int32{a, (a + 8) % mixExperts}
	}
	run := func(mode prefetch.Speculation) (*rig, sim.Token) {
		o := &oracle{}
		r := guessing(t, uniform, patient, mode, o)
		route := o.route
		o.route = func(token, layer int) []int32 {
			if token == 0 {
				return route(0, layer)
			}
			return follows(token, layer)
		}
		r.run(500)
		return r, r.run(60)
	}
	_, off := run(prefetch.SpeculateOff)
	r, on := run(prefetch.SpeculateOn)
	s := r.Summary().Experts.Speculation
	t.Logf("%v a token, %v without: %+v", on.Time, off.Time, *s)
	if wait := computes(r.cycle); on.Time-wait > (off.Time-wait)/2 {
		t.Errorf("%v a token, %v without guesses, of which it computes for %v; %+v", on.Time, off.Time, wait, *s)
	}
}

// waits notes for how long requests of what has been chosen would wait for others at the disk.
type waits struct {
	*prefetch.Controller
	machine *sim.Machine
	all     []time.Duration
}

func (w *waits) Handle(e event.Event) error {
	if _, is := e.(event.Selected); is {
		w.all = append(w.all, w.machine.Backlog())
	}
	return w.Controller.Handle(e)
}

// What has been chosen does not wait for what was read for guesses, wrong ones at that, though layers take now more and now less time.
func TestDemandFirst(t *testing.T) {
	o := &oracle{route: routing(uniform), lies: true}
	r := guessing(t, uniform, patient, prefetch.SpeculateOn, o)
	before, random := slices.Clone(r.cycle.Reads), rand.New(rand.NewPCG(1, 2))
	o.each = func() {
		for i := range r.cycle.Reads {
			r.cycle.Reads[i].Nanos = before[i].Nanos * (85 + random.Int64N(30)) / 100
		}
	}
	r.run(50)
	w := &waits{r.Controller, r.Machine, nil}
	r.Attach(w)
	read := r.Summary().Experts.Speculation.Read
	mean := r.run(100)
	read = r.Summary().Experts.Speculation.Read - read
	var sum, most time.Duration
	for _, d := range w.all {
		sum += d
		most = max(most, d)
	}
	t.Logf("%d choices waited for %v, at most %v, in tokens of %v; %d bytes were read for guesses", len(w.all), sum, most, mean.Time, read)
	if len(w.all) != 100*mixLayers || read < 100*mib {
		t.Fatalf("%d choices, %d bytes read for guesses", len(w.all), read)
	}
	if sum > 100*mean.Time/200 || most > 3*time.Millisecond {
		t.Errorf("choices waited for %v, at most %v, in 100 tokens of %v", sum, most, mean.Time)
	}
}

// A limit that falls while guesses are read is kept to.
func TestSpeculationShrinks(t *testing.T) {
	r := guessing(t, uniform, patient, prefetch.SpeculateOn, &oracle{route: routing(uniform)})
	r.run(100)
	r.SetLimit(180 * mib)
	r.run(5)
	if x := r.Summary().Experts; x.Kept > x.Room || x.Room > 80*mib || r.Overcommitted() > 0 {
		t.Errorf("%+v; %d bytes beyond the limit", *x, r.Overcommitted())
	}
	if token := r.run(40); token.Misses > 40*mixLayers {
		t.Errorf("%d misses in 40 tokens", token.Misses)
	}
}
