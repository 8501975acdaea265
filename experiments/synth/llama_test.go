package synth_test

// This file tests the text and the routing of models in a real llama.cpp.

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
)

// TestInLlama loads models in a real llama.cpp and checks their text. It is readable and varied,
// does not end early, depends on the prompt, and is the same the second time.
func TestInLlama(t *testing.T) {
	in := llamatest.ForTest(t)
	base := synth.Config{Layers: 3, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Seed: 1}
	moe, tied, words := base, base, base
	moe.Experts, moe.Used = 32, 4
	tied.Tied, tied.Type = true, gguf.Q8_0
	words.Vocab, words.Type = 5000, gguf.Q4_K
	models := map[string]synth.Config{"tied": tied, "vocab": words}
	for _, typ := range synth.Types() {
		d, m := base, moe
		d.Type, m.Type = typ, typ
		models["dense-"+typ.String()], models["moe-"+typ.String()] = d, m
	}
	for name, cfg := range models {
		t.Run(name, func(t *testing.T) {
			plan, err := synth.NewPlan(cfg)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			o := llama.Options{Model: filepath.Join(dir, "model.gguf"), Prompt: "Once upon a time", Tokens: 64,
				Repeat: 2, Threads: 1}
			if err := plan.WriteFile(t.Context(), o.Model, nil); err != nil {
				t.Fatal(err)
			}
			if cfg.Experts > 0 {
				o.Ops = filepath.Join(dir, "ops")
			}
			r, err := in.Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if want := 1 + len(o.Prompt); r.PromptTokens != want {
				t.Errorf("the prompt is %d tokens, want %d: <s> and one per byte", r.PromptTokens, want)
			}
			t.Logf("%q", r.Text)
			if distinct := len(slices.Compact(slices.Sorted(slices.Values(r.Tokens)))); distinct < 16 {
				t.Errorf("%d distinct tokens of %d, want 16 or more: %q", distinct, len(r.Tokens), r.Text)
			}
			if strings.ContainsFunc(r.Text, func(c rune) bool { return c != '\n' && (c < ' ' || c > '~') }) {
				t.Errorf("text is not printable ASCII: %q", r.Text)
			}
			if slices.ContainsFunc(r.Tokens, func(id int32) bool { return id < 3 }) {
				t.Errorf("a control token among %v", r.Tokens)
			}
			if !reflect.DeepEqual(r.Tokens, r.Repeat[0].Tokens) {
				t.Errorf("the second time: %q, want %q as the first time", r.Repeat[0].Text, r.Text)
			}
			if cfg.Experts > 0 {
				checkRouting(t, cfg, o.Ops)
			}
			o.Prompt, o.Ops = "Once upon a timf", ""
			other, err := in.Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if other.Text == r.Text {
				t.Errorf("two prompts give the same text: %q", r.Text)
			}
		})
	}
}

// checkRouting checks the experts of the first generation's generated tokens. In every layer nearly
// all are used, none has more than a small share, consecutive tokens seldom share theirs, and
// layers choose differently.
func checkRouting(t *testing.T, cfg synth.Config, path string) {
	t.Helper()
	ops, err := llama.ReadOps(path)
	if err != nil {
		t.Fatal(err)
	}
	routes := make([][][]int32, cfg.Layers)
	for _, op := range ops {
		var layer int
		if _, err := fmt.Sscanf(op.Tensor, "blk.%d.ffn_down_exps.weight", &layer); err == nil && !op.Warmup &&
			op.NTokens == 1 && op.Repeat == 0 {
			routes[layer] = append(routes[layer], op.LastExperts)
		}
	}
	shared := func(a, b []int32) (n int) {
		for _, e := range a {
			if slices.Contains(b, e) {
				n++
			}
		}
		return n
	}
	for l, tokens := range routes {
		if len(tokens) < 60 {
			t.Fatalf("layer %d: routes of %d tokens, want 60 or more", l, len(tokens))
		}
		counts := map[int32]int{}
		again, across := 0, 0
		for i, experts := range tokens {
			if len(experts) != cfg.Used {
				t.Fatalf("layer %d: experts %v, want %d", l, experts, cfg.Used)
			}
			for _, e := range experts {
				counts[e]++
			}
			if i > 0 {
				again += shared(experts, tokens[i-1])
			}
			across += shared(experts, routes[(l+1)%cfg.Layers][min(i, len(routes[(l+1)%cfg.Layers])-1)])
		}
		total := len(tokens) * cfg.Used
		if len(counts) < cfg.Experts*3/4 {
			t.Errorf("layer %d uses %d of %d experts, want three quarters or more", l, len(counts), cfg.Experts)
		}
		for e, n := range counts {
			if n > total/4 {
				t.Errorf("layer %d: expert %d has %d of %d routes, want a quarter at most", l, e, n, total)
			}
		}
		if again > total/2 || across > total/2 {
			t.Errorf("layer %d: of %d routes %d as for the token before, %d as in the next layer", l, total, again,
				across)
		}
	}
}
