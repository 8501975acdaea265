package confine

// This file tests what is taken from a capture, on captures whose content is known.

import (
	"reflect"
	"strings"
	"testing"

	"tensorcast/trace"
	"tensorcast/trace/tables"
	"tensorcast/trace/tracetest"
)

func plantWeights(t *testing.T, rows []tables.StructureRow, steps ...[]tables.Access) *trace.Capture {
	t.Helper()
	dir := t.TempDir()
	meta := &tables.Meta{Models: []tables.ModelInfo{{Path: "/m.gguf", Bytes: 1e6,
		Fingerprint: "00112233445566778899aabbccddeeff"}}}
	w, err := trace.Create(dir, meta, rows)
	if err != nil {
		t.Fatal(err)
	}
	for step, accesses := range steps {
		for i, a := range accesses {
			a.Step, a.Token, a.Timestamp, a.Duration, a.Stall = int32(step), int32(step)-1, int64(step*1000+i), 1,
				tables.NotObserved
			a.Phase, a.Offset = tables.PhaseGeneration, a.Offset+rows[a.Tensor].Offset
			if step == 0 {
				a.Phase = tables.PhasePrompt
			}
			if err := w.Access(&a); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(meta, true); err != nil {
		t.Fatal(err)
	}
	c, err := trace.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCountWeights(t *testing.T) {
	rows := []tables.StructureRow{
		{Name: "token_embd.weight", Offset: 1000, Size: 6400, Shape: []int64{16, 100}, File: "m.gguf"},
		{Name: "blk.0.attn_norm.weight", Offset: 8000, Size: 64, Shape: []int64{16}, File: "m.gguf"},
		{Name: "blk.0.ffn_up_exps.weight", Offset: 9000, Size: 8000, Shape: []int64{10, 25, 8}, Experts: 8,
			ExpertStride: 1000, File: "m.gguf"},
		{Name: "output.weight", Offset: 20000, Size: 6400, Shape: []int64{16, 100}, File: "m.gguf"},
		{Name: "unread.weight", Offset: 30000, Size: 6400, Shape: []int64{16, 100}, File: "m.gguf"},
	}
	embed := tables.Access{Tensor: 0, Op: "GET_ROWS", Bytes: 64}
	norm := tables.Access{Tensor: 1, Op: "MUL", Bytes: 64}
	experts := tables.Access{Tensor: 2, Op: "MUL_MAT_ID", Bytes: 2000, Experts: []int32{3, 5}}
	output := tables.Access{Tensor: 3, Op: "MUL_MAT", Bytes: 6400}
	tied := tables.Access{Tensor: 0, Op: "MUL_MAT", Bytes: 6400}
	all := experts
	all.Bytes, all.Experts = 8000, []int32{0, 1, 2, 3, 4, 5, 6, 7}
	for name, tc := range map[string]struct {
		prompt, token []tables.Access
		want          Weights
	}{
		"dense": {[]tables.Access{embed, norm, output}, []tables.Access{embed, norm, output},
			Weights{TokenBytes: 64 + 64 + 6400, Trunk: 64 + 64 + 6400, Extents: []Extent{{8000, 64}, {20000, 6400}}}},
		"experts": {[]tables.Access{embed, norm, all, output}, []tables.Access{embed, norm, experts, output}, Weights{
			TokenBytes: 64 + 64 + 2000 + 6400, Routed: true, Trunk: 64 + 64 + 6400,
			Extents: []Extent{{8000, 64}, {9000, 8000}, {20000, 6400}},
		}},
		"tied embeddings, a weight twice": {[]tables.Access{tied}, []tables.Access{embed, norm, norm, tied},
			Weights{TokenBytes: 64 + 6400, Trunk: 64 + 6400, Extents: []Extent{{8000, 64}, {1000, 6400}}}},
	} {
		t.Run(name, func(t *testing.T) {
			// the last token lacks a read
			got, err := countWeights(plantWeights(t, rows, tc.prompt, tc.token, tc.token, tc.token[1:]))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}

	for name, tc := range map[string]struct {
		c    *trace.Capture
		want string
	}{
		"no token": {plantWeights(t, rows, []tables.Access{embed}), "the target generated no token"},
		"nothing":  {plantWeights(t, rows), "the target generated no token"},
		"split": {plantWeights(t, append(rows[:4:4], tables.StructureRow{Name: "x", File: "m-2.gguf"}),
			[]tables.Access{embed}), "split in 2 files"},
	} {
		if _, err := countWeights(tc.c); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
	}
}

// The routes are those of the tokens, without the warm-up. The trunk is everything except experts.
func TestRoutes(t *testing.T) {
	dir := t.TempDir()
	if err := tracetest.Write(dir, tracetest.Options{}); err != nil {
		t.Fatal(err)
	}
	c, err := trace.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range c.Structure { // all in one file
		c.Structure[i].File = c.Structure[0].File
	}
	w, err := countWeights(c)
	if err != nil {
		t.Fatal(err)
	}
	if w.Routes == nil {
		t.Fatalf("%+v, want routes", w)
	}
	chosen := int64(0)
	for _, l := range w.Routes.Layers {
		chosen += l.Bytes * int64(w.Routes.K)
	}
	if !w.Routed || w.Routes.Experts != 8 || len(w.Routes.Tokens) == 0 || w.Routes.FirstDecode() != 1 ||
		w.TokenBytes != w.Trunk+chosen {
		t.Errorf("%+v: %d bytes of experts a token", w, chosen)
	}
}
