package synth_test

// This file tests in a real llama.cpp that inflated models are the same as the originals.

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/outfile"
)

// inflate writes the model at path again with experts that are factor times as wide.
func inflate(t *testing.T, path string, factor int) string {
	t.Helper()
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	inf, err := synth.NewInflation(f, factor, 1)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "inflated.gguf")
	if err := outfile.Write(out, func(w io.Writer) error { return inf.Write(t.Context(), w, in, nil) }); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestInflatedInLlama checks that an inflated model is the same to a real llama.cpp. All logits of
// a text have the same bits, all tokens take the same experts, and the generated text is the same.
func TestInflatedInLlama(t *testing.T) {
	in := llamatest.ForTest(t)
	moe := synth.Config{Layers: 2, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Experts: 8, Used: 3, Seed: 1}
	models := map[string]func(t *testing.T) string{
		"trained": func(t *testing.T) string {
			const path = "../../../shared/data/models/tiny-moe-q8_0.gguf" // tensorcast lies beside shared
			if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
				t.Skip("no trained models in ../shared/data/models")
			}
			return path
		},
	}
	for _, typ := range []gguf.Type{gguf.F16, gguf.Q8_0, gguf.Q4_K} {
		c := moe
		c.Type = typ
		models[typ.String()] = func(t *testing.T) string { return llamatest.Model(t, c) }
	}
	models["dense, real"] = func(t *testing.T) string { return llamatest.Gemma(t).File }
	for _, typ := range []gguf.Type{gguf.F16, gguf.Q8_0, gguf.Q4_K} {
		c := synth.Config{Layers: 2, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: typ, Seed: 1}
		models["dense "+typ.String()] = func(t *testing.T) string { return llamatest.Model(t, c) }
	}
	for _, kind := range []string{"qwen2moe shared", "deepseek2 sigmoid", "deepseek2 fused", "gpt-oss"} {
		models[kind] = func(t *testing.T) string { return llamatest.Model(t, llamatest.Routers()[kind]) }
	}
	for name, model := range models {
		t.Run(name, func(t *testing.T) {
			from := model(t)
			times := 3
			if strings.HasSuffix(name, "real") {
				times = 2 // it is large
			}
			sameInLlama(t, in, from, inflate(t, from, times), !strings.HasPrefix(name, "dense"))
		})
	}
}

// sameInLlama compares the output of two models, and their routing if they have experts.
func sameInLlama(t *testing.T, in *llama.Installation, a, b string, experts bool) {
	t.Helper()
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text,
		[]byte(strings.Repeat("The page cache holds what was read, until somebody needs the memory. ", 20)),
		0o600); err != nil {
		t.Fatal(err)
	}
	type run struct {
		text   string
		routes [][]int32
		logits []uint32
	}
	observe := func(path string) (r run) {
		ops := filepath.Join(t.TempDir(), "ops")
		result, err := in.Run(t.Context(), llama.Options{Model: path, Prompt: "Once upon a time", Tokens: 24,
			Threads: 1, Ops: ops, Warmup: "none"})
		if err != nil {
			t.Fatal(err)
		}
		r.text = result.Text
		list, err := llama.ReadOps(ops)
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range list {
			if op.Experts != nil {
				r.routes = append(r.routes, op.Experts, op.LastExperts)
			}
		}
		_, err = in.Score(t.Context(), llama.Options{Model: path, TextFile: text, Threads: 1, Chunks: 1,
			Context: 64, Warmup: "none"}, func(l *llama.Logits) error {
			for {
				_, logits, err := l.Next()
				if err == io.EOF {
					return nil
				} else if err != nil {
					return err
				}
				for _, v := range logits {
					r.logits = append(r.logits, math.Float32bits(v))
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	want, got := observe(a), observe(b)
	if got.text != want.text {
		t.Errorf("says %q, not %q", got.text, want.text)
	}
	if len(want.routes) > 0 != experts || !reflect.DeepEqual(got.routes, want.routes) {
		t.Errorf("of %d routes some differ", len(want.routes))
	}
	differ := 0
	for i := range min(len(got.logits), len(want.logits)) {
		if got.logits[i] != want.logits[i] {
			differ++
		}
	}
	if differ > 0 || len(got.logits) != len(want.logits) || len(want.logits) == 0 {
		t.Errorf("%d logits of %d have other bits", differ, len(want.logits))
	}
}
