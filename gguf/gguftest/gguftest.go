// Package gguftest writes small GGUF files for tests. The weights in them are zeros; real values
// come from package experiments/synth.
package gguftest

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"tensorcast/gguf"
)

// Alignment is the alignment of a model's tensors in bytes, unless Model has another.
const Alignment = 32

// Model is the metadata and tensors of a model, written as GGUF version 3, little endian.
type Model struct {
	KVs     []KV
	Tensors []Tensor
	// Sizes are the bytes of tensors, by name. The others have as many as their types say.
	Sizes map[string]int64
	// Alignment is that of the tensors, in bytes; 0 for the usual one. It is written as metadata.
	Alignment int64
	// Cut is how many bytes to leave out at the end.
	Cut int64
}

// KV is a metadata entry. Value is a bool, uint16, uint32, int32, float32, string or a slice of
// int32, float32 or string.
type KV struct {
	Key   string
	Value any
}

// Tensor describes a tensor. Tensors are stored in the order of the model's list.
type Tensor struct {
	Name  string
	Type  gguf.Type
	Shape []int64
}

// Write writes the model to a new file at path. The weights are zeros, stored as a hole that takes
// no disk space.
func (m *Model) Write(tb testing.TB, path string) {
	tb.Helper()
	head, data := m.encode(tb)
	if err := os.WriteFile(path, head, 0o666); err != nil {
		tb.Fatal(err)
	}
	if err := os.Truncate(path, int64(len(head))+data-m.Cut); err != nil {
		tb.Fatal(err)
	}
}

// encode returns the bytes before the weights, and the size of the weights.
func (m *Model) encode(tb testing.TB) (b []byte, data int64) {
	le := binary.LittleEndian
	kvs, alignment := m.KVs, int64(Alignment)
	if m.Alignment > 0 {
		alignment = m.Alignment
		kvs = append(slices.Clip(kvs), KV{"general.alignment", uint32(alignment)})
	}
	roundUp := func(n int64) int64 { return (n + alignment - 1) / alignment * alignment }
	b = le.AppendUint32([]byte("GGUF"), 3)
	b = le.AppendUint64(b, uint64(len(m.Tensors)))
	b = le.AppendUint64(b, uint64(len(kvs)))
	for _, kv := range kvs {
		t, value, err := encodeValue(kv.Value)
		if err != nil {
			tb.Fatalf("%s: %v", kv.Key, err)
		}
		b = appendString(b, kv.Key)
		b = append(le.AppendUint32(b, uint32(t)), value...)
	}
	for _, t := range m.Tensors {
		b = appendString(b, t.Name)
		b = le.AppendUint32(b, uint32(len(t.Shape)))
		for _, n := range t.Shape {
			b = le.AppendUint64(b, uint64(n))
		}
		size, given := m.Sizes[t.Name]
		if !given {
			var err error
			if size, err = t.Type.Bytes(t.Shape); err != nil {
				tb.Fatal(err)
			}
		}
		b = le.AppendUint32(b, t.Type.Number())
		b = le.AppendUint64(b, uint64(data))
		data += roundUp(size)
	}
	if len(m.Tensors) > 0 {
		b = append(b, make([]byte, roundUp(int64(len(b)))-int64(len(b)))...)
	}
	return b, data
}

// encodeValue returns the type and the bytes of a metadata value.
func encodeValue(value any) (t gguf.ValueType, b []byte, err error) {
	le := binary.LittleEndian
	switch v := value.(type) {
	case string:
		return gguf.ValueString, appendString(nil, v), nil
	case []string:
		b = arrayHead(gguf.ValueString, len(v))
		for _, s := range v {
			b = appendString(b, s)
		}
		return gguf.ValueArray, b, nil
	case []int32:
		b, err = binary.Append(arrayHead(gguf.ValueInt32, len(v)), le, v)
		return gguf.ValueArray, b, err
	case []float32:
		b, err = binary.Append(arrayHead(gguf.ValueFloat32, len(v)), le, v)
		return gguf.ValueArray, b, err
	}
	b, err = binary.Append(nil, le, value)
	t = map[string]gguf.ValueType{
		"bool": gguf.ValueBool, "uint16": gguf.ValueUint16, "uint32": gguf.ValueUint32, "int32": gguf.ValueInt32,
		"float32": gguf.ValueFloat32,
	}[fmt.Sprintf("%T", value)]
	return t, b, err
}

// arrayHead encodes an array's type and length.
func arrayHead(elem gguf.ValueType, n int) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, uint32(elem)), uint64(n))
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// MoE returns a mixture-of-experts model whose tensors have every kind of name: attention, router,
// experts with fused and with separate matrices and biases, shared experts, norms.
func MoE(layers int, experts int64) *Model {
	const embd, ffn = 64, 32
	m := &Model{
		KVs: []KV{
			{"general.architecture", "qwen3moe"},
			{"qwen3moe.block_count", uint32(layers)},
			{"qwen3moe.expert_count", uint32(experts)},
			{"qwen3moe.expert_used_count", uint32(2)},
			{"tokenizer.ggml.tokens", []string{"<s>", "</s>", "a", "b"}},
			{"tokenizer.ggml.scores", []float32{0, float32(math.Inf(-1)), 0.5, -1}},
			{"tokenizer.ggml.bos_token_id", uint32(0)},
		},
		Tensors: []Tensor{
			{"token_embd.weight", gguf.Q8_0, []int64{embd, 4}},
			{"output.weight", gguf.Q8_0, []int64{embd, 4}},
			{"output_norm.weight", gguf.F32, []int64{embd}},
		},
	}
	for i := range layers {
		add := func(component string, t gguf.Type, shape ...int64) {
			m.Tensors = append(m.Tensors, Tensor{fmt.Sprintf("blk.%d.%s", i, component), t, shape})
		}
		add("attn_norm.weight", gguf.F32, embd)
		add("attn_q.weight", gguf.Q8_0, embd, embd)
		add("ffn_gate_inp.weight", gguf.F32, embd, experts)
		if i%2 == 0 {
			add("ffn_gate_exps.weight", gguf.Q4_0, embd, ffn, experts)
			add("ffn_up_exps.weight", gguf.Q4_0, embd, ffn, experts)
		} else {
			add("ffn_gate_up_exps.weight", gguf.Q4_0, embd, 2*ffn, experts)
		}
		add("ffn_down_exps.weight", gguf.Q4_0, ffn, embd, experts)
		add("ffn_down_exps.bias", gguf.F32, embd, experts)
		add("ffn_up_shexp.weight", gguf.Q8_0, embd, ffn)
	}
	return m
}
