package moe

// This file tests all predictors on traces whose best recall is known, and on public traces.

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// synthetic makes a trace of generated tokens. choose says what a token chooses, and may use what it
// chose in the layers before.
func synthetic(
	t testing.TB, s Shape, tokens int, choose func(token, layer int, before [][]int32) []int32,
	ids func(token int) int32,
) *Trace {
	t.Helper()
	empty := &Trace{Experts: s.Experts}
	for l := range s.Layers {
		empty.Layers = append(empty.Layers, Layer{int32(l), 1 << 20})
	}
	b, err := newBuilder(empty)
	if err != nil {
		t.Fatal(err)
	}
	for token := range tokens {
		var all [][]int32
		id := int32(UnknownID)
		if ids != nil {
			id = ids(token)
		}
		for layer := range s.Layers {
			all = append(all, choose(token, layer, all))
			for slot, e := range all[layer] {
				if err := b.addRow(row{
					step: int32(token), layer: int32(layer), slot: int32(slot), expert: e, phase: Decode, id: id,
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	tr, err := b.finish()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// recall is the recall of a predictor at K, with a lead.
func recall(t testing.TB, tr *Trace, p Predictor, first, lead int) float64 {
	t.Helper()
	ev, err := Evaluate(t.Context(), tr, p, first, []int{lead})
	if err != nil {
		t.Fatal(err)
	}
	return ev.Leads[0].At(1).Recall
}

func between(t testing.TB, what string, x, low, high float64) {
	t.Helper()
	if !(x >= low && x <= high) {
		t.Errorf("%s is %.3f, want %.3f to %.3f", what, x, low, high)
	}
}

// everything has each predictor by name.
func everything(s Shape, leads []int) map[string]Predictor {
	return map[string]Predictor{
		"frequency": NewFrequency(s, 0.95), "previous": NewPrevious(s), "same token": NewSameToken(s, 1<<12),
		"markov": NewMarkov(s, 1), "markov 2": NewMarkov(s, 2),
		"markov, a token": NewMarkov(s, s.Layers), "ids": NewIDMixture(s, leads, 1<<30),
	}
}

// distinct draws K different experts.
func distinct(r *rand.Rand, s Shape) []int32 {
	var all []int32
	for _, e := range r.Perm(s.Experts)[:s.K] {
		all = append(all, int32(e))
	}
	return all
}

// Where routing is uniformly random, nobody can do better than K of Experts. A predictor that saw the
// future would.
func TestUniform(t *testing.T) {
	s := Shape{Layers: 6, Experts: 16, K: 2}
	r := rand.New(rand.NewPCG(1, 2))
	tr := synthetic(t, s, 700, func(int, int, [][]int32) []int32 { return distinct(r, s) },
		func(int) int32 { return int32(r.IntN(20)) })
	for name, p := range everything(s, []int{1, 2}) {
		ev, err := Evaluate(t.Context(), tr, p, 200, []int{1, 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range ev.Leads {
			for _, score := range l.Scores {
				want := float64(score.N) / 16 // of 6000 choices: a standard deviation is 0.004 to 0.007
				between(t, name, score.Recall, want-0.025, want+0.025)
				between(t, name+"'s precision", score.Precision, 2./16-0.025, 2./16+0.025)
			}
		}
	}
}

// Experts follow each other in a fixed way, but for one time in ten.
func TestChain(t *testing.T) {
	s := Shape{Layers: 8, Experts: 16, K: 1}
	r := rand.New(rand.NewPCG(3, 4))
	var next [][]int
	for range s.Layers {
		next = append(next, r.Perm(s.Experts))
	}
	tr := synthetic(t, s, 2500, func(_, layer int, before [][]int32) []int32 {
		if layer == 0 || r.IntN(10) == 0 {
			return distinct(r, s)
		}
		return []int32{int32(next[layer][before[layer-1][0]])}
	}, nil)
	// Layer 0 is 1/16. A step keeps to the chain with p = 0.9 + 0.1/16.
	const p, q = 0.9 + 0.1/16, (0.9*0.9 + (1-0.9*0.9)/16)
	const first = 1. / 16
	between(t, "1 ahead", recall(t, tr, NewMarkov(s, 1), 1000, 1), (first+7*p)/8-0.015, (first+7*p)/8+0.01)
	between(t, "2 ahead", recall(t, tr, NewMarkov(s, 2), 1000, 2), (first*2+6*q)/8-0.015, (first*2+6*q)/8+0.025)
	between(t, "previous", recall(t, tr, NewPrevious(s), 1000, 1), first-0.02, first+0.02)
	between(t, "mixture", recall(t, tr, NewIDMixture(s, []int{1}, 1<<30), 1000, 1),
		(first+7*p)/8-0.015, (first+7*p)/8+0.01)
	ev, err := Evaluate(t.Context(), tr, NewMarkov(s, 1), 0, []int{1})
	if err != nil {
		t.Fatal(err)
	}
	if c := ev.Leads[0].Curve; c[0] > c[7]-0.02 || len(c) != 8 {
		t.Errorf("recall by eighths %.2f, want 8 that grow by 0.02 at least", c)
	}
	between(t, "layer 0", ev.Leads[0].ByLayer[0], first-0.02, first+0.02)
	between(t, "layer 5", ev.Leads[0].ByLayer[5], p-0.1, p+0.02)
}

// A cycle: each token chooses what follows the choices of the token before.
func TestCycle(t *testing.T) {
	s := Shape{Layers: 3, Experts: 12, K: 2}
	tr := synthetic(t, s, 600, func(token, layer int, _ [][]int32) []int32 {
		return []int32{int32((token*2 + layer) % 12), int32((token*2 + layer + 1) % 12)}
	}, nil)
	for name, want := range map[string]float64{"markov": 1, "markov, a token": 1, "ids": 1} {
		between(t, name, recall(t, tr, everything(s, []int{1})[name], 300, 1), want, want)
	}
}

// Routes depend on the token alone, as those of hashed routers do.
func TestSameToken(t *testing.T) {
	s := Shape{Layers: 4, Experts: 32, K: 4}
	r := rand.New(rand.NewPCG(5, 6))
	routes := map[[2]int32][]int32{}
	var ids []int32
	for range 500 {
		ids = append(ids, int32(r.IntN(20)))
	}
	tr := synthetic(t, s, len(ids), func(token, layer int, _ [][]int32) []int32 {
		key := [2]int32{ids[token], int32(layer)}
		if routes[key] == nil {
			routes[key] = distinct(r, s)
		}
		return routes[key]
	}, func(token int) int32 { return ids[token] })
	between(t, "by id", recall(t, tr, NewSameToken(s, 1<<20), 250, 1), 1, 1)
	between(t, "mixture", recall(t, tr, NewIDMixture(s, []int{1}, 1<<30), 250, 1), 0.99, 1)
	between(t, "one place for all ids", recall(t, tr, NewSameToken(s, 1), 250, 1), 0, 0.25)
	// It has one slot only. What another token chose there must not be taken for the token's own choices.
	one := NewSameToken(s, 1)
	scores := make([]float32, s.Experts)
	one.Begin(1)
	one.Observe(0, []int32{3, 4, 5, 6})
	for _, tc := range []struct {
		id    int32
		known bool
	}{{1, true}, {2, false}} {
		one.Begin(tc.id)
		if one.Scores(0, scores); (scores[3] > scores[7]) != tc.known {
			t.Errorf("token %d: scores %.2f, want that 3 is above 7: %v", tc.id, scores, tc.known)
		}
	}
}

// rightIn is a predictor that knows one layer, and is as confident in wrong choices of all others.
type rightIn struct {
	layer int
	trace *Trace
	token int
}

func (p *rightIn) Begin(int32)          { p.token++ }
func (p *rightIn) Observe(int, []int32) {}
func (p *rightIn) Scores(layer int, scores []float32) {
	for e := range scores {
		scores[e] = -4
	}
	for _, e := range p.trace.Chosen(p.token, layer) {
		if layer != p.layer {
			e = (e + 1 + int32(p.token%13)) % int32(len(scores))
		}
		scores[e] = 4
	}
}

func TestMixtureTellsLayersApart(t *testing.T) {
	s := Shape{Layers: 2, Experts: 16, K: 2}
	r := rand.New(rand.NewPCG(11, 12))
	tr := synthetic(t, s, 1000, func(int, int, [][]int32) []int32 { return distinct(r, s) }, nil)
	m := NewMixture(s, []int{1}, &rightIn{0, tr, -1}, &rightIn{1, tr, -1})
	between(t, "mixture", recall(t, tr, m, 500, 1), 0.99, 1)
}

// A predictor that is right in one layer and wrong in another is weighed by layer. Scores are calibrated.
func TestMixtureWeighsByLayer(t *testing.T) {
	s := Shape{Layers: 2, Experts: 16, K: 2}
	r := rand.New(rand.NewPCG(7, 8))
	tr := synthetic(t, s, 3000, func(token, layer int, before [][]int32) []int32 {
		if layer == 0 {
			if r.IntN(4) > 0 {
				return []int32{3, 4}
			}
			return distinct(r, s)
		}
		return []int32{(before[0][0] + 5) % 16, (before[0][1] + 5) % 16}
	}, nil)
	hot, chain := NewFrequency(s, 0.98), NewMarkov(s, 1)
	m := NewMixture(s, []int{1}, hot, chain)
	want := (0.75 + 0.25*2/16 + 1) / 2
	between(t, "mixture", recall(t, tr, m, 1500, 1), want-0.02, want+0.02)
	scores := make([]float32, s.Experts)
	sum := 0.0
	m.Begin(UnknownID)
	m.Scores(0, scores)
	for _, z := range scores {
		sum += 1 / (1 + math.Exp(-float64(z)))
	}
	between(t, "the sum of the probabilities", sum, 1.5, 2.5)
	between(t, "the probability of a hot expert", 1/(1+math.Exp(-float64(scores[3]))), 0.7, 0.85)
}

// A mixture knows how far ahead it is asked: each lead has weights of its own. A lead that is not learned
// is answered, too.
func TestMixtureLeads(t *testing.T) {
	s := Shape{Layers: 6, Experts: 16, K: 2}
	m := NewIDMixture(s, []int{1, 4}, 1<<30)
	scores := make([]float32, s.Experts)
	m.Begin(3)
	for layer := range s.Layers {
		for l := range s.Layers {
			m.Scores(l, scores)
			for _, z := range scores {
				if math.IsNaN(float64(z)) || math.IsInf(float64(z), 0) {
					t.Fatalf("score %g, want a finite one", z)
				}
			}
		}
		m.Observe(layer, []int32{int32(layer), int32(layer) + 1})
	}
}

// No more tables are kept than there is room for. The nearest routers come first.
func TestBoundedMemory(t *testing.T) {
	large, small := Shape{Layers: 60, Experts: 896, K: 16}, Shape{Layers: 8, Experts: 8, K: 2}
	for _, tc := range []struct {
		shape     Shape
		bytes     int64
		distances []int
	}{
		{large, 0, nil},
		{large, MarkovBytes(large)*16/15 + 16, []int{1}},
		{small, 5 * MarkovBytes(small) / 2, []int{1, 2}},
		{small, 1 << 30, []int{1, 2, 4, 8, 3}},
		{Shape{Layers: 2, Experts: 8, K: 2}, 1 << 30, []int{1, 2}},
		{Shape{Layers: 1, Experts: 8, K: 2}, 1 << 30, []int{1}},
	} {
		var distances []int
		for _, p := range NewIDMixture(tc.shape, []int{1}, tc.bytes).members {
			if m, ok := p.(*Markov); ok {
				distances = append(distances, m.distance)
				if have := int64(len(m.follows) + len(m.total)); have > MarkovBytes(tc.shape) {
					t.Errorf("%v: tables of %d bytes, want at most MarkovBytes, %d", tc.shape, have,
						MarkovBytes(tc.shape))
				}
			}
		}
		if !slices.Equal(distances, tc.distances) {
			t.Errorf("%v in %d bytes: distances %d, want %d", tc.shape, tc.bytes, distances, tc.distances)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	s := Shape{Layers: 6, Experts: 64, K: 4}
	r := rand.New(rand.NewPCG(9, 10))
	routes := make([][]int32, 512)
	for i := range routes {
		routes[i] = distinct(r, s)
	}
	scores := make([]float32, s.Experts)
	for name, p := range everything(s, []int{1, 2, 4}) {
		id := int32(0)
		if n := testing.AllocsPerRun(100, func() {
			id++
			p.Begin(id)
			for layer := range s.Layers {
				p.Observe(layer, routes[(int(id)*7+layer*13)%len(routes)])
				for _, h := range []int{1, 2, 4} {
					p.Scores((layer+h)%s.Layers, scores)
				}
			}
		}); n != 0 {
			t.Errorf("%s allocates %g times per token, want 0", name, n)
		}
	}
}

func TestTop(t *testing.T) {
	order := make([]int32, 5)
	for n, want := range [][]int32{{}, {3}, {3, 1}, {3, 1, 4}, {3, 1, 4, 0}, {3, 1, 4, 0, 2}} {
		got := Top([]float32{0, 2, -1, 3, 2}, order, n)
		if len(got) != n {
			t.Errorf("Top of %d = %v, want %d experts", n, got, n)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("Top of %d = %v, want %v", n, got, want)
			}
		}
	}
}

func TestEvaluateEnds(t *testing.T) {
	s := Shape{Layers: 2, Experts: 4, K: 1}
	tr := synthetic(t, s, 3, func(int, int, [][]int32) []int32 { return []int32{1} }, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Evaluate(ctx, tr, NewPrevious(s), 1, []int{1}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

// The bars for predictors that know ids alone, one layer ahead, on public traces of real models. They
// learn from the prompt, and are scored on all generated tokens, online.
func TestPublicRecall(t *testing.T) {
	for _, tc := range []struct {
		name     string
		at1, at2 float64
	}{{"qwen", 0.60, 0.79}, {"gptoss", 0.40, 0.54}} {
		t.Run(tc.name, func(t *testing.T) {
			tr := public(t, tc.name)
			s := tr.Shape()
			leads := []int{1}
			ev, err := Evaluate(t.Context(), tr, NewIDMixture(s, leads, 64<<20), tr.FirstDecode(), leads)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+.3v, curve %.3f", ev.Leads[0].Scores, ev.Leads[0].Curve)
			between(t, "recall at k", ev.Leads[0].At(1).Recall, tc.at1, 1)
			between(t, "recall at 2k", ev.Leads[0].At(2).Recall, tc.at2, 1)
			single := recall(t, tr, NewMarkov(s, 1), tr.FirstDecode(), 1)
			between(t, "recall of the mixture over that of one of its parts", ev.Leads[0].At(1).Recall-single, 0.01, 1)
		})
	}
}
