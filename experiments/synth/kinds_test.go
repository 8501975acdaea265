package synth_test

// This file tests each kind of model in a real llama.cpp.

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
)

// TestKindsInLlama checks that a real llama.cpp loads each kind of model and generates text with
// it, and that its routers choose as they should.
func TestKindsInLlama(t *testing.T) {
	in := llamatest.ForTest(t)
	for name, cfg := range llamatest.Routers() {
		t.Run(name, func(t *testing.T) {
			path := llamatest.Model(t, cfg)
			ops := filepath.Join(t.TempDir(), "ops")
			r, err := in.Run(t.Context(), llama.Options{Model: path, Prompt: "Once upon", Tokens: 24, Threads: 1,
				Ops: ops, Warmup: "none"})
			if err != nil {
				t.Fatal(err)
			}
			if distinct := len(slices.Compact(slices.Sorted(slices.Values(r.Tokens)))); distinct < 8 {
				t.Errorf("%d distinct tokens of %d, want 8 or more: %q", distinct, len(r.Tokens), r.Text)
			}
			if strings.ContainsFunc(r.Text, func(c rune) bool { return c != '\n' && (c < ' ' || c > '~') }) {
				t.Errorf("text is not printable ASCII: %q", r.Text)
			}
			list, err := llama.ReadOps(ops)
			if err != nil {
				t.Fatal(err)
			}
			checkChoices(t, cfg, list)
		})
	}
}

// checkChoices checks each token's experts.
func checkChoices(t *testing.T, cfg synth.Config, ops []llama.Op) {
	t.Helper()
	layers := map[int]map[int32]bool{}
	for _, op := range ops {
		var layer int
		if _, err := fmt.Sscanf(op.Tensor, "blk.%d.ffn_down_exps.weight", &layer); err != nil {
			continue
		}
		if layers[layer] == nil {
			layers[layer] = map[int32]bool{}
		}
		for chosen := range slices.Chunk(op.IDs, cfg.Used) {
			sorted := slices.Sorted(slices.Values(chosen))
			if len(slices.Compact(sorted)) != cfg.Used {
				t.Fatalf("layer %d: experts %v, want %d", layer, chosen, cfg.Used)
			}
			groups := map[int32]bool{}
			for _, e := range chosen {
				layers[layer][e] = true
				if cfg.Groups > 0 {
					groups[e/int32(cfg.Experts/cfg.Groups)] = true
				}
			}
			if len(groups) > cfg.GroupsUsed {
				t.Fatalf("layer %d: experts %v are of %d groups, want at most %d", layer, chosen, len(groups),
					cfg.GroupsUsed)
			}
		}
	}
	want := cfg.Layers
	if cfg.Arch == "deepseek2" {
		want-- // the first layer is dense
	}
	if len(layers) != want {
		t.Errorf("%d layers have experts, want %d", len(layers), want)
	}
	for layer, seen := range layers {
		if len(seen) < cfg.Experts/2 {
			t.Errorf("layer %d uses %d of %d experts, want half or more", layer, len(seen), cfg.Experts)
		}
	}
}
