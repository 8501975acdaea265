package prefetch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// told is a guesser that says what it is told to, and notes what it was told.
type told struct {
	scores map[int][]float32 // by layer; none is likely where it is missing
	said   []string
	has    Routers
}

func (g *told) note(what string, args ...any) { g.said = append(g.said, fmt.Sprintf(what, args...)) }

func (g *told) Begin(id int32)                    { g.note("begin %d", id) }
func (g *told) Observe(layer int, chosen []int32) { g.note("%d chose %v", layer, chosen) }
func (g *told) Scores(layer int, scores []float32) {
	g.note("scores %d", layer)
	for e := range scores {
		scores[e] = -3
	}
	copy(scores, g.scores[layer])
}

// toldInputs also goes by inputs.
type toldInputs struct{ told }

func (g *toldInputs) Attention(layer int, input []float32) { g.note("attention %d %v", layer, input) }
func (g *toldInputs) Router(layer int, input []float32)    { g.note("router %d %v", layer, input) }
func (g *toldInputs) Learn(layer int)                      { g.note("learn %d", layer) }

// guessRig is a controller of a mixture of four layers with four experts of two slices, which reads for the guesses of guesser.
type guessRig struct {
	*Controller
	x      *experts
	t      *testing.T
	levers *noting
	clock  time.Time
}

func newGuessRig(t *testing.T, guesser Guesser, slice int64) *guessRig {
	t.Helper()
	r := &guessRig{t: t, levers: &noting{there: map[pages.Range]int64{}}, clock: time.Unix(1000, 0)}
	cycle := &pattern.Cycle{}
	for layer := range int64(4) {
		cycle.Reads = append(cycle.Reads, gathers(0, fmt.Sprintf("blk.%d.a", layer+10), layer*8*slice, slice, 4, 1), gathers(0, fmt.Sprintf("blk.%d.b", layer+10), layer*8*slice+4*slice, slice, 4, 1))
	}
	r.Controller = New(r.levers, Options{Now: func() time.Time { return r.clock }, Speculate: SpeculateOn, Guess: func(has Routers) Guesser {
		if g, is := guesser.(*told); is {
			g.has = has
		}
		return guesser
	}})
	r.help = newHelping(&Schedule{})
	r.help.experts = newExperts(cycle, nil, whole)
	r.help.decode, r.help.tid, r.help.begun = 5, 6, 1
	r.x = r.help.experts
	r.x.room = r.x.all
	r.choose(2, 0)
	r.x.rate = 1 // a byte per ns
	for i := range r.x.gaps {
		r.x.gaps[i] = float64(time.Second)
	}
	return r
}

// choose has a layer choose. Nothing of that is under way then.
func (r *guessRig) choose(layer int32, ids ...int32) {
	r.t.Helper()
	if err := r.selected(event.Selected{TID: 6, Decode: 5, Layer: layer + 10, IDs: ids, IDRows: 1}); err != nil {
		r.t.Fatal(err)
	}
}

// reads looks what is read for guesses now.
func (r *guessRig) reads() []pages.Range {
	r.t.Helper()
	n := len(r.levers.read)
	if err := r.speculate(); err != nil {
		r.t.Fatal(err)
	}
	return r.levers.read[n:]
}

func (r *guessRig) parts(layer int, ids ...int) (all []pages.Range) {
	for _, id := range ids {
		all = append(all, r.x.layers[layer].experts[id].reads...)
	}
	return all
}

func (r *guessRig) want(what string, got, want []pages.Range) {
	r.t.Helper()
	if !slices.Equal(got, want) {
		r.t.Errorf("%s: read %v, want %v", what, got, want)
	}
}

// What is likely to be chosen next is read, the likeliest first, and what is not is not; then the layer after that. What was right is there.
func TestSpeculate(t *testing.T) {
	g := &told{scores: map[int][]float32{0: {1, 5, -1, 0.5}, 1: {-1, -1, 2, -1}, 2: {9, 9, 9, 9}}}
	r := newGuessRig(t, g, page)
	if want := []int32{10, 11, 12, 13}; !slices.Equal(g.has.Blocks, want) || g.has.Experts != 4 || g.has.Chosen != 1 {
		t.Errorf("a guesser for %+v", g.has)
	}
	r.choose(3, 2)
	r.want("after layer 3", r.reads(), append(r.parts(0, 1, 0, 3), r.parts(1, 2)...))
	r.want("again", r.reads(), nil)
	if r.x.speculation.early != 8*page || r.x.read != 2*2*page || r.x.missed != 2 || r.help.streamed != r.x.read {
		t.Errorf("%d bytes read early, %d for what was chosen: %+v", r.x.speculation.early, r.x.read, r.x.summary(nil))
	}
	for _, p := range r.parts(0, 1) {
		r.levers.there[p] = p.Length
	}
	g.said = nil
	n := len(r.levers.read)
	r.choose(0, 1)
	if r.x.missed != 2 || len(r.levers.read) != n || r.x.speculation.used != 2*page || r.x.there != (2+4)*2*page {
		t.Errorf("a right guess: %+v, %+v, %d bytes there", r.x.summary(nil), r.x.speculated(), r.x.there)
	}
	if want := []string{"0 chose [1]", "scores 1"}; !slices.Equal(g.said, want) {
		t.Errorf("the guesser was told %q, want %q", g.said, want)
	}
	// What was guessed two layers ahead is guessed anew.
	g.scores[1] = []float32{3, -1, -1, -1}
	r.choose(0, 1)
	r.want("guessed anew", r.reads(), append(r.parts(1, 0), r.parts(2, 1, 2, 3)...)) // 0 is there
	if s := r.x.speculated(); s.State != "on" || s.Read != 16*page || s.Used != 2*page {
		t.Errorf("%+v", s)
	}
}

