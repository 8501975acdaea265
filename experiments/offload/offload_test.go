package offload

// This file tests a series on a small model, and the arithmetic of its report.

import (
	"bytes"
	"context"
	"errors"
	"image/png"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/fabric/backend/backendtest"
	"tensorcast/fabric/device"
	"tensorcast/fabric/device/devicetest"
	"tensorcast/gguf"
	"tensorcast/internal/cc"
)

func backend(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "libggml-tfmbs.so")
	switch err := backendtest.Compile(t.Context(), "../..", path, backendtest.Backend); {
	case errors.Is(err, cc.ErrNoCompiler):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	return path
}

func TestCompare(t *testing.T) {
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, synth.Config{Layers: 2, Embd: 256, FF: 704, Heads: 4, KVHeads: 2, Type: gguf.Q2_0,
		Seed: 7})
	d := devicetest.Start(t, device.Options{PoolBytes: 64 << 20})
	c := Config{Model: model, Prompt: 8, Tokens: 6, Batches: []int{1}, Turns: 2, Backend: backend(t), Socket: d.Socket}
	steps := 0
	r, err := Compare(t.Context(), in, c, func(done, total int) {
		if steps++; done != steps || total != 6 {
			t.Errorf("%d of %d after %d; want 6 in all", done, total, steps)
		}
	})
	if err != nil || len(r.Runs) != 6 || len(r.Results) != 3 || r.Interrupted || steps != 6 {
		t.Fatalf("%+v, %v", r, err)
	}
	first := map[string]bool{}
	for i, x := range r.Runs {
		if x.Turn != i/3+1 || x.TokS <= 0 || x.PromptTokS <= 0 || x.Same != c.Tokens ||
			x.Variant == "device, 1 thread" && x.Threads != 1 {
			t.Errorf("%+v", x)
		}
		if i%3 == 0 {
			first[x.Variant] = true
		}
	}
	if len(first) != 2 {
		t.Errorf("turns begin with %v, want two variants", first)
	}
	if r.Device.Tokens == 0 || r.Device.Failed != 0 {
		t.Errorf("the device: %+v, want tokens and no failure", r.Device)
	}
	batches := c
	batches.Batches, batches.Streams, batches.Guess, batches.Turns, batches.Tokens = []int{1, 3}, []int{1, 2}, 4, 1, 20
	r, err = Compare(t.Context(), in, batches, func(int, int) {})
	if err != nil || len(r.Runs) != 10 {
		t.Fatalf("batches: %+v, %v", r, err)
	}
	for i, name := range []string{"cpu x1", "device x1", "cpu x3", "device x3", "cpu x1, 2 streams",
		"device x1, 2 streams", "cpu x3, 2 streams", "device x3, 2 streams", "cpu x1+4", "device x1+4"} {
		if x := r.Results[i]; x.Name != name || x.Same != batches.Tokens || x.TokS <= 0 ||
			x.Decodes > batches.Tokens || x.Decodes < batches.Tokens && x.Guess == 0 || x.Device != (x.Idle > 0) ||
			x.Idle >= 1 {
			t.Errorf("%+v", x)
		}
	}
	b := strings.Builder{}
	if err := r.WriteText(&b); err != nil || !strings.Contains(b.String(), "tokens a decode") ||
		!strings.Contains(b.String(), "times x1") {
		t.Errorf("%v\n%s", err, b.String())
	}
	// A run that goes on without the device measures nothing.
	d.Stop()
	t.Setenv("TFMBS_DEVICE", "/nowhere")
	if r, err := Compare(t.Context(), in, c, func(int, int) {}); err == nil ||
		!strings.Contains(err.Error(), "there is no device") || !r.Interrupted || len(r.Runs) != 0 {
		t.Errorf("no device: %+v, %v; want an error that says so", r, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Compare(ended, in, c, func(int, int) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v, want context.Canceled", err)
	}
}

// TestTogether checks two contexts of two sequences. The first one's prompt is decoded after 10 ms,
// and its three tokens 30 ms later. The other one ends at 70 ms: 12 tokens in 60 ms.
func TestTogether(t *testing.T) {
	context := func(prompt, token float64) llama.Generation {
		return llama.Generation{PromptMs: prompt, TokenMs: []float64{token, token, token}, Tokens: make([]int32, 3)}
	}
	all := []llama.Generation{context(10, 10), context(10, 10), context(40, 10), context(40, 10)}
	if got := combinedSpeed(all); math.Abs(got-200) > 1e-9 || slowestPrompt(all) != 40 {
		t.Errorf("%v tokens/s, the slowest prompt %v ms; want 200 and 40", got, slowestPrompt(all))
	}
}

func TestReport(t *testing.T) {
	r := &Report{Model: "m.gguf", Tokens: 9}
	for turn := 1; turn <= 7; turn++ {
		// The load of the machine changes with the turns. Ratios within a turn do not depend on it.
		load := float64(turn)
		r.Runs = append(r.Runs,
			Run{Variant: "device", Turn: turn, TokS: 8 / load, PromptTokS: 40 / load, Same: 9 - turn%2},
			Run{Variant: "cpu", Turn: turn, TokS: 2 / load, PromptTokS: 4 / load, Same: 9})
	}
	r.summarise([]Variant{{Name: "cpu"}, {Name: "device", Device: true}})
	x := r.Results[1]
	if math.Abs(x.Ratio.Estimate-4) > 1e-9 || math.Abs(x.Ratio.Low-4) > 1e-9 ||
		math.Abs(x.PromptRatio.Estimate-10) > 1e-9 || x.TokS != 2 || x.Same != 8 {
		t.Errorf("%+v", x)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil || !strings.Contains(b.String(), "4 (4 to 4)") ||
		!strings.Contains(b.String(), "8 of 9") || strings.Contains(b.String(), "INTERRUPTED") {
		t.Errorf("%v\n%s", err, b.String())
	}
	if s := b.String(); strings.Contains(s, "times x") {
		t.Errorf("one batch:\n%s", s)
	}
	several := &Report{Model: "m.gguf", Tokens: 9}
	for turn := 1; turn <= 7; turn++ {
		for _, x := range []struct {
			name string
			tokS float64
		}{{"cpu x1", 2}, {"device x1", 3}, {"cpu x4", 4}, {"device x4", 10}} {
			several.Runs = append(several.Runs, Run{Variant: x.name, Turn: turn, TokS: x.tokS / float64(turn),
				PromptTokS: 1, Same: 9})
		}
	}
	several.summarise(Variants([]int{1, 4}, []int{1}, 0))
	b.Reset()
	if err := several.WriteText(&b); err != nil || !strings.Contains(b.String(), "times x1") {
		t.Errorf("%v\n%s", err, b.String())
	}
	// The ratios are those to the CPU with the same batch, and to the same variant with a batch of
	// one.
	for i, want := range [][2]float64{{1, 1}, {1.5, 1}, {1, 2}, {2.5, 10.0 / 3}} {
		if x := several.Results[i]; math.Abs(x.Ratio.Estimate-want[0]) > 1e-9 ||
			math.Abs(x.BatchRatio.Estimate-want[1]) > 1e-9 {
			t.Errorf("%+v, want %v", x, want)
		}
	}
	var picture bytes.Buffer
	if err := r.WriteFigure(&picture, "png"); err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(&picture); err != nil {
		t.Error(err)
	}
	empty := &Report{Interrupted: true}
	empty.summarise(Variants([]int{1}, []int{1}, 0))
	b.Reset()
	if err := empty.WriteMarkdown(&b); err != nil || !strings.Contains(b.String(), "INTERRUPTED") {
		t.Errorf("%v\n%s", err, b.String())
	}
	if err := empty.WriteFigure(&picture, "png"); err == nil {
		t.Error("a figure of nothing")
	}
}
