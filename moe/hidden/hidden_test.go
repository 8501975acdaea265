package hidden

// These tests run predictors on a planted mixture, whose hidden states and choices are known.

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tensorcast/moe"
)

// planted makes routers with random matrices and norms.
func planted(rng *rand.Rand, layers, dim, experts, k int) *Routers {
	r := &Routers{
		Dim: dim, Experts: experts, K: k, ID: "0123456789abcdef0123456789abcdef", gate: gateSoftmax, ignoresShift: true,
	}
	for i := range layers {
		var l router
		values := gaussian(rng, experts*dim)
		for j := range values {
			values[j] /= float32(math.Sqrt(float64(dim)))
		}
		l.matrix, _ = newMatrix(values, experts, dim)
		l.norm = make([]float32, dim)
		attn := make([]float32, dim)
		for j := range l.norm {
			l.norm[j], attn[j] = 0.5+rng.Float32(), 0.5+rng.Float32()
		}
		l.inverse, l.attnInverse = reciprocals(l.norm), reciprocals(attn)
		l.maxRMS, l.attnMaxRMS = rmsBound(l.norm, nil), rmsBound(attn, nil)
		r.layers = append(r.layers, l)
		r.Blocks = append(r.Blocks, int32(i))
	}
	return r
}

// flow makes the hidden states of tokens. Attention, here a fixed matrix, and the chosen experts add to a
// residual stream.
type flow struct {
	r       *Routers
	rng     *rand.Rand
	mix     [][]float32 // by layer: dim x dim
	experts [][]float32 // by layer: experts x dim
	noise   float64
	fresh   bool // each layer reads something new
	looks   bool // attention adds what it read for the token before
	last    [][]float32
	p       *Predictor // computes exact choices
}

func newFlow(t testing.TB, rng *rand.Rand, r *Routers, noise float64) *flow {
	t.Helper()
	f := &flow{r: r, rng: rng, noise: noise}
	for range r.Blocks {
		mix := gaussian(rng, r.Dim*r.Dim)
		for i := range mix {
			mix[i] *= 0.5 / float32(math.Sqrt(float64(r.Dim)))
		}
		f.mix = append(f.mix, mix)
		f.experts = append(f.experts, gaussian(rng, r.Experts*r.Dim))
	}
	f.p, f.last = newPredictor(t, r, Options{Leads: []int{}, IDs: -1}), make([][]float32, len(r.Blocks))
	return f
}

