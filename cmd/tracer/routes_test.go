package main

// This file compares the routes of all kinds of routers with the ground truth.

import (
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
)

// routeKey identifies a route.
type routeKey struct{ step, layer, position, slot int32 }

// The experts of every token of the prompt and of the generation are recorded, in every layer and
// slot, for every kind of router.
func TestRoutes(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	for name, cfg := range llamatest.Routers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := llama.Options{
				Model: llamatest.Model(t, cfg), Prompt: "the brown fox", Tokens: 5, Threads: 1, NoRepack: true,
				Ops: filepath.Join(t.TempDir(), "ops"),
			}
			if _, err := in.Run(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			ops, err := llama.ReadOps(o.Ops)
			if err != nil {
				t.Fatal(err)
			}
			o.Ops = "" // without the callback of the ground truth, which changes how graphs are computed
			c, _ := traced(t, in, o)
			want := routesOf(c, ops, int32(cfg.Used))
			got := map[routeKey]int32{}
			for r, err := range c.Routes() {
				if err != nil {
					t.Fatal(err)
				}
				key := routeKey{r.Step, r.Layer, r.Position, r.Slot}
				if e, ok := want[key]; !ok || e != r.Expert {
					t.Fatalf("%+v is expert %d, the ground truth has %d, %v", key, r.Expert, e, ok)
				}
				if _, ok := got[key]; ok {
					t.Fatalf("%+v is recorded twice", key)
				}
				got[key] = r.Expert
			}
			if len(got) != len(want) || len(want) == 0 {
				t.Errorf("%d routes, want %d and not 0", len(got), len(want))
			}
		})
	}
}

// routesOf returns the routes of the ground truth. All matrices of a layer's experts have the same
// routes.
func routesOf(c *trace.Capture, ops []llama.Op, used int32) map[routeKey]int32 {
	layers := map[string]int32{}
	for _, s := range c.Structure {
		layers[s.Name] = s.Layer
	}
	want := map[routeKey]int32{}
	for _, op := range ops {
		if op.Warmup || !strings.HasSuffix(op.Tensor, "ffn_down_exps.weight") {
			continue
		}
		// The last layer may compute only the prompt's last token.
		first := int32(op.NTokens) - int32(len(op.IDs))/used
		for i, e := range op.IDs {
			want[routeKey{int32(op.Decode), layers[op.Tensor], first + int32(i)/used, int32(i) % used}] = e
		}
	}
	return want
}
