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

// routePlace is where a route belongs.
type routePlace struct{ step, layer, position, slot int32 }

// TestRoutes: the experts of every token of the prompt and of the generation are recorded, in every layer and slot, whatever kind of router
// chose them.
func TestRoutes(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	for name, cfg := range llamatest.Routers() {
		t.Run(name, func(t *testing.T) {
			o := llama.Options{Model: llamatest.Model(t, cfg), Prompt: "the brown fox", Tokens: 5, Threads: 1, NoRepack: true, Ops: filepath.Join(t.TempDir(), "ops")}
			if _, err := in.Run(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			ops, err := llama.ReadOps(o.Ops)
			if err != nil {
				t.Fatal(err)
			}
			o.Ops = "" // the callback that the ground truth needs must not be what makes them agree
			c, _ := traced(t, in, o)
			want := routesOf(c, ops, int32(cfg.Used))
			got := map[routePlace]int32{}
			for r, err := range c.Routes() {
				if err != nil {
					t.Fatal(err)
				}
				p := routePlace{r.Step, r.Layer, r.Position, r.Slot}
				if e, ok := want[p]; !ok || e != r.Expert {
					t.Fatalf("%+v is expert %d, the ground truth has %d, %v", p, r.Expert, e, ok)
				}
				if _, ok := got[p]; ok {
					t.Fatalf("%+v twice", p)
				}
				got[p] = r.Expert
			}
			if len(got) != len(want) || len(want) == 0 {
				t.Errorf("%d routes, want %d", len(got), len(want))
			}
		})
	}
}

// routesOf returns the routes of the ground truth. All matrices of a layer's experts go by the same ones.
func routesOf(c *trace.Capture, ops []llama.Op, used int32) map[routePlace]int32 {
	layers := map[string]int32{}
	for _, s := range c.Structure {
		layers[s.Name] = s.Layer
	}
	want := map[routePlace]int32{}
	for _, op := range ops {
		if op.Warmup || !strings.HasSuffix(op.Tensor, "ffn_down_exps.weight") {
			continue
		}
		first := int32(op.NTokens) - int32(len(op.IDs))/used // the last layer may compute only the prompt's last token
		for i, e := range op.IDs {
			want[routePlace{int32(op.Decode), layers[op.Tensor], first + int32(i)/used, int32(i) % used}] = e
		}
	}
	return want
}
