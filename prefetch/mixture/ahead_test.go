package mixture

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

const mib = 1 << 20

// told is a predictor that says what it is told to, and notes what it was told.
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

// aheadRig is a mixture of four layers with four experts of two slices, of which what a predictor says is read.
type aheadRig struct {
	*Mixture
	t      *testing.T
	levers *noting
	clock  time.Time
	free   bool // nothing else is to be read
}

func newAheadRig(t *testing.T, predictor Predictor, slice int64) *aheadRig {
	t.Helper()
	r := &aheadRig{t: t, levers: &noting{there: map[pages.Range]int64{}}, clock: time.Unix(1000, 0), free: true}
	cycle := &pattern.Cycle{}
	for layer := range int64(4) {
		cycle.Reads = append(cycle.Reads, gathers(0, fmt.Sprintf("blk.%d.a", layer+10), layer*8*slice, slice, 4, 1), gathers(0, fmt.Sprintf("blk.%d.b", layer+10), layer*8*slice+4*slice, slice, 4, 1))
	}
	r.Mixture = New(cycle, nil, Options{
		Levers: r.levers, Keep: true, Now: func() time.Time { return r.clock }, Refuse: func(string, ...any) {},
		Predict: func(has Routers) Predictor {
			if p, is := predictor.(*told); is {
				p.has = has
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

// choose has a layer choose. Nothing of that is under way then.
func (r *aheadRig) choose(layer int32, ids ...int32) {
	r.t.Helper()
	if _, err := r.Select(event.Selected{Decode: 5, Layer: layer + 10, IDs: ids, IDRows: 1}); err != nil {
		r.t.Fatal(err)
	}
}

// reads looks what is read for predictions now.
func (r *aheadRig) reads() []pages.Range {
	r.t.Helper()
	n := len(r.levers.read)
	if err := r.ReadPredicted(r.free); err != nil {
		r.t.Fatal(err)
	}
	return r.levers.read[n:]
}

func (r *aheadRig) parts(layer int, ids ...int) (all []pages.Range) {
	for _, id := range ids {
		all = append(all, r.layers[layer].experts[id].slices...)
	}
	return all
}

func (r *aheadRig) want(what string, got, want []pages.Range) {
	r.t.Helper()
	if !slices.Equal(got, want) {
		r.t.Errorf("%s: read %v, want %v", what, got, want)
	}
}

// What is likely to be chosen next is read, the likeliest first, and what is not is not. What was right is there.
func TestReadPredicted(t *testing.T) {
	g := &told{scores: map[int][]float32{0: {1, 5, -1, 0.5}, 1: {-1, -1, 2, -1}, 2: {9, 9, 9, 9}}}
	r := newAheadRig(t, g, page)
	if want := []int32{10, 11, 12, 13}; !slices.Equal(g.has.Blocks, want) || g.has.Experts != 4 || g.has.Chosen != 1 {
		t.Errorf("a predictor for %+v", g.has)
	}
	r.choose(3, 2)
	r.want("after layer 3", r.reads(), r.parts(0, 1, 0, 3))
	r.want("again", r.reads(), nil)
	if r.ahead.read != 6*page || r.total.read != 2*2*page || r.total.missed != 2 {
		t.Errorf("%d bytes read early, %d for what was chosen: %+v", r.ahead.read, r.total.read, r.Summary(nil))
	}
	for _, p := range r.parts(0, 1) {
		r.levers.there[p] = p.Length
	}
	g.said = nil
	n := len(r.levers.read)
	r.choose(0, 1)
	if r.total.missed != 2 || len(r.levers.read) != n || r.ahead.used != 2*page || r.resident != (2+3)*2*page {
		t.Errorf("a right prediction: %+v, %+v, %d bytes there", r.Summary(nil), r.speculation(), r.resident)
	}
	if want := []string{"0 chose [1]", "scores 1"}; !slices.Equal(g.said, want) {
		t.Errorf("the predictor was told %q, want %q", g.said, want)
	}
	r.want("after layer 0", r.reads(), r.parts(1, 2))
	if s := r.speculation(); s.State != "on" || s.Read != 8*page || s.Used != 2*page {
		t.Errorf("%+v", s)
	}
}

// While something that was chosen is under way nothing is read for predictions; nor is what would not arrive before the next layer chooses, or while something of the trunk is missing.
func TestReadPredictedIdle(t *testing.T) {
	g := &told{scores: map[int][]float32{3: {5, 5, -1, -1}, 0: {5, -1, -1, -1}}}
	r := newAheadRig(t, g, page)
	r.levers.underWay = r.parts(2, 1)[1:]
	r.choose(2, 1)
	r.want("under way", r.reads(), nil)
	r.clock = r.clock.Add(time.Millisecond)
	r.want("still under way", r.reads(), nil)
	r.levers.underWay = nil
	r.ahead.idleFor[2] = readPiece - 1
	r.want("no time", r.reads(), nil)
	r.ahead.idleFor[2] = readPiece
	r.free = false
	r.want("a part of the trunk is missing", r.reads(), nil)
	r.free = true
	least := r.least
	r.least = r.room
	r.want("no room", r.reads(), nil)
	r.least = least
	r.want("time for one", r.reads(), r.parts(3, 0)[:1])
	r.levers.underWay = r.parts(3, 0)[:1]
	r.want("which is under way", r.reads(), nil)
	r.levers.underWay = nil
	r.clock = r.clock.Add(1)
	r.want("too late", r.reads(), nil)
	// A prediction that was begun and turns out to be wrong is paged out; what was not begun is forgotten.
	begun := &r.layers[3].experts[0]
	if !begun.resident || begun.pending != page {
		t.Fatalf("%+v", begun)
	}
	there := r.resident
	r.choose(3, 2)
	if begun.resident || begun.pending != 0 || !slices.Equal(r.levers.evicted, begun.owned) || r.resident != there {
		t.Errorf("a wrong prediction: %+v, evicted %v, %d bytes there, before %d", begun, r.levers.evicted, r.resident, there)
	}
	r.want("the next layer's", r.reads(), r.parts(0, 0))
}

// A prediction that is right and not yet read is read to its end as what is missing, and takes room once.
func TestReadPredictedLate(t *testing.T) {
	g := &told{scores: map[int][]float32{3: {-1, 5, -1, -1}}}
	r := newAheadRig(t, g, mib)
	r.choose(2, 0)
	one := pages.Range{File: 0, Offset: r.layers[3].experts[1].slices[0].Offset, Length: readPiece}
	two := one
	two.Offset += readPiece
	r.want("a tick", r.reads(), []pages.Range{one, two})
	there, n := r.resident, len(r.levers.read)
	r.choose(3, 1)
	r.want("the rest", r.levers.read[n:], r.parts(3, 1))
	if e := &r.layers[3].experts[1]; !e.resident || e.pending != 0 || r.resident != there || len(r.levers.evicted) != 0 || r.total.missed != 2 || r.ahead.used != mib {
		t.Errorf("%+v, %d bytes there, before %d; evicted %v; %+v", e, r.resident, there, r.levers.evicted, r.speculation())
	}
}

// Who is likelier to be chosen, or is being used, does not give way to a prediction.
func TestReadPredictedRoom(t *testing.T) {
	g := &told{scores: map[int][]float32{3: {1, -1, -1, -1}}} // 0.73
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
	r.want("one is less likely", r.reads(), r.parts(3, 0))
	if !slices.Equal(r.levers.evicted, likely[1].owned) || r.resident != r.room {
		t.Errorf("evicted %v, want %v; %d bytes there", r.levers.evicted, likely[1].owned, r.resident)
	}
	r.levers.evicted = nil
	g.scores = map[int][]float32{3: {-1, 1, -1, -1}}
	r.choose(2, 0)
	r.want("none is less likely", r.reads(), r.parts(3, 1)) // but the prediction before, of which nothing is said any more
	if !slices.Equal(r.levers.evicted, r.layers[3].experts[0].owned) {
		t.Errorf("evicted %v", r.levers.evicted)
	}
	r.levers.evicted = nil
	g.scores = map[int][]float32{3: {-1, 2, 1, -1}}
	r.choose(2, 0)
	r.want("none is less likely", r.reads(), nil)
	if len(r.levers.evicted) != 0 {
		t.Errorf("evicted %v", r.levers.evicted)
	}
	// When the room falls, what is predicted goes last.
	r.room -= 2 * 2 * page
	r.MakeRoom()
	if !r.layers[3].experts[1].resident || likely[0].resident || likely[2].resident {
		t.Errorf("evicted %v", r.levers.evicted)
	}
}

// Inputs go to a predictor that wants them, of the decode that is followed; what attention reads has its layer predicted anew.
func TestPredictorInputs(t *testing.T) {
	g := &toldInputs{}
	r := newAheadRig(t, g, page)
	g.said = nil
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
	send(7, event.PointRouter, nil)    // none of the mixture's
	send(0, event.PointRouter, func(e *event.RouterInput) { e.Rows = 2 })
	if want := []string{"attention 3 [1 2]", "scores 3", "router 3 [1 2]", "3 chose [1]", "scores 0", "learn 3", "attention 2 [1 2]"}; !slices.Equal(g.said, want) {
		t.Errorf("the predictor was told %q, want %q", g.said, want)
	}
	g.said = nil
	send(0, event.PointRouter, func(e *event.RouterInput) { e.Decode = 6 })
	if want := []string{"begin -1", "router 0 [1 2]"}; !slices.Equal(g.said, want) {
		t.Errorf("of the next token it was told %q, want %q", g.said, want)
	}
	if !r.WantsInputs() {
		t.Error("inputs are not wanted, want them for a predictor that goes by them")
	}
	if ids := newAheadRig(t, &told{}, page); ids.WantsInputs() {
		t.Error("inputs are wanted of a predictor that goes by ids")
	}
}

// A predictor is not asked for more than it can be, nor for what there is nobody; a prompt, which chooses for many tokens, is not told.
func TestNoPredictor(t *testing.T) {
	r := newAheadRig(t, nil, page)
	if s := r.speculation(); s != nil {
		t.Errorf("speculation without a predictor = %+v, want none", s)
	}
	g := &told{}
	r = newAheadRig(t, g, page)
	g.said = nil
	if _, err := r.Select(event.Selected{Decode: 5, Layer: 10, IDs: []int32{1, 2}, IDRows: 2}); err != nil {
		t.Fatal(err)
	}
	r.choose(1, 0, 1, 2, 3) // as the warm-up does
	if len(g.said) != 0 || len(r.ahead.queue) != 0 {
		t.Errorf("the predictor was told %q", g.said)
	}
	big := newAheadRig(t, &told{}, page)
	big.ahead.predictor = nil
	big.layers[1].experts = make([]expert, mostExperts+1)
	big.choose(0, 1)
	if big.ahead.predictor != nil || big.speculation() != nil {
		t.Errorf("%d experts are predicted, want none", mostExperts+1)
	}
}
