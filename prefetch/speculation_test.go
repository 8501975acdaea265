package prefetch_test

// This file tests in virtual time reads of experts before they are chosen. There it is known how much they can win.

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

// oracle is a predictor that knows what routers are going to choose. If it lies, it predicts experts that they do not.
type oracle struct {
	route        func(token, layer int) []int32
	lies         bool
	each         func() // is called before each choice, if not nil
	token, layer int    // that chose last
	asked        int    // calls of Scores
}

// choose is the router's choice for a token in a layer.
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

// newPredictingRig is a rig with a mixture and a predictor: o, or with nil one that goes by ids. A layer computes for
// slow times 0.7 ms.
func newPredictingRig(t *testing.T, power, slow float64, mode prefetch.Speculation, o *oracle) *rig {
	t.Helper()
	if o == nil {
		o = &oracle{}
	}
	opts := prefetch.Options{Always: true}
	opts.Experts.Speculate = mode
	opts.Experts.Predict = func(mixture.Routers, string, event.FileID) mixture.Predictor { return o }
	if o.route == nil {
		opts.Experts.Predict = func(r mixture.Routers, _ string, _ event.FileID) mixture.Predictor {
			shape := moe.Shape{Layers: len(r.Blocks), Experts: r.Experts, K: r.Chosen}
			return moe.NewIDMixture(shape, []int{1, 2}, 1<<20)
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

// sumComputing is how long a token computes if it waits for nothing.
func sumComputing(c *pattern.Cycle) (d time.Duration) {
	for _, r := range c.Reads {
		d += time.Duration(r.Nanos)
	}
	return d
}

// slowComputing leaves the disk idle for most of a token.
const slowComputing = 10

// If it is known what the next layer chooses, and the disk has time, a token waits for next to nothing.
func TestSpeculation(t *testing.T) {
	token := map[prefetch.Speculation]time.Duration{}
	var read int64
	for _, mode := range []prefetch.Speculation{prefetch.SpeculateOff, prefetch.SpeculateOn} {
		o := &oracle{route: routing(uniform)}
		r := newPredictingRig(t, uniform, slowComputing, mode, o)
		r.run(350)
		token[mode] = r.run(60).Time - sumComputing(r.cycle)
		x := r.Summary().Experts
		if mode == prefetch.SpeculateOff {
			if x.Speculation != nil || o.asked > 0 {
				t.Errorf("off: speculation is %+v, and the predictor was asked %d times, want none",
					x.Speculation, o.asked)
			}
			read = x.Read
			continue
		}
		s := x.Speculation
		if s == nil || s.State != "on" {
			t.Fatalf("%s: speculation is %+v, want it on", mode, s)
		}
		if s.Used < s.Read*9/10 || s.Read < read/10 || x.Read > read*8/10 {
			t.Errorf("%s: %+v, want nine tenths used, and at least %d bytes read early; "+
				"%d bytes were read once they were chosen, want at most eight tenths of the %d without predictions",
				mode, *s, read/10, x.Read, read)
		}
		if status := r.Status(); status.Early < mib || status.Early > read/100 {
			t.Errorf("%s: a status with %d bytes a token read early, want %d to %d", mode, status.Early, mib, read/100)
		}
		if r.Overcommitted() > 0 || x.Kept > x.Room {
			t.Errorf("%s: %d bytes exceed the limit, want 0; %d bytes kept, want at most the room of %d",
				mode, r.Overcommitted(), x.Kept, x.Room)
		}
	}
	off, on := token[prefetch.SpeculateOff], token[prefetch.SpeculateOn]
	if on > off/4 {
		t.Errorf("a token waits for %v with predictions, want a quarter of %v at most", on, off)
	}
}

// A disk that is never idle reads nothing for predictions, even if they are right.
func TestSpeculationBusyDisk(t *testing.T) {
	r := newPredictingRig(t, uniform, 0.01, prefetch.SpeculateOn, &oracle{route: routing(uniform)})
	r.run(200)
	if s := r.Summary().Experts.Speculation; s.Read > 200*predictedPiece {
		t.Errorf("%d bytes were read early, want at most %d: %+v, a token computes for %v",
			s.Read, int64(200*predictedPiece), *s, sumComputing(r.cycle))
	}
}

// predictedPiece is how many bytes of a prediction are read at a time.
const predictedPiece = 512 << 10

// If nothing can be predicted, speculation makes no difference.
func TestSpeculationWithoutLocality(t *testing.T) {
	off := newPredictingRig(t, uniform, slowComputing, prefetch.SpeculateOff, nil).run(500)
	for _, mode := range []prefetch.Speculation{prefetch.SpeculateOn} {
		r := newPredictingRig(t, uniform, slowComputing, mode, nil)
		token := r.run(500)
		s := r.Summary().Experts
		t.Logf("%s: %v a token, off: %v; %+v", mode, token.Time, off.Time, *s.Speculation)
		if diff := (token.Time - off.Time).Abs(); diff > off.Time/200 {
			t.Errorf("%s: %v a token, want about the %v without; %+v", mode, token.Time, off.Time, *s.Speculation)
		}
		if s.Speculation.Read > s.Read/50 {
			t.Errorf("%s: %d bytes read early, want at most a fiftieth of the %d read for choices",
				mode, s.Speculation.Read, s.Read)
		}
	}
}

// If ids tell what comes next, the predictor that goes by ids learns it, and that wins.
func TestSpeculationLearns(t *testing.T) {
	// The first layer chooses at random. What each other layer chooses follows from the choice of the one before it.
	chain := func(token, layer int) []int32 {
		r := rand.New(rand.NewPCG(uint64(token), 7))
		a := r.Int32N(mixExperts)
		for l := range layer {
			a = (a*5 + int32(l) + 3) % mixExperts
		}
		return []int32{a, (a + 8) % mixExperts}
	}
	run := func(mode prefetch.Speculation) (*rig, sim.Token) {
		o := &oracle{}
		r := newPredictingRig(t, uniform, slowComputing, mode, o)
		route := o.route
		o.route = func(token, layer int) []int32 {
			if token == 0 {
				return route(0, layer)
			}
			return chain(token, layer)
		}
		r.run(500)
		return r, r.run(60)
	}
	_, off := run(prefetch.SpeculateOff)
	r, on := run(prefetch.SpeculateOn)
	s := r.Summary().Experts.Speculation
	t.Logf("%v a token, %v without: %+v", on.Time, off.Time, *s)
	if compute := sumComputing(r.cycle); on.Time-compute > (off.Time-compute)/2 {
		t.Errorf("%v a token, %v without predictions, of which it computes for %v; "+
			"want at most half of the waiting; %+v",
			on.Time, off.Time, compute, *s)
	}
}

// waitRecorder is a Controller that notes, at each choice, how long its reads would wait for others at the disk.
type waitRecorder struct {
	*prefetch.Controller
	machine *sim.Machine
	all     []time.Duration
}

func (w *waitRecorder) Handle(e event.Event) error {
	if _, is := e.(event.Selected); is {
		w.all = append(w.all, w.machine.Backlog())
	}
	return w.Controller.Handle(e)
}

// Reads of what was chosen do not wait for reads of predictions, which are all wrong here, though the layers' times
// vary.
func TestDemandFirst(t *testing.T) {
	o := &oracle{route: routing(uniform), lies: true}
	r := newPredictingRig(t, uniform, slowComputing, prefetch.SpeculateOn, o)
	before, random := slices.Clone(r.cycle.Reads), rand.New(rand.NewPCG(1, 2))
	o.each = func() {
		for i := range r.cycle.Reads {
			r.cycle.Reads[i].Nanos = before[i].Nanos * (85 + random.Int64N(30)) / 100
		}
	}
	r.run(50)
	w := &waitRecorder{r.Controller, r.Machine, nil}
	r.Attach(w)
	read := r.Summary().Experts.Speculation.Read
	mean := r.run(100)
	read = r.Summary().Experts.Speculation.Read - read
	var sum, most time.Duration
	for _, d := range w.all {
		sum += d
		most = max(most, d)
	}
	t.Logf("%d choices waited for %v in all, at most %v each, in tokens of %v; %d bytes were read early",
		len(w.all), sum, most, mean.Time, read)
	if len(w.all) != 100*mixLayers || read < 100*mib {
		t.Fatalf("%d choices, want %d; %d bytes read early, want at least %d",
			len(w.all), 100*mixLayers, read, 100*mib)
	}
	if sum > 100*mean.Time/200 || most > 3*time.Millisecond {
		t.Errorf("choices waited for %v in all, want at most %v; at most %v each, want at most 3ms",
			sum, 100*mean.Time/200, most)
	}
}

// When the limit falls while predictions are read, memory stays below it.
func TestSpeculationShrinks(t *testing.T) {
	r := newPredictingRig(t, uniform, slowComputing, prefetch.SpeculateOn, &oracle{route: routing(uniform)})
	r.run(100)
	r.SetLimit(180 * mib)
	r.run(5)
	if x := r.Summary().Experts; x.Kept > x.Room || x.Room > 80*mib || r.Overcommitted() > 0 {
		t.Errorf("%+v, want room for at most %d bytes, and no more kept; %d bytes exceed the limit, want 0",
			*x, 80*mib, r.Overcommitted())
	}
	if token := r.run(40); token.Misses > 40*mixLayers {
		t.Errorf("%d misses in 40 tokens, want at most %d", token.Misses, 40*mixLayers)
	}
}