func newPredictor(t testing.TB, r *Routers, o Options) *Predictor {
	t.Helper()
	p, err := New(r, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// normed is the result of a norm on a vector.
func normed(x, inverse []float32) []float32 {
	s := 1 / rms(x)
	out := make([]float32, len(x))
	for i := range x {
		out[i] = x[i] * s / inverse[i]
	}
	return out
}

// token makes the inputs and choices of a token.
func (f *flow) token() (in []layerInputs, chosen [][]int32) {
	x := gaussian(f.rng, f.r.Dim)
	f.p.Begin(moe.UnknownID)
	for layer := range f.r.Blocks {
		l := &f.r.layers[layer]
		attention := normed(x, l.attnInverse)
		moved := make([]float32, len(x))
		for i := range x {
			sum := float32(0)
			for j, v := range x {
				sum += f.mix[layer][i*len(x)+j] * v
			}
			moved[i] = x[i] + sum + float32(f.noise*f.rng.NormFloat64())
		}
		x = moved
		if f.looks {
			for i := range f.last[layer] {
				moved[i] += 1.5 * f.last[layer][i]
			}
			f.last[layer] = attention
		}
		if f.fresh {
			x = gaussian(f.rng, len(x))
		}
		read := normed(x, l.inverse)
		in = append(in, layerInputs{router: read, attention: attention})
		f.p.Router(layer, read)
		best := f.p.Choice(layer, make([]int32, 0, f.r.K))
		chosen = append(chosen, best)
		for _, e := range best {
			for i := range x {
				x[i] += 0.6 * f.experts[layer][int(e)*len(x)+i]
			}
		}
	}
	return in, chosen
}

// run takes a predictor through tokens. It returns the recall at K and at 2 K of its scores for layers
// from 1 on, over the tokens from first on.
func (f *flow) run(p *Predictor, tokens, first int, attention, router bool) (once, twice float64) {
	scores, order := make([]float32, f.r.Experts), make([]int32, f.r.Experts)
	hits, hits2, all := 0, 0, 0
	for token := range tokens {
		in, chosen := f.token()
		p.Begin(moe.UnknownID)
		for layer := range chosen {
			if attention {
				p.Attention(layer, in[layer].attention)
			}
			if layer > 0 && token >= first {
				p.Scores(layer, scores)
				best := moe.Top(scores, order, 2*f.r.K)
				for _, e := range chosen[layer] {
					all++
					if slices.Contains(best[:f.r.K], e) {
						hits++
					}
					if slices.Contains(best, e) {
						hits2++
					}
				}
			}
			if router {
				p.Router(layer, in[layer].router)
			}
			p.Observe(layer, chosen[layer])
			p.Learn(layer)
		}
	}
	return float64(hits) / float64(all), float64(hits2) / float64(all)
}

// What is learned is better than the next router alone. Attention's input is better than the router's
// before it. Ids alone are hardly better than chance. Where inputs say nothing, no predictor finds
// anything.
func TestPlanted(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 4, 48, 16, 2)
	run := func(o Options, attention, router bool) (float64, float64) {
		return newFlow(t, rand.New(rand.NewPCG(3, 4)), r, 0.1).run(newPredictor(t, r, o), 900, 500, attention, router)
	}
	type pair struct{ once, twice float64 }
	got := map[string]pair{}
	for name, tc := range map[string]struct {
		o                 Options
		attention, router bool
	}{
		"ids":                {Options{}, false, false},
		"guess":              {Options{IDs: -1, raw: true}, false, true},
		"learned":            {Options{IDs: -1}, false, true},
		"all":                {Options{}, false, true},
		"guess, attention":   {Options{Leads: []int{}, Attention: true, IDs: -1, raw: true}, true, true},
		"learned, attention": {Options{Leads: []int{}, Attention: true, IDs: -1}, true, true},
		"all, attention":     {Options{Attention: true}, true, true},
	} {
		a, b := run(tc.o, tc.attention, tc.router)
		got[name] = pair{a, b}
		t.Logf("%-20s %.3f %.3f", name, a, b)
	}
	better := func(a, b string, by float64) {
		t.Helper()
		if got[a].once < got[b].once+by || got[a].twice < got[b].twice {
			t.Errorf("%s recalls %+v, %s %+v: want %.2f more", a, got[a], b, got[b], by)
		}
	}
	better("guess", "ids", 0.03)
	better("learned", "guess", 0.1)
	better("all", "learned", -0.02)
	better("guess, attention", "guess", 0.05)
	better("learned, attention", "learned", 0.05)
	better("all, attention", "learned, attention", -0.02)
	fresh := func(o Options, router bool) (float64, float64) {
		f := newFlow(t, rand.New(rand.NewPCG(5, 6)), r, 0)
		f.fresh = true
		return f.run(newPredictor(t, r, o), 900, 300, false, router)
	}
	once, twice := fresh(Options{}, true)
	ids, ids2 := fresh(Options{}, false) // some experts are chosen more often
	if math.Abs(once-ids) > 0.02 || math.Abs(twice-ids2) > 0.02 || ids > 0.2 {
		t.Errorf("where inputs say nothing the recall is %.3f, %.3f, want that of ids, %.3f, %.3f", once, twice, ids,
			ids2)
	}
}

// What attention adds from the token before is learned, too.
func TestBefore(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 3, 32, 16, 2)
	run := func(before float64) float64 {
		tu := usualTuning
		tu.previous = before
		f := newFlow(t, rand.New(rand.NewPCG(3, 4)), r, 0.1)
		f.looks = true
		once, _ := f.run(newPredictor(t, r, Options{Leads: []int{}, Attention: true, IDs: -1, tuning: &tu}), 900, 500,
			true, true)
		return once
	}
	with, without := run(usualTuning.previous), run(1e-9)
	t.Logf("with the token before %.3f, without %.3f", with, without)
	if with < without+0.05 {
		t.Errorf("recall with the token before %.3f, without it %.3f, want more with it", with, without)
	}
}

// Where there are more dimensions than features, most is still learned.
func TestSketch(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 3, 96, 16, 2)
	run := func(o Options) float64 {
		p := newPredictor(t, r, o)
		if o.Bytes > 0 && p.Bytes() > o.Bytes {
			t.Errorf("the predictor takes %d bytes, want at most %d", p.Bytes(), o.Bytes)
		}
		once, _ := newFlow(t, rand.New(rand.NewPCG(3, 4)), r, 0.1).run(p, 700, 400, false, true)
		return once
	}
	whole, half, raw := run(Options{IDs: -1}), run(Options{IDs: -1, Bytes: 2 * linkBytes(70, 16)}),
		run(Options{IDs: -1, raw: true})
	t.Logf("all dimensions %.3f, half as many features %.3f, none %.3f", whole, half, raw)
	if !(whole > half && half > raw+0.02) {
		t.Errorf("recall with all dimensions %.3f, half as many features %.3f, none %.3f, want it to fall little, "+
			"then much", whole, half, raw)
	}
}

