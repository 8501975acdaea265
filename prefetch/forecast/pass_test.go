package forecast

// This file tests what is found out from a model's file.

import (
	"errors"
	"path/filepath"
	"testing"

	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
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

func tensor(name string, of gguf.Type, shape ...int64) gguftest.Tensor {
	return gguftest.Tensor{Name: name, Type: of, Shape: shape}
}

// Of a dense model a token reads all but the rows of its table, and context takes what keys and values have.
func TestPassOfDense(t *testing.T) {
	p, err := PassOf(open(t, &gguftest.Model{Tensors: []gguftest.Tensor{
		tensor("token_embd.weight", gguf.Q8_0, 64, 100),
		tensor("blk.0.attn_q.weight", gguf.Q8_0, 64, 64),
		tensor("blk.0.attn_k.weight", gguf.Q8_0, 64, 16),
		tensor("blk.0.attn_v.weight", gguf.F16, 64, 16),
		tensor("blk.1.attn_qkv.weight", gguf.Q8_0, 64, 96),
		tensor("blk.1.attn_output.weight", gguf.Q8_0, 64, 64),
		tensor("output.weight", gguf.F32, 64, 100),
	}}))
	if err != nil {
		t.Fatal(err)
	}
	const q8 = (64 + 16 + 96 + 64) * 64 / 32 * 34
	if p.Experts != nil || p.Layers != 2 || p.Trunk != q8+2*64*16+4*64*100 || p.Weights() != p.Trunk {
		t.Errorf("%+v, want a trunk of %d bytes", p, q8+2*64*16+4*64*100)
	}
	if len(p.Types) != 3 || p.Types[0].Name != "F32" || p.Types[1].Bytes != q8 || p.Types[1].Elements != q8/34*32 {
		t.Errorf("%+v", p.Types)
	}
	if want := int64(2 * (16 + 16 + 96 - 64)); p.Context != want {
		t.Errorf("%d bytes for a token of context, want %d", p.Context, want)
	}
}

// Of a mixture a token reads the experts that it chooses.
func TestPassOfMixture(t *testing.T) {
	m := open(t, gguftest.MoE(3, 128))
	p, err := PassOf(m)
	if err != nil {
		t.Fatal(err)
	}
	var read float64
	for _, w := range p.Types {
		read += w.Bytes
	}
	e := p.Experts
	if e == nil || e.Chosen != 2 || e.Layers != 3 || p.Trunk != e.Rest || p.Weights() != e.Rest+e.Bytes {
		t.Fatalf("%+v, %+v", p, e)
	}
	if want := float64(e.Rest) + e.Token(); read < 0.999*want || read > 1.001*want {
		t.Errorf("a token reads %.0f bytes, want %.0f", read, want)
	}
	if whole := e.Slice * int64(e.Slices) * int64(e.Layers*e.Geometry.Experts); e.Slices < 2 || whole > e.Bytes ||
		whole < e.Bytes*9/10 {
		t.Errorf("%d slices of %d bytes: %d in all, want %d", e.Slices, e.Slice, whole, e.Bytes)
	}
	one, two, all := p.union(1), p.union(2), p.union(1e6)
	if one != 1 || two <= 1.9 || two >= 2 || all > 64.001 || all < 63.9 {
		t.Errorf("one token chooses %g times what one does, two %g, very many %g", one, two, all)
	}
}

// What a file does not say is an error, and not a guess.
func TestPassOfRefused(t *testing.T) {
	silent := gguftest.MoE(1, 4)
	for i := range silent.KVs {
		if silent.KVs[i].Key == "qwen3moe.expert_used_count" {
			silent.KVs[i].Value = uint32(0)
		}
	}
	for name, tc := range map[string]struct {
		model *gguftest.Model
		want  error
	}{
		"it is not said how many are chosen": {silent, ErrExperts},
		"experts with tensors of their own": {&gguftest.Model{Tensors: []gguftest.Tensor{
			tensor("blk.0.ffn_up.3.weight", gguf.F32, 8, 8)}}, ErrExperts},
		"a table alone": {&gguftest.Model{Tensors: []gguftest.Tensor{
			tensor("output.weight", gguf.F32, 8, 0), tensor("token_embd.weight", gguf.F32, 8, 8)}}, ErrNoWeights},
	} {
		if p, err := PassOf(open(t, tc.model)); !errors.Is(err, tc.want) {
			t.Errorf("%s: %+v, %v; want %v", name, p, err, tc.want)
		}
	}
}
