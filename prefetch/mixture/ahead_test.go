package mixture

// This file tests reads of experts that a predictor takes to be chosen next.

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// scripted is a predictor with scores that a test gives it. It notes its calls.
type scripted struct {
	scores  map[int][]float32 // by layer; where it is missing no expert is likely
	calls   []string
	routers Routers
}

func (g *scripted) note(what string, args ...any) {
	g.calls = append(g.calls, fmt.Sprintf(what, args...))
}

func (g *scripted) Begin(id int32)                    { g.note("begin %d", id) }
func (g *scripted) Observe(layer int, chosen []int32) { g.note("%d chose %v", layer, chosen) }
func (g *scripted) Scores(layer int, scores []float32) {
	g.note("scores %d", layer)
	for e := range scores {
		scores[e] = -3
	}
	copy(scores, g.scores[layer])
}

// scriptedInputs is one that also wants the routers' inputs.
type scriptedInputs struct{ scripted }

func (g *scriptedInputs) Attention(layer int, input []float32) {
	g.note("attention %d %v", layer, input)
}
func (g *scriptedInputs) Router(layer int, input []float32) { g.note("router %d %v", layer, input) }
func (g *scriptedInputs) Learn(layer int)                   { g.note("learn %d", layer) }

// aheadRig is a mixture of four layers with four experts of two slices, and a predictor.
type aheadRig struct {
	*Mixture
	t      *testing.T
	levers *recorder
	clock  time.Time
	free   bool // nothing else is to be read
}

func newAheadRig(t *testing.T, predictor Predictor, slice int64) *aheadRig {
	t.Helper()
	r := &aheadRig{t: t, levers: &recorder{there: map[pages.Range]int64{}}, clock: time.Unix(1000, 0), free: true}
	cycle := &pattern.Cycle{}
	for layer := range int64(4) {
		cycle.Reads = append(cycle.Reads,
			expertsRead(0, fmt.Sprintf("blk.%d.a", layer+10), layer*8*slice, slice, 4, 1),
			expertsRead(0, fmt.Sprintf("blk.%d.b", layer+10), layer*8*slice+4*slice, slice, 4, 1))
	}
	r.Mixture = New(cycle, nil, Options{
		Levers: r.levers, Keep: true,
		Now: func() time.Time { return r.clock }, Refuse: func(string, ...any) {},
		Predict: func(has Routers) Predictor {
			if p, is := predictor.(*scripted); is {
				p.routers = has
			}
			return predictor
		},
	})
	r.room = r.size
	r.choose(2, 0)
	r.ahead.rate = 1 // a byte per ns
	for i := range r.ahead.idleFor {
		r.ahead.idleFor[i] = float64(time.Second)
	}
	return r
}

// choose has a layer choose experts.
func (r *aheadRig) choose(layer int32, ids ...int32) {
	r.t.Helper()
	if _, err := r.Select(event.Selected{Decode: 5, Layer: layer + 10, IDs: ids, IDRows: 1}); err != nil {
		r.t.Fatal(err)
	}
}

// readPredicted reads for predictions, and returns what was read.
func (r *aheadRig) readPredicted() []pages.Range {
	r.t.Helper()
	n := len(r.levers.read)
	if err := r.ReadPredicted(r.free); err != nil {
		r.t.Fatal(err)
	}
	return r.levers.read[n:]
}

// slicesOf are all slices of some experts of a layer.
func (r *aheadRig) slicesOf(layer int, ids ...int) (all []pages.Range) {
	for _, id := range ids {
		all = append(all, r.layers[layer].experts[id].slices...)
	}
	return all
}

func (r *aheadRig) expectReads(what string, got, want []pages.Range) {
	r.t.Helper()
	if !slices.Equal(got, want) {
		r.t.Errorf("%s: read %v, want %v", what, got, want)
	}
}