// Scores are log-odds: of the experts with about the same score, that share is chosen.
func TestCalibrated(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 3, 32, 16, 2)
	f := newFlow(t, rand.New(rand.NewPCG(3, 4)), r, 0.3)
	p := newPredictor(t, r, Options{})
	scores := make([]float32, r.Experts)
	const bins = 5
	var said, actual, count [bins]float64
	for token := range 1500 {
		in, chosen := f.token()
		p.Begin(moe.UnknownID)
		for layer := range chosen {
			if layer > 0 {
				p.Scores(layer, scores)
				for e, s := range scores {
					if token >= 500 {
						q := float64(sigmoid(s))
						b := min(int(q*bins), bins-1)
						said[b] += q
						count[b]++
						if slices.Contains(chosen[layer], int32(e)) {
							actual[b]++
						}
					}
				}
			}
			p.Router(layer, in[layer].router)
			p.Observe(layer, chosen[layer])
			p.Learn(layer)
		}
	}
	for b := range bins {
		if count[b] < 200 {
			t.Errorf("%g scores of probability %d/%d, want more", count[b], b, bins)
		} else if math.Abs(said[b]-actual[b])/count[b] > 0.08 {
			t.Errorf("of experts with probability %.3f the share %.3f was chosen", said[b]/count[b], actual[b]/count[b])
		}
	}
}

// Scores do not depend on what comes later.
func TestCausal(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 4, 32, 8, 2)
	o := Options{Leads: []int{1, 2}, Attention: true}
	run := func(other bool) []float32 {
		p := newPredictor(t, r, o)
		f := newFlow(t, rand.New(rand.NewPCG(3, 4)), r, 0.1)
		scores := make([]float32, r.Experts)
		for token := range 60 {
			in, chosen := f.token()
			p.Begin(int32(token % 7))
			for layer := range chosen {
				if token == 59 && layer == 2 {
					if other { // the rest of the last token is different
						for i := range in[layer].router {
							in[layer].router[i] = -in[layer].router[i]
						}
						chosen[layer] = []int32{chosen[layer][1], (chosen[layer][0] + 1) % 8}
					}
					p.Attention(layer, in[layer].attention)
					p.Scores(layer, scores)
					return slices.Clone(scores)
				}
				p.Attention(layer, in[layer].attention)
				p.Scores(layer, scores)
				p.Router(layer, in[layer].router)
				p.Observe(layer, chosen[layer])
				p.Learn(layer)
			}
		}
		return nil
	}
	a, b := run(false), run(true)
	if a == nil || !slices.Equal(a, b) {
		t.Errorf("scores are %v, and with other inputs later %v", a, b)
	}
}

// Whatever input comes or is missing, scores are finite, and what was learned is not spoilt.
func TestOddInputs(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 4, 32, 8, 2)
	p := newPredictor(t, r, Options{Leads: []int{1, 3}, Attention: true})
	rng := rand.New(rand.NewPCG(7, 8))
	f := newFlow(t, rng, r, 0.1)
	scores := make([]float32, r.Experts)
	bad := func(x []float32) []float32 {
		x = slices.Clone(x)
		switch rng.IntN(9) {
		case 0:
			x[rng.IntN(len(x))] = float32(math.NaN())
		case 1:
			x[rng.IntN(len(x))] = float32(math.Inf(1))
		case 2:
			x = x[1:]
		case 3:
			x = append(x, 1)
		case 4:
			clear(x)
		case 5:
			for i := range x {
				x[i] = float32(rng.NormFloat64() * 1e13)
			}
		case 6:
			x = nil
		case 7:
			for i := range x {
				x[i] *= 1e-20
			}
		}
		return x
	}
	for token := range 400 {
		in, chosen := f.token()
		p.Begin(int32(rng.IntN(50)) - 1)
		for layer := range chosen {
			if rng.IntN(3) > 0 {
				p.Attention(layer, bad(in[layer].attention))
			}
			if rng.IntN(3) > 0 {
				p.Router(layer, bad(in[layer].router))
			}
			if rng.IntN(3) > 0 {
				p.Scores(rng.IntN(4), scores)
			}
			switch rng.IntN(6) {
			case 0:
				p.Observe(layer, []int32{-1, 5})
			case 1:
				p.Observe(layer, []int32{1 << 30})
			case 2:
				p.Observe(layer, []int32{0, 1, 2, 3, 4, 5, 6, 7})
			case 3:
				p.Observe(layer, nil)
			case 4:
			default:
				p.Observe(layer, chosen[layer])
			}
			if rng.IntN(3) > 0 {
				p.Learn(layer)
			}
		}
		for layer := range chosen {
			p.Scores(layer, scores)
			for e, s := range scores {
				if !isFinite(s) {
					t.Fatalf("token %d, layer %d: expert %d has the score %g, want a finite one", token, layer, e, s)
				}
			}
		}
	}
	p.Attention(-1, nil)
	p.Router(99, nil)
	if got := p.Choice(99, nil); len(got) != 0 {
		t.Errorf("Choice of a layer that is not there = %v, want none", got)
	}
	// The predictor still learns.
	if once, _ := f.run(p, 600, 400, true, true); once < 0.6 {
		t.Errorf("recall afterwards %.3f, want at least 0.6", once)
	}
}

