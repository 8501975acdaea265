package hidden

// This file tests how routers are read: from models of every kind, and from damaged files.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
)

func open(t testing.TB, path string) *gguf.Model {
	t.Helper()
	m, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Everything that decides the choice is read, for each kind of router.
func TestRead(t *testing.T) {
	ids := map[string]string{}
	for name, cfg := range llamatest.Routers() {
		m := open(t, llamatest.Model(t, cfg))
		r, err := ReadRouters(m)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		gate := gateSoftmax
		switch {
		case cfg.Arch == "deepseek4":
			gate = gateSqrtSoftplus
		case cfg.Sigmoid:
			gate = gateSigmoid
		}
		dense := cfg.Layers - len(r.Blocks) // the first layers
		if r.Dim != cfg.Embd || r.Experts != cfg.Experts || r.K != cfg.Used || dense < 0 || dense > 1 ||
			r.Blocks[0] != int32(dense) || r.gate != gate || r.groups != cfg.Groups || r.groupsUsed != cfg.GroupsUsed {
			t.Errorf("%s: %d x %d, %d chosen, blocks %v, gating %d, groups %d %d, want those of %+v and gating %d",
				name, r.Dim, r.Experts, r.K, r.Blocks, r.gate, r.groups, r.groupsUsed, cfg, gate)
		}
		if s := r.Shape(); s.Layers != cfg.Layers-dense || s.Experts != cfg.Experts || s.K != cfg.Used ||
			r.Index(int32(cfg.Layers-1)) != s.Layers-1 || r.Index(int32(cfg.Layers)) != -1 {
			t.Errorf("%s: shape %+v, want that of %+v", name, s, cfg)
		}
		if other, ok := ids[r.ID]; ok || len(r.ID) != 32 {
			t.Errorf("%s has the id %q, want one that %q does not have", name, r.ID, other)
		}
		ids[r.ID] = name
		if r.ignoresShift != (!cfg.Sigmoid && cfg.Arch != "deepseek4" && cfg.Groups == 0) {
			t.Errorf("%s: ignoresShift = %v, want %v", name, r.ignoresShift, !r.ignoresShift)
		}
		w, err := gguf.OpenWeights(m, 1<<28)
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.layers {
			l := &r.layers[i]
			if (l.prefer != nil) != (cfg.Sigmoid || cfg.Arch == "deepseek4" && i >= cfg.Hashed) ||
				(l.bias != nil) != (cfg.Arch == "gpt-oss") || (l.table != nil) != (i < cfg.Hashed) || l.norm == nil ||
				l.attnInverse == nil {
				t.Errorf("%s: layer %d: bias of choice %v, of logits %v, table %v, norms %v %v", name, i,
					l.prefer != nil, l.bias != nil, l.table != nil, l.norm != nil, l.attnInverse != nil)
			}
			h, _ := w.Lookup(fmt.Sprintf("blk.%d.ffn_gate_inp.weight", i+dense))
			f, err := h.Float32()
			if err != nil {
				t.Fatal(err)
			}
			for e := range r.Experts {
				for c := range r.Dim {
					got := float32(l.matrix.q[e*l.matrix.stride+c]) * l.matrix.scale[e]
					if d := got - f.Data[e*r.Dim+c]; max(d, -d) > l.matrix.scale[e]*0.501 {
						t.Fatalf("%s: layer %d, expert %d, column %d: %g, want %g", name, i, e, c, got,
							f.Data[e*r.Dim+c])
					}
				}
			}
			f.Release()
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The memory for the largest models is bounded.
func TestReadBytes(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 48, 2048, 128, 8)
	if n := r.Bytes(); n > 16e6 {
		t.Errorf("48 routers of 128 x 2048 take %d bytes, want at most 16e6", n)
	}
}

func TestReadRefuses(t *testing.T) {
	kv := func(k uint32) []gguftest.KV {
		return []gguftest.KV{{Key: "general.architecture", Value: "llama"}, {Key: "llama.expert_used_count", Value: k}}
	}
	router := func(layer int, shape ...int64) gguftest.Tensor {
		return gguftest.Tensor{Name: fmt.Sprintf("blk.%d.ffn_gate_inp.weight", layer), Type: gguf.F32, Shape: shape}
	}
	vector := func(name string, n int64) gguftest.Tensor {
		return gguftest.Tensor{Name: name, Type: gguf.F32, Shape: []int64{n}}
	}
	with := func(kvs []gguftest.KV, more ...gguftest.KV) []gguftest.KV { return append(slices.Clone(kvs), more...) }
	for name, tc := range map[string]struct {
		m  gguftest.Model
		ok bool
	}{
		"good": {gguftest.Model{
			KVs: kv(2), Tensors: []gguftest.Tensor{router(0, 64, 8), vector("blk.0.ffn_norm.weight", 64)},
		}, true},
		"dense": {gguftest.Model{
			KVs: kv(2), Tensors: []gguftest.Tensor{vector("blk.0.ffn_norm.weight", 64)},
		}, false},
		"no k":        {gguftest.Model{Tensors: []gguftest.Tensor{router(0, 64, 8)}}, false},
		"k too large": {gguftest.Model{KVs: kv(9), Tensors: []gguftest.Tensor{router(0, 64, 8)}}, false},
		"unlike": {gguftest.Model{
			KVs: kv(2), Tensors: []gguftest.Tensor{router(0, 64, 8), router(1, 64, 16)},
		}, false},
		"three dimensions": {gguftest.Model{KVs: kv(2), Tensors: []gguftest.Tensor{router(0, 64, 8, 2)}}, false},
		"norm": {gguftest.Model{
			KVs: kv(2), Tensors: []gguftest.Tensor{router(0, 64, 8), vector("blk.0.ffn_norm.weight", 32)},
		}, false},
		"bias": {gguftest.Model{
			KVs: kv(2), Tensors: []gguftest.Tensor{router(0, 64, 8), vector("blk.0.exp_probs_b.bias", 9)},
		}, false},
		"gating": {gguftest.Model{
			KVs:     with(kv(2), gguftest.KV{Key: "llama.expert_gating_func", Value: uint32(9)}),
			Tensors: []gguftest.Tensor{router(0, 64, 8)},
		}, false},
		"groups": {gguftest.Model{
			KVs: with(kv(2), gguftest.KV{Key: "llama.expert_group_count", Value: uint32(3)},
				gguftest.KV{Key: "llama.expert_group_used_count", Value: uint32(1)}),
			Tensors: []gguftest.Tensor{router(0, 64, 8)},
		}, false},
		"wide": {gguftest.Model{KVs: kv(2), Tensors: []gguftest.Tensor{router(0, 1<<17, 8)}}, false},
		"table": {gguftest.Model{
			KVs: kv(2),
			Tensors: []gguftest.Tensor{
				router(0, 64, 8), {Name: "blk.0.ffn_gate_tid2eid.weight", Type: gguf.I32, Shape: []int64{3, 10}},
			},
		}, false},
	} {
		path := filepath.Join(t.TempDir(), "m.gguf")
		tc.m.Write(t, path)
		r, err := ReadRouters(open(t, path))
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, ErrNoRouters) {
			t.Errorf("%s: error %v, want success: %v", name, err, tc.ok)
		}
		if tc.ok && (len(r.Blocks) != 1 || r.layers[0].inverse[0] != 0) { // all weights are 0
			t.Errorf("%s: routers %+v, want one without reciprocals", name, r)
		}
	}
}

// A dense model has no routers.
func TestReadOfLess(t *testing.T) {
	dense := synth.Config{Layers: 1, Embd: 64, FF: 64, Heads: 2, KVHeads: 2, Type: gguf.Q8_0}
	if _, err := ReadRouters(open(t, llamatest.Model(t, dense))); !errors.Is(err, ErrNoRouters) {
		t.Errorf("a dense model: error %v, want %v", err, ErrNoRouters)
	}
}

// A router with a bias for the choice compares sigmoids if the file does not say how. An expert that does
// not exist is refused, and so is a value that is not finite.
func TestReadValues(t *testing.T) {
	m := gguftest.Model{
		KVs: []gguftest.KV{
			{Key: "general.architecture", Value: "llama"},
			{Key: "llama.expert_used_count", Value: uint32(2)},
		},
		Tensors: []gguftest.Tensor{
			{Name: "blk.0.ffn_gate_inp.weight", Type: gguf.F32, Shape: []int64{64, 8}},
			{Name: "blk.0.exp_probs_b.bias", Type: gguf.F32, Shape: []int64{8}},
			{Name: "blk.0.ffn_gate_tid2eid.weight", Type: gguf.I32, Shape: []int64{2, 10}},
		},
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	m.Write(t, path)
	r, err := ReadRouters(open(t, path))
	if err != nil || r.gate != gateSigmoid || r.ignoresShift || len(r.layers[0].table) != 20 {
		t.Fatalf("error %v, routers %+v, want sigmoids and a table of 20", err, r)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]uint32{
		"blk.0.ffn_gate_tid2eid.weight": 8, "blk.0.exp_probs_b.bias": math.Float32bits(float32(math.Inf(1))),
		"blk.0.ffn_gate_inp.weight": math.Float32bits(float32(math.NaN())),
	} {
		at, _ := open(t, path).Lookup(name)
		bad := slices.Clone(whole)
		binary.LittleEndian.PutUint32(bad[at.Tensor.Offset+4:], value)
		other := filepath.Join(t.TempDir(), "bad.gguf")
		if err := os.WriteFile(other, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadRouters(open(t, other)); !errors.Is(err, ErrNoRouters) {
			t.Errorf("%s: error %v, want %v", name, err, ErrNoRouters)
		}
	}
}

// Weights that are too small to divide by count as 0.
func TestInverse(t *testing.T) {
	inv := reciprocals([]float32{1, -2, 0, 1e-9, 0.5})
	if !slices.Equal(inv, []float32{1, -0.5, 0, 0, 2}) || reciprocals(nil) != nil {
		t.Errorf("reciprocals %v, want 1, -0.5, 0, 0, 2, and none of nil", inv)
	}
	if math.Abs(float64(rms([]float32{3, 4, 0, 0}))-2.5) > 1e-6 {
		t.Errorf("rms = %g, want 2.5", rms([]float32{3, 4, 0, 0}))
	}
	if b := rmsBound([]float32{1, -2}, []float32{0.5, 0}); b < 20 || b > 21 || rmsBound(nil, nil) != 0 {
		t.Errorf("rmsBound = %g, want 20 to 21, and 0 of nil", b)
	}
}