// While something that was chosen is under way nothing is read for guesses; nor is what would not arrive before the next layer chooses, or while something of the trunk is missing.
func TestSpeculateIdle(t *testing.T) {
	g := &told{scores: map[int][]float32{3: {5, 5, -1, -1}, 0: {5, -1, -1, -1}}}
	r := newGuessRig(t, g, page)
	r.levers.underWay = r.parts(2, 1)[1:]
	r.choose(2, 1)
	r.want("under way", r.reads(), nil)
	r.clock = r.clock.Add(time.Millisecond)
	r.want("still under way", r.reads(), nil)
	r.levers.underWay = nil
	r.x.gaps[2] = guessPiece - 1
	r.want("no time", r.reads(), nil)
	r.x.gaps[2] = guessPiece
	r.help.schedule.Bytes = 1
	r.want("a part of the trunk is missing", r.reads(), nil)
	r.help.schedule.Bytes = 0
	r.help.begun = 0
	r.want("a prompt", r.reads(), nil)
	r.help.begun = 1
	least := r.x.least
	r.x.least = r.x.room
	r.want("no room", r.reads(), nil)
	r.x.least = least
	r.want("time for one", r.reads(), r.parts(3, 0)[:1])
	r.levers.underWay = r.parts(3, 0)[:1]
	r.want("which is under way", r.reads(), nil)
	r.levers.underWay = nil
	r.clock = r.clock.Add(1)
	r.want("too late", r.reads(), nil)
	// A guess that was begun and turns out to be wrong is paged out; what was not begun is forgotten.
	begun := &r.x.layers[3].experts[0]
	if !begun.there || begun.rest != page {
		t.Fatalf("%+v", begun)
	}
	there := r.x.there
	r.choose(3, 2)
	if begun.there || begun.rest != 0 || !slices.Equal(r.levers.evicted, begun.owns) || r.x.there != there {
		t.Errorf("a wrong guess: %+v, evicted %v, %d bytes there, before %d", begun, r.levers.evicted, r.x.there, there)
	}
	r.want("the next layer's", r.reads(), r.parts(0, 0))
}

// A guess that is right and not yet read is read to its end as what is missing, and takes room once.
func TestSpeculateLate(t *testing.T) {
	g := &told{scores: map[int][]float32{3: {-1, 5, -1, -1}}}
	r := newGuessRig(t, g, mibs)
	r.choose(2, 0)
	one := pages.Range{File: 0, Offset: r.x.layers[3].experts[1].reads[0].Offset, Length: guessPiece}
	two := one
	two.Offset += guessPiece
	r.want("a tick", r.reads(), []pages.Range{one, two})
	there, n := r.x.there, len(r.levers.read)
	r.choose(3, 1)
	r.want("the rest", r.levers.read[n:], r.parts(3, 1))
	if e := &r.x.layers[3].experts[1]; !e.there || e.rest != 0 || r.x.there != there || len(r.levers.evicted) != 0 || r.x.missed != 2 || r.x.speculation.used != mibs {
		t.Errorf("%+v, %d bytes there, before %d; evicted %v; %+v", e, r.x.there, there, r.levers.evicted, r.x.speculated())
	}
}

