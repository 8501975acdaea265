package geometry

// This file tests what is read of a model's file, and that the recorded sessions are those of the traces.

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/testenv"
	"tensorcast/moe"
	"tensorcast/moe/replay"
)

func open(t *testing.T, m *gguftest.Model) *gguf.Model {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	m.Write(t, path)
	opened, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// The geometry is that of the file: layers, experts, what a token chooses, bytes of both kinds.
func TestOf(t *testing.T) {
	m := open(t, gguftest.MoE(3, 128))
	g, ok := Of(m)
	var experts, rest int64
	for _, tensor := range m.Files[0].Tensors {
		switch {
		case strings.Contains(tensor.Name, "_exps."):
			experts += tensor.Size
		case tensor.Name != "token_embd.weight": // a token reads a row of it
			rest += tensor.Size
		}
	}
	if want := (Geometry{Layers: 3, Experts: 128, Chosen: 2, Bytes: experts, Rest: rest}); !ok || g != want {
		t.Errorf("%+v, %v, want %+v", g, ok, want)
	}
	if got := g.TokenBytes(); got != experts/64 {
		t.Errorf("a token reads %d bytes, want %d", got, experts/64)
	}
	dense := &gguftest.Model{Tensors: []gguftest.Tensor{
		{Name: "blk.0.attn_q.weight", Type: gguf.F32, Shape: []int64{8, 8}},
	}}
	if g, ok := Of(open(t, dense)); ok {
		t.Errorf("a dense model has %+v", g)
	}
	// What the file says of the choice is not believed where it is impossible.
	lies := gguftest.MoE(1, 4)
	for i := range lies.KVs {
		if lies.KVs[i].Key == "qwen3moe.expert_used_count" {
			lies.KVs[i].Value = uint32(5)
		}
	}
	if g, ok := Of(open(t, lies)); !ok || g.Chosen != 0 || strings.Contains(g.Sentence(g.With(g.Bytes/3)), "a token") {
		t.Errorf("%+v, want that it is not known how many a token chooses", g)
	}
}

// The range has random routing at its one end and the recorded sessions at the other.
func TestRange(t *testing.T) {
	g := Geometry{Layers: 48, Experts: 128, Chosen: 8, Bytes: 16 << 30}
	for _, share := range []float64{-1, 0, 0.05, 0.4, 0.77, 0.95, 1, 3} {
		r := g.With(int64(share * float64(g.Bytes)))
		want := min(max(share, 0), 1)
		if math.Abs(r.Uniform-want) > 1e-9 || r.Share != r.Uniform || !r.Alike || len(r.Recorded) != len(sessions) {
			t.Errorf("%g: %+v", share, r)
		}
		for _, s := range r.Recorded {
			if s.HitRate < r.Uniform-1e-9 || s.HitRate > 1 {
				t.Errorf("%g: %s finds %.3f, random routing %.3f", share, s.Model, s.HitRate, r.Uniform)
			}
		}
	}
	for _, tc := range []struct {
		geometry Geometry
		memory   int64
		says     []string
	}{
		{g, 4 << 30, []string{"a token chooses 8 of 128 experts in each of 48 layers; with 25 % of them in memory " +
			"(4.0 GiB of 16 GiB) 25 % of the choices are found there if routing is random, and 78 % to 81 % as in recorded " +
			"sessions of gpt-oss-120b and Qwen3-30B-A3B: a token reads 768 MiB or 194 MiB"}},
		{g, 20 << 30, []string{"all 16 GiB of them fit in 20 GiB"}},
		{Geometry{Layers: 48, Experts: 512, Chosen: 10, Bytes: 40 << 30}, 4 << 30,
			[]string{"10 of 512", "(which have other numbers of experts)"}},
	} {
		got := tc.geometry.Sentence(tc.geometry.With(tc.memory))
		for _, part := range tc.says {
			if !strings.Contains(got, part) {
				t.Errorf("no %q in %q", part, got)
			}
		}
	}
}

// The recorded hit rates are what a replay of the traces finds.
func TestRecorded(t *testing.T) {
	for i, name := range []string{"qwen", "gptoss"} {
		tr, err := moe.ReadCSV(testenv.OpenShared(t, "data", "moe-routes", name+".route.csv.gz"))
		if err != nil {
			t.Fatal(err)
		}
		l, err := replay.NewLocality(t.Context(), tr, replay.Options{Workers: 2})
		if err != nil {
			t.Fatal(err)
		}
		s := sessions[i]
		if !strings.Contains(tr.Model, s.model) || tr.Experts != s.experts || len(l.Rows) != len(s.hits) {
			t.Errorf("%s with %d experts, want %+v", tr.Model, tr.Experts, s)
		}
		for at, r := range l.Rows {
			if math.Abs(r.Prefetchd.HitRate-s.hits[at]) > 0.0005 {
				t.Errorf("%s with %.0f %% in memory: %.3f, and %.3f is noted", s.model, 100*r.Share,
					r.Prefetchd.HitRate, s.hits[at])
			}
		}
	}
}