// Experts that are likely to be chosen next are read, the likeliest first. Others are not. What was predicted rightly
// is in memory when it is chosen.
func TestReadPredicted(t *testing.T) {
	g := &scripted{scores: map[int][]float32{0: {1, 5, -1, 0.5}, 1: {-1, -1, 2, -1}, 2: {9, 9, 9, 9}}}
	r := newAheadRig(t, g, page)
	blocks := []int32{10, 11, 12, 13}
	if got := g.routers; !slices.Equal(got.Blocks, blocks) || got.Experts != 4 || got.Chosen != 1 {
		t.Errorf("a predictor for %+v, want blocks %v with 4 experts, of which 1 is chosen", got, blocks)
	}
	r.choose(3, 2)
	r.expectReads("after layer 3", r.readPredicted(), r.slicesOf(0, 1, 0, 3))
	r.expectReads("again", r.readPredicted(), nil)
	if r.ahead.read != 6*page || r.total.read != 2*2*page || r.total.missed != 2 {
		t.Errorf("%d bytes read early, %d for choices, %d missed; want %d, %d, 2",
			r.ahead.read, r.total.read, r.total.missed, 6*page, 2*2*page)
	}
	for _, p := range r.slicesOf(0, 1) {
		r.levers.there[p] = p.Length
	}
	g.calls = nil
	n := len(r.levers.read)
	r.choose(0, 1)
	if r.total.missed != 2 || len(r.levers.read) != n || r.ahead.used != 2*page || r.resident != (2+3)*2*page {
		t.Errorf("a right prediction: %d missed, %d reads, %d bytes used, %d resident; want 2, %d, %d, %d",
			r.total.missed, len(r.levers.read), r.ahead.used, r.resident, n, 2*page, (2+3)*2*page)
	}
	if want := []string{"0 chose [1]", "scores 1"}; !slices.Equal(g.calls, want) {
		t.Errorf("the predictor's calls are %q, want %q", g.calls, want)
	}
	r.expectReads("after layer 0", r.readPredicted(), r.slicesOf(1, 2))
	if s := r.speculation(); s.State != "on" || s.Read != 8*page || s.Used != 2*page {
		t.Errorf("speculation = %+v, want it on with %d bytes read and %d used", s, 8*page, 2*page)
	}
}

// Nothing is read for predictions while a read of what was chosen is under way, or while something is missing that
// every token reads. Nor is anything read that would not arrive before the next layer chooses.
func TestReadPredictedIdle(t *testing.T) {
	g := &scripted{scores: map[int][]float32{3: {5, 5, -1, -1}, 0: {5, -1, -1, -1}}}
	r := newAheadRig(t, g, page)
	r.levers.underWay = r.slicesOf(2, 1)[1:]
	r.choose(2, 1)
	r.expectReads("under way", r.readPredicted(), nil)
	r.clock = r.clock.Add(time.Millisecond)
	r.expectReads("still under way", r.readPredicted(), nil)
	r.levers.underWay = nil
	r.ahead.idleFor[2] = 2*page - 1
	r.expectReads("no time", r.readPredicted(), nil)
	r.ahead.idleFor[2] = 2 * page
	r.free = false
	r.expectReads("something that every token reads is missing", r.readPredicted(), nil)
	r.free = true
	least := r.least
	r.least = r.room
	r.expectReads("no room", r.readPredicted(), nil)
	r.least = least
	r.expectReads("time for one", r.readPredicted(), r.slicesOf(3, 0))
	r.clock = r.clock.Add(1)
	r.expectReads("too late for the other one", r.readPredicted(), nil)
	// A prediction that turns out to be wrong counts as used by nobody, and what was not read of it is forgotten.
	r.choose(3, 2)
	if wrong := &r.layers[3].experts[0]; !wrong.resident || wrong.predicted != 0 || r.ahead.used != 0 {
		t.Errorf("a wrong prediction: %+v, %d bytes used; want it resident, no longer predicted, and unused", wrong, r.ahead.used)
	}
	r.expectReads("the next layer's", r.readPredicted(), r.slicesOf(0, 0))
}

// The time until the disk is idle is told while something waits for that: by the disk's rate, once it is known.
func TestUntilIdle(t *testing.T) {
	g := &scripted{scores: map[int][]float32{3: {5, 5, -1, -1}}}
	r := newAheadRig(t, g, page)
	r.levers.underWay = r.slicesOf(2, 1)
	r.choose(2, 1)
	r.clock = r.clock.Add(page)
	if until, waits := r.UntilIdle(); until != page || !waits {
		t.Errorf("after a half of what two pages take: %v, %v; want %v, true", until, waits, time.Duration(page))
	}
	r.ahead.rate = 0
	if until, waits := r.UntilIdle(); until > 0 || !waits {
		t.Errorf("with an unknown rate: %v, %v; want it to be looked at now", until, waits)
	}
	r.levers.underWay = nil
	r.readPredicted()
	if _, waits := r.UntilIdle(); waits {
		t.Error("it is waited for the disk, which is idle")
	}
	r.choose(3, 0)
	if _, waits := r.UntilIdle(); waits {
		t.Error("it is waited for the disk, though nothing is predicted")
	}
}