// Where the token's id chooses, scores follow the table.
func TestTable(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 2, 32, 8, 2)
	r.layers[1].table = []uint16{0, 1, 2, 3, 7, 4}
	p := newPredictor(t, r, Options{})
	scores, order := make([]float32, 8), make([]int32, 8)
	for id, want := range [][]int32{{0, 1}, {2, 3}, {4, 7}} {
		p.Begin(int32(id))
		p.Scores(1, scores)
		if got := slices.Sorted(slices.Values(moe.Top(scores, order, 2))); !slices.Equal(got, want) {
			t.Errorf("token %d: %v, want %v", id, got, want)
		}
		p.Observe(1, want)
		if p.Recall(1) != 1 {
			t.Errorf("Recall = %g, want 1", p.Recall(1))
		}
	}
	p.Begin(99)
	p.Router(1, gaussian(rand.New(rand.NewPCG(1, 1)), 32))
	if got := p.Choice(1, nil); len(got) != 0 {
		t.Errorf("Choice for a token that the table lacks = %v, want none", got)
	}
}

func TestNewRefuses(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 3, 32, 8, 2)
	for _, o := range []Options{{Leads: []int{0}}, {Leads: []int{2, 1}}, {Leads: []int{1, 1}}, {Bytes: 100}} {
		if _, err := New(r, o); err == nil {
			t.Errorf("New took %+v, want an error", o)
		}
	}
}

// Once it is made, a predictor allocates nothing.
func TestAllocations(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 3, 32, 8, 2)
	p := newPredictor(t, r, Options{Attention: true, Leads: []int{1, 2}})
	f := newFlow(t, rand.New(rand.NewPCG(3, 4)), r, 0.1)
	in, chosen := f.token()
	scores, dst := make([]float32, 8), make([]int32, 0, 2)
	if n := testing.AllocsPerRun(100, func() {
		p.Begin(3)
		for layer := range chosen {
			p.Attention(layer, in[layer].attention)
			p.Scores(layer, scores)
			p.Router(layer, in[layer].router)
			dst = p.Choice(layer, dst)
			p.Observe(layer, chosen[layer])
			p.Scores((layer+1)%3, scores)
			p.Learn(layer)
		}
	}); n != 0 {
		t.Errorf("%g allocations a token, want 0", n)
	}
}

// BenchmarkLayer takes the time of a layer of a real model, with calls in the order of a live target.
func BenchmarkLayer(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	const layers, dim, experts, k = 48, 2048, 128, 8
	r := planted(rng, layers, dim, experts, k)
	p, err := New(r, Options{})
	if err != nil {
		b.Fatal(err)
	}
	x, scores := gaussian(rng, dim), make([]float32, experts)
	chosen := []int32{1, 2, 3, 5, 8, 13, 21, 34}
	for _, part := range []string{"router", "scores", "ids", "learn"} {
		b.Run(part, func(b *testing.B) {
			layer := 0
			p.Begin(1)
			for b.Loop() {
				b.StopTimer()
				if layer++; layer == layers {
					layer = 1
					p.Begin(1)
				}
				x[layer] += 0.01
				p.Router(layer-1, x)
				p.solveLogits(layer - 1)
				p.lastLayer = layer - 1
				switch part {
				case "router":
					p.routerInputs[layer-1].isSolved = false
					b.StartTimer()
					p.solveLogits(layer - 1)
				case "scores":
					b.StartTimer()
					p.updateLink(0, layer)
				case "ids":
					p.updateLink(0, layer)
					b.StartTimer()
					p.Scores(layer, scores)
					p.Observe(layer, chosen)
				case "learn":
					p.updateLink(0, layer)
					p.Router(layer, x)
					p.solveLogits(layer)
					b.StartTimer()
					p.Learn(layer)
				}
			}
		})
	}
}
