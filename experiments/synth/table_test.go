package synth_test

// This file tests models with a table of which a token reads one row, in a real llama.cpp.

import (
	"path/filepath"
	"slices"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
)

const table = "per_layer_token_embd.weight"

// A real llama.cpp looks up a row of the table for each token and reads nothing else of it. Words of a prompt, and the
// text that it generates, have rows all over the table.
func TestTableInLlama(t *testing.T) {
	in := llamatest.ForTest(t)
	base := synth.Config{
		Layers: 4, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1, Table: 8 << 20, PerLayer: 512,
	}
	moe, tied := base, base
	moe.Experts, moe.Used = 16, 4
	tied.Tied = true
	for name, cfg := range map[string]synth.Config{"dense": base, "experts": moe, "tied": tied} {
		t.Run(name, func(t *testing.T) {
			plan, err := synth.NewPlan(cfg)
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(plan.Tensors, func(w synth.Tensor) bool { return w.Name == table })
			rows, row := plan.Tensors[at].Shape[1], plan.Tensors[at].Size/plan.Tensors[at].Shape[1]
			size, vocab := plan.Tensors[at].Size, plan.Config.Vocab
			if size > cfg.Table || size < cfg.Table-row || vocab != int(rows) {
				t.Errorf("a table of %d bytes for %d tokens, want one of %d bytes", size, vocab, cfg.Table)
			}
			ops := filepath.Join(t.TempDir(), "ops")
			r, err := in.Run(t.Context(), llama.Options{
				Model: llamatest.Model(t, cfg), Prompt: " ab abc cd qp q", Tokens: 32, Threads: 1, Ops: ops,
				Warmup: "none",
			})
			if err != nil {
				t.Fatal(err)
			}
			if want := 1 + 5; r.PromptTokens != want {
				t.Errorf("the prompt is %d tokens, want %d: <s> and one per word", r.PromptTokens, want)
			}
			list, err := llama.ReadOps(ops)
			if err != nil {
				t.Fatal(err)
			}
			seen, lookups := map[int32]bool{}, 0
			for _, op := range list {
				if op.Tensor != table {
					continue
				}
				if lookups++; op.Op != "GET_ROWS" || op.Bytes != int64(op.NTokens)*row { // each word is there once
					t.Errorf("%s reads %d bytes of the table for %d tokens, want %d each", op.Op, op.Bytes, op.NTokens, row)
				}
			}
			if lookups < len(r.Tokens) {
				t.Errorf("%d lookups for a prompt and %d tokens", lookups, len(r.Tokens))
			}
			high := 0
			for _, id := range r.Tokens {
				seen[id] = true
			}
			for id := range seen {
				if int64(id) > rows/2 {
					high++
				}
			}
			if len(seen) < 20 || high < len(seen)/4 {
				t.Errorf("%d rows of %d are looked up, %d of them in the upper half", len(seen), rows, high)
			}
		})
	}
}