// An expert that is likelier to be chosen, or that is being used, does not give way to a prediction.
func TestReadPredictedRoom(t *testing.T) {
	g := &scripted{scores: map[int][]float32{3: {1, -1, -1, -1}}} // 0.73
	r := newAheadRig(t, g, page)
	likely := r.layers[1].experts
	r.resident = 0
	for i := range 3 {
		likely[i].resident = true
		r.resident += likely[i].bytes
	}
	likely[0].score, likely[1].score, likely[2].predicted = scoreMemory*0.8, scoreMemory*0.2, 0.9
	r.layers[2].experts[0].resident = false
	r.choose(2, 0)
	r.room = r.resident
	r.expectReads("one is less likely", r.readPredicted(), r.slicesOf(3, 0))
	if !slices.Equal(r.levers.evicted, likely[1].owned) || r.resident != r.room {
		t.Errorf("evicted %v, want %v; %d bytes resident, want %d",
			r.levers.evicted, likely[1].owned, r.resident, r.room)
	}
	r.levers.evicted = nil
	g.scores = map[int][]float32{3: {-1, 1, -1, -1}}
	r.choose(2, 0)
	// The former prediction gives way, because it is not likely any more.
	r.expectReads("only the former prediction is less likely", r.readPredicted(), r.slicesOf(3, 1))
	if want := r.layers[3].experts[0].owned; !slices.Equal(r.levers.evicted, want) {
		t.Errorf("evicted %v, want %v", r.levers.evicted, want)
	}
	r.levers.evicted = nil
	g.scores = map[int][]float32{3: {-1, 2, 1, -1}}
	r.choose(2, 0)
	r.expectReads("none is less likely", r.readPredicted(), nil)
	if len(r.levers.evicted) != 0 {
		t.Errorf("evicted %v, want nothing", r.levers.evicted)
	}
	// When there is less room, what is predicted goes last.
	r.room -= 2 * 2 * page
	r.MakeRoom()
	if !r.layers[3].experts[1].resident || likely[0].resident || likely[2].resident {
		t.Errorf("with less room: evicted %v, want %v and %v", r.levers.evicted, likely[0].owned, likely[2].owned)
	}
}

// A predictor that wants routers' inputs gets those of the decode that is followed. With the input of attention its
// layer is predicted anew.
func TestPredictorInputs(t *testing.T) {
	g := &scriptedInputs{}
	r := newAheadRig(t, g, page)
	g.calls = nil
	send := func(layer int32, point event.Point, change func(*event.RouterInput)) {
		e := event.RouterInput{Decode: 5, Layer: layer + 10, Point: point, Rows: 1, Values: []float32{1, 2}}
		if change != nil {
			change(&e)
		}
		r.NoteInput(e)
	}
	send(3, event.PointAttention, nil)
	send(3, event.PointRouter, nil)
	r.choose(3, 1)
	send(2, event.PointAttention, nil) // not the next one
	send(7, event.PointRouter, nil)    // no layer of the mixture
	send(0, event.PointRouter, func(e *event.RouterInput) { e.Rows = 2 })
	want := []string{
		"attention 3 [1 2]", "scores 3", "router 3 [1 2]", "3 chose [1]", "scores 0", "learn 3", "attention 2 [1 2]",
	}
	if !slices.Equal(g.calls, want) {
		t.Errorf("the predictor's calls are %q, want %q", g.calls, want)
	}
	g.calls = nil
	send(0, event.PointRouter, func(e *event.RouterInput) { e.Decode = 6 })
	if want := []string{"begin -1", "router 0 [1 2]"}; !slices.Equal(g.calls, want) {
		t.Errorf("with the next token the predictor's calls are %q, want %q", g.calls, want)
	}
	if !r.WantsInputs() {
		t.Error("WantsInputs = false for a predictor that goes by inputs, want true")
	}
	if ids := newAheadRig(t, &scripted{}, page); ids.WantsInputs() {
		t.Error("WantsInputs = true for a predictor that goes by ids, want false")
	}
}

// There may be no predictor, and there is none for too many experts. It is not called for the choices of a prompt,
// which are those of many tokens, or for those of the warm-up.
func TestNoPredictor(t *testing.T) {
	r := newAheadRig(t, nil, page)
	if s := r.speculation(); s != nil {
		t.Errorf("speculation without a predictor = %+v, want none", s)
	}
	g := &scripted{}
	r = newAheadRig(t, g, page)
	g.calls = nil
	if _, err := r.Select(event.Selected{Decode: 5, Layer: 10, IDs: []int32{1, 2}, IDRows: 2}); err != nil {
		t.Fatal(err)
	}
	r.choose(1, 0, 1, 2, 3) // as the warm-up does
	if len(g.calls) != 0 || len(r.ahead.queue) != 0 {
		t.Errorf("the predictor's calls are %q, and %d predictions are to be read, want none",
			g.calls, len(r.ahead.queue))
	}
	big := newAheadRig(t, &scripted{}, page)
	big.ahead.predictor = nil
	big.layers[1].experts = make([]expert, mostExperts+1)
	big.choose(0, 1)
	if big.ahead.predictor != nil || big.speculation() != nil {
		t.Errorf("%d experts are predicted, want none", mostExperts+1)
	}
}