// Who is likelier to be chosen, or is being used, does not give way to a guess.
func TestSpeculateRoom(t *testing.T) {
	g := &told{scores: map[int][]float32{3: {1, -1, -1, -1}}} // 0.73
	r := newGuessRig(t, g, page)
	likely := r.x.layers[1].experts
	r.x.there = 0
	for i := range 3 {
		likely[i].there = true
		r.x.there += likely[i].bytes
	}
	likely[0].score, likely[1].score, likely[2].guessed = scoreMemory*0.8, scoreMemory*0.2, 0.9
	r.x.layers[2].experts[0].there = false
	r.choose(2, 0)
	r.x.room = r.x.there
	r.want("one is less likely", r.reads(), r.parts(3, 0))
	if !slices.Equal(r.levers.evicted, likely[1].owns) || r.x.there != r.x.room {
		t.Errorf("evicted %v, want %v; %d bytes there", r.levers.evicted, likely[1].owns, r.x.there)
	}
	r.levers.evicted = nil
	g.scores = map[int][]float32{3: {-1, 1, -1, -1}}
	r.choose(2, 0)
	r.want("none is less likely", r.reads(), r.parts(3, 1)) // but the guess before, of which nothing is said any more
	if !slices.Equal(r.levers.evicted, r.x.layers[3].experts[0].owns) {
		t.Errorf("evicted %v", r.levers.evicted)
	}
	r.levers.evicted = nil
	g.scores = map[int][]float32{3: {-1, 2, 1, -1}}
	r.choose(2, 0)
	r.want("none is less likely", r.reads(), nil)
	if len(r.levers.evicted) != 0 {
		t.Errorf("evicted %v", r.levers.evicted)
	}
	// When the room falls, what is guessed goes last.
	r.x.room -= 2 * 2 * page
	r.makeRoom()
	if !r.x.layers[3].experts[1].there || likely[0].there || likely[2].there {
		t.Errorf("evicted %v", r.levers.evicted)
	}
}

// Inputs go to a guesser that wants them, of the decode that is followed; what attention reads has its layer guessed anew.
func TestGuesserInputs(t *testing.T) {
	g := &toldInputs{}
	r := newGuessRig(t, g, page)
	g.said = nil
	send := func(layer int32, point event.Point, change func(*event.RouterInput)) {
		e := event.RouterInput{TID: 6, Decode: 5, Layer: layer + 10, Point: point, Rows: 1, Values: []float32{1, 2}}
		if change != nil {
			change(&e)
		}
		if err := r.Handle(e); err != nil {
			t.Fatal(err)
		}
	}
	send(3, event.PointAttention, nil)
	send(3, event.PointRouter, nil)
	r.choose(3, 1)
	send(2, event.PointAttention, nil) // not the next one
	send(7, event.PointRouter, nil)    // none of the mixture's
	send(0, event.PointRouter, func(e *event.RouterInput) { e.Decode++ })
	send(0, event.PointRouter, func(e *event.RouterInput) { e.TID++ })
	send(0, event.PointRouter, func(e *event.RouterInput) { e.Rows = 2 })
	r.watch.aside = true
	send(0, event.PointRouter, nil)
	r.watch.aside = false
	if want := []string{"attention 3 [1 2]", "scores 3", "router 3 [1 2]", "3 chose [1]", "scores 0", "learn 3", "attention 2 [1 2]"}; !slices.Equal(g.said, want) {
		t.Errorf("the guesser was told %q, want %q", g.said, want)
	}
	g.said = nil
	r.help.decode = 6
	send(0, event.PointRouter, func(e *event.RouterInput) { e.Decode = 6 })
	if want := []string{"begin -1", "router 0 [1 2]"}; !slices.Equal(g.said, want) {
		t.Errorf("of the next token it was told %q, want %q", g.said, want)
	}
	wants := r.WantsInputs()
	r.watch.aside = true
	aside := r.WantsInputs()
	r.watch.aside = false
	r.x.trial = newTrial(SpeculateAuto)
	if resting := r.WantsInputs(); !wants || aside || resting {
		t.Errorf("inputs are wanted: %v, during a comparison %v, while a trial rests %v", wants, aside, resting)
	}
	if ids := newGuessRig(t, &told{}, page); ids.WantsInputs() {
		t.Error("inputs are wanted of a guesser that goes by ids")
	}
}

// A guesser is not asked for more than it can be, nor for what there is nobody; a prompt, which chooses for many tokens, is not told.
func TestNoGuesser(t *testing.T) {
	r := newGuessRig(t, nil, page)
	if s := r.x.speculated(); s != nil || r.watches() {
		t.Errorf("without a guesser: %+v", s)
	}
	g := &told{}
	r = newGuessRig(t, g, page)
	g.said = nil
	if err := r.selected(event.Selected{TID: 6, Decode: 5, Layer: 10, IDs: []int32{1, 2}, IDRows: 2}); err != nil {
		t.Fatal(err)
	}
	r.choose(1, 0, 1, 2, 3) // as the warm-up does
	if len(g.said) != 0 || len(r.x.queue) != 0 {
		t.Errorf("the guesser was told %q", g.said)
	}
	many := &told{}
	big := newGuessRig(t, many, page)
	big.x.guesser, big.x.trial = nil, newTrial(SpeculateOn)
	big.x.layers[1].experts = make([]expert, mostGuessed+1)
	big.choose(0, 1)
	if big.x.guesser != nil || big.x.speculated() != nil {
		t.Error("so many experts are guessed at")
	}
}

func (r *guessRig) watches() bool { return r.x.trial.watches() }
