package synth_test

// This file compares what planted routers choose in a real llama.cpp with the trace that they were made of.

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/testenv"
	"tensorcast/moe"
)

// randomTrace makes a trace of choices at random. An expert is chosen more often the smaller its number
// is. As in recorded traces, a prompt's last layer is known for its last token only.
func randomTrace(t testing.TB, tokens, prompt, layers, experts, k int) *moe.Trace {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	var csv strings.Builder
	fmt.Fprintf(&csv, "# route_trace v1\n# model=planted n_layer=%d n_expert=%d n_expert_used=%d\n", layers, experts, k)
	csv.WriteString("turn,phase,step,layer,slot,expert\n")
	for step := range tokens {
		phase := 1
		if step < prompt {
			phase = 0
		}
		for layer := range layers {
			if layer == layers-1 && step < prompt-1 {
				continue
			}
			var chosen []int
			for len(chosen) < k {
				if e := int(float64(experts) * random.Float64() * random.Float64()); !slices.Contains(chosen, e) {
					fmt.Fprintf(&csv, "0,%d,%d,%d,%d,%d\n", phase, step, layer, len(chosen), e)
					chosen = append(chosen, e)
				}
			}
		}
	}
	trace, err := moe.ReadCSV(strings.NewReader(csv.String()))
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// recordedTrace reads a trace in ../shared/data/moe-routes, beside the repository.
func recordedTrace(t testing.TB, name string) *moe.Trace {
	t.Helper()
	trace, err := moe.ReadCSV(testenv.OpenShared(t, "data", "moe-routes", name+".route.csv.gz"))
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// chosenInLlama runs a model and returns what its routers chose, by layer and token: those of the prompt
// (layers that are not computed for all have the last ones), then the generated ones.
func chosenInLlama(t testing.TB, in *llama.Installation, o llama.Options, used int) (*llama.Result, map[int][][]int32) {
	t.Helper()
	o.Ops, o.Warmup, o.Threads = filepath.Join(t.TempDir(), "ops"), "none", 1
	r, err := in.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ops, err := llama.ReadOps(o.Ops)
	if err != nil {
		t.Fatal(err)
	}
	chosen := map[int][][]int32{}
	for _, op := range ops {
		var layer int
		if _, err := fmt.Sscanf(op.Tensor, "blk.%d.ffn_down_exps.weight", &layer); err != nil || op.Src != 0 {
			continue
		}
		for len(chosen[layer]) < r.PromptTokens-len(op.IDs)/used && len(chosen[layer]) == 0 {
			chosen[layer] = append(chosen[layer], make([][]int32, r.PromptTokens-len(op.IDs)/used)...)
		}
		chosen[layer] = slices.AppendSeq(chosen[layer], slices.Chunk(op.IDs, used))
	}
	return r, chosen
}

// TestRoutesInLlama checks that a real llama.cpp chooses for each token and layer what the trace says, in
// the prompt, in the generated text, and when the trace begins again.
func TestRoutesInLlama(t *testing.T) {
	in := llamatest.ForTest(t)
	base := synth.Config{Embd: 128, FF: 64, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1}
	planted := func(change func(c *synth.Config)) func(t *testing.T) synth.Config {
		return func(t *testing.T) synth.Config {
			c := base
			c.Routes = randomTrace(t, 40, 10, 3, 16, 4)
			if change != nil {
				change(&c)
			}
			return c
		}
	}
	recorded := func(name, arch string) func(t *testing.T) synth.Config {
		return func(t *testing.T) synth.Config {
			c := base
			c.Routes, c.Arch, c.Layers, c.Embd = recordedTrace(t, name), arch, 6, 384
			return c
		}
	}
	for name, config := range map[string]func(t *testing.T) synth.Config{
		"llama":         planted(nil),
		"F16":           planted(func(c *synth.Config) { c.Type = gguf.F16 }),
		"Q4_K":          planted(func(c *synth.Config) { c.Type, c.Embd, c.FF = gguf.Q4_K, 256, 256 }),
		"fewer layers":  planted(func(c *synth.Config) { c.Layers = 2 }),
		"many layers":   planted(func(c *synth.Config) { c.Layers = 48 }),
		"exact":         planted(func(c *synth.Config) { c.Recall = 1 }),
		"qwen2moe":      planted(func(c *synth.Config) { c.Arch = "qwen2moe" }),
		"deepseek2":     planted(func(c *synth.Config) { c.Arch, c.Sigmoid = "deepseek2", true }),
		"qwen trace":    recorded("qwen", "qwen3moe"),
		"gpt-oss trace": recorded("gptoss", "gpt-oss"),
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			trace := cfg.Routes
			plan, err := synth.NewPlan(cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("recall %.2f, %d choices missing", plan.Routing.Recall, plan.Routing.Missing)
			o := llama.Options{Model: filepath.Join(t.TempDir(), "model.gguf"), Prompt: plan.Routing.PromptText()}
			if err := plan.WriteFile(t.Context(), o.Model, nil); err != nil {
				t.Fatal(err)
			}
			first, tokens := plan.Routing.Prompt, plan.Routing.Tokens
			const again = 3
			o.Tokens = tokens - first + again
			r, got := chosenInLlama(t, in, o, trace.K)
			if r.PromptTokens != 1+first {
				t.Fatalf("the prompt is %d tokens, want <s> and %d of the trace", r.PromptTokens, first)
			}
			for i, id := range r.Tokens {
				if want := int32(synth.ByteVocab + first + i%(tokens-first)); id != want {
					t.Fatalf("token %d is %d, want %d", i, id, want)
				}
			}
			dense := plan.Config.Layers - len(got)
			if len(got) == 0 || dense > 1 || dense == 1 && cfg.Arch != "deepseek2" {
				t.Fatalf("%d layers of %d have experts", len(got), plan.Config.Layers)
			}
			compared, differ := 0, 0
			for layer, chosen := range got {
				for i, experts := range chosen[1:] { // <s> is the first
					want := trace.Chosen(first+max(i-first, i-tokens)%(tokens-first), (layer-dense)%len(trace.Layers))
					if i < tokens {
						want = trace.Chosen(i, (layer-dense)%len(trace.Layers))
					}
					if len(want) == 0 || experts == nil {
						continue
					}
					compared++
					if !slices.Equal(slices.Sorted(slices.Values(experts)), slices.Sorted(slices.Values(want))) {
						if differ++; differ < 5 {
							t.Errorf("layer %d, token %d: experts %v, want %v", layer, i, experts, want)
						}
					}
				}
			}
			if least := (tokens - first) * len(got); compared < least {
				t.Errorf("%d choices compared, want %d or more", compared, least)
			}
			if differ > 0 {
				t.Errorf("%d of %d choices differ", differ, compared)
			}
		})
	}
}
