package synth_test

// This file tests planted routing without a llama.cpp: what the weights of the file choose, how well that is
// foretold, which traces are refused, and that the same flags give the same bytes.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tensorcast/event"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/moe"
	"tensorcast/moe/hidden"
	"tensorcast/trace/tables"
)

func routed(trace *moe.Trace, change func(c *synth.Config)) synth.Config {
	c := synth.Config{Embd: 256, FF: 32, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1, Routes: trace}
	if change != nil {
		change(&c)
	}
	return c
}

func writeRouted(t testing.TB, cfg synth.Config) (*synth.Plan, string) {
	t.Helper()
	plan, err := synth.NewPlan(cfg)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := plan.WriteFile(t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	return plan, path
}

// reader reads a model's weights.
type reader struct {
	t testing.TB
	w *gguf.Weights
}

func openWeights(t testing.TB, path string) (*gguf.Model, reader) {
	t.Helper()
	m, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := gguf.OpenWeights(m, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return m, reader{t, w}
}

// rows are the rows of a tensor.
func (r reader) rows(name string) [][]float32 {
	r.t.Helper()
	h, ok := r.w.Lookup(name)
	if !ok {
		r.t.Fatalf("no tensor %s", name)
	}
	n := int64(1)
	for _, d := range h.Tensor.Shape {
		n *= d
	}
	values := make([]float32, n)
	if err := h.View(func(data []byte) error { return gguf.Dequantize(values, h.Tensor.Type, data) }); err != nil {
		r.t.Fatal(err)
	}
	return slices.Collect(slices.Chunk(values, int(h.Tensor.Shape[0])))
}

// normed is what an RMS norm with these weights makes of x.
func normed(x, weights []float32) []float32 {
	var squares float64
	for _, v := range x {
		squares += float64(v) * float64(v)
	}
	scale := 1 / math.Sqrt(squares/float64(len(x)))
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(float64(v)*scale) * weights[i]
	}
	return y
}

// TestPlantedRouters computes from the file's embeddings, norms and routers what is chosen: what the trace says.
// What prefetchd's predictor then foretells from the router before and from attention is as was reported, and
// as was wanted.
func TestPlantedRouters(t *testing.T) {
	trace := randomTrace(t, 60, 10, 6, 32, 4)
	for _, want := range []float64{0.4, 0.6, synth.UsualRecall, 0.9, 1} {
		t.Run(fmt.Sprint(want), func(t *testing.T) {
			plan, path := writeRouted(t, routed(trace, func(c *synth.Config) { c.Embd, c.Recall = 512, want }))
			m, r := openWeights(t, path)
			embeddings := r.rows("token_embd.weight")
			var inputs []*tables.HiddenRow
			for token := range trace.Tokens {
				x := embeddings[synth.ByteVocab+token]
				for layer := range trace.Layers {
					name := func(c string) string { return fmt.Sprintf("blk.%d.%s.weight", layer, c) }
					add := func(point event.Point, norm string) []float32 {
						v := normed(x, r.rows(name(norm))[0])
						inputs = append(inputs, &tables.HiddenRow{
							Step: int32(token), Layer: int32(layer), Point: point, Values: v,
						})
						return v
					}
					add(event.PointAttention, "attn_norm")
					input := add(event.PointRouter, "ffn_norm")
					products := make([]float32, trace.Experts)
					for e, row := range r.rows(name("ffn_gate_inp")) {
						for i, v := range row {
							products[e] += v * input[i]
						}
					}
					chosen := trace.Chosen(token, layer)
					got := moe.Top(products, make([]int32, trace.Experts), len(chosen))
					if !slices.Equal(got, chosen) {
						t.Fatalf("token %d, layer %d: experts %v, want %v", token, layer, got, chosen)
					}
				}
			}
			routers, err := hidden.ReadRouters(m)
			if err != nil {
				t.Fatal(err)
			}
			study, err := hidden.Evaluate(t.Context(), trace, routers, func(yield func(*tables.HiddenRow, error) bool) {
				for _, row := range inputs {
					if !yield(row, nil) {
						return
					}
				}
			}, 0)
			if err != nil {
				t.Fatal(err)
			}
			compared := 0
			for _, result := range study.Results {
				if result.Name != "next router on this input" || result.Lead > 1 {
					continue
				}
				compared++
				for _, s := range result.Scores {
					if s.Budget == 1 && math.Abs(s.Recall-plan.Routing.Recall) > 0.005 { // those routers are in 8 bits
						t.Errorf("the predictor's recall is %.3f, %d ahead; reported %.3f", s.Recall, result.Lead,
							plan.Routing.Recall)
					}
				}
			}
			if compared != 2 || math.Abs(plan.Routing.Recall-want) > 0.03 {
				t.Errorf("recall %.3f, compared with %d; want %.3f, compared with 2", plan.Routing.Recall, compared,
					want)
			}
		})
	}
}

// TestRoutingBytes pins the bytes of a model with planted routing, see TestBytes.
func TestRoutingBytes(t *testing.T) {
	plan, err := synth.NewPlan(routed(randomTrace(t, 20, 5, 2, 8, 2), nil))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := plan.Write(t.Context(), &b, nil); err != nil {
		t.Fatal(err)
	}
	const want = "a12e00c83b13fc3a"
	sum := sha256.Sum256(b.Bytes())
	if got := hex.EncodeToString(sum[:8]); got != want || int64(b.Len()) != plan.Size {
		t.Errorf("%d bytes, whose SHA-256 begins %s; want %d and %s", b.Len(), got, plan.Size, want)
	}
}

// TestRoutingShapes plants traces that begin, end or repeat themselves in unusual ways.
func TestRoutingShapes(t *testing.T) {
	for name, tt := range map[string]struct {
		trace          *moe.Trace
		change         func(c *synth.Config)
		layers, prompt int
	}{
		"one token":    {randomTrace(t, 1, 0, 2, 8, 2), nil, 2, 0},
		"no prompt":    {randomTrace(t, 20, 0, 2, 8, 2), nil, 2, 0},
		"all prompt":   {randomTrace(t, 20, 20, 2, 8, 2), nil, 2, 0},
		"one layer":    {randomTrace(t, 20, 5, 1, 8, 2), nil, 1, 1},
		"all experts":  {randomTrace(t, 20, 5, 2, 4, 4), nil, 2, 5},
		"dense layer":  {randomTrace(t, 20, 5, 2, 8, 2), func(c *synth.Config) { c.Arch = "deepseek2" }, 3, 5},
		"large":        {randomTrace(t, 20, 5, 2, 8, 2), func(c *synth.Config) { c.Vocab = 1000 }, 2, 5},
		"other layers": {randomTrace(t, 20, 5, 2, 8, 2), func(c *synth.Config) { c.Layers = 5 }, 5, 5},
	} {
		t.Run(name, func(t *testing.T) {
			plan, path := writeRouted(t, routed(tt.trace, tt.change))
			if plan.Config.Layers != tt.layers || plan.Routing.Prompt != tt.prompt {
				t.Errorf("%d layers, a prompt of %d; want %d, %d", plan.Config.Layers, plan.Routing.Prompt, tt.layers,
					tt.prompt)
			}
			info, err := os.Stat(path)
			if err != nil || info.Size() != plan.Size {
				t.Errorf("%v: want %d bytes", err, plan.Size)
			}
			if _, err := gguf.Open(path); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPlanEndsWithContext ends the context of a plan, which computes nothing then.
func TestPlanEndsWithContext(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, err := synth.NewPlanContext(ctx, routed(randomTrace(t, 20, 5, 2, 8, 2), nil))
	if !errors.Is(err, cause) {
		t.Errorf("%v, want %v", err, cause)
	}
}

// TestRoutesSized chooses the dimensions of a model with planted routing by its size.
func TestRoutesSized(t *testing.T) {
	const size = 100e6
	cfg, err := synth.Sized(size, synth.Config{Type: gguf.Q8_0, Seed: 1, Routes: randomTrace(t, 400, 5, 4, 32, 4)})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := synth.NewPlan(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Size < 0.75*size || plan.Size > 1.25*size || plan.Config.Experts != 32 || plan.Config.Used != 4 {
		t.Errorf("%d bytes, %+v; want %g and the trace's experts", plan.Size, plan.Config, size)
	}
}

// TestRoutesRefused checks that each trace that cannot be planted is refused with the setting to change.
func TestRoutesRefused(t *testing.T) {
	trace := randomTrace(t, 20, 5, 2, 8, 2)
	for setting, change := range map[string]func(c *synth.Config){
		"experts": func(c *synth.Config) { c.Experts = 16 },
		"used":    func(c *synth.Config) { c.Used = 1 },
		"routes":  func(c *synth.Config) { c.Routes = randomTrace(t, 1025, 5, 2, 8, 2) },
		"arch":    func(c *synth.Config) { c.Arch = "deepseek4" },
		"groups":  func(c *synth.Config) { c.Groups, c.GroupsUsed = 2, 1 },
		"tied":    func(c *synth.Config) { c.Tied = true },
		"recall":  func(c *synth.Config) { c.Recall = 1.5 },
		"embd":    func(c *synth.Config) { c.Embd = 32 },
		"vocab":   func(c *synth.Config) { c.Vocab = 270 },
		"layers":  func(c *synth.Config) { c.Layers = 1000 },
		"ff":      func(c *synth.Config) { c.FF = 0 },
	} {
		_, err := synth.NewPlan(routed(trace, change))
		var config *synth.ConfigError
		if !errors.As(err, &config) || config.Setting != setting {
			t.Errorf("%s: %v", setting, err)
		}
	}
	wide := routed(randomTrace(t, 40, 5, 2, 8, 2), func(c *synth.Config) { c.Embd = 96 })
	if _, err := synth.NewPlan(wide); err != nil {
		t.Error(err) // 40 tokens need 77
	}
}
