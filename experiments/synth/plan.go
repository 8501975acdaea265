package synth

// This file lists a model's tensors in file order, with the distribution of their values.

import (
	"fmt"
	"math"

	"tensorcast/gguf"
)

// Tensor is one tensor of a Plan.
type Tensor struct {
	Name   string
	Type   gguf.Type
	Shape  []int64 // fastest dimension first, as in the file
	Offset int64   // of its first byte in the file
	Size   int64   // in bytes, without padding

	spans []span
}

// Plan describes a model completely; it can be written. It is immutable and may be used by several goroutines.
type Plan struct {
	// Config is the configuration that the plan was made from, with defaults filled in.
	Config Config
	// Tensors are in file order.
	Tensors []Tensor
	// Size is the size of the whole file in bytes.
	Size int64

	header []byte
}

// By how much some matrices differ from unit gain (see layerTensors and vocabSpans).
const (
	queryKeyGain = 2
	logitStd     = 4
	damping      = 1. / 16
)

// NewPlan checks cfg and lays out the file. If the model is impossible, the error is a *ConfigError.
func NewPlan(cfg Config) (*Plan, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	p := &Plan{Config: cfg, Tensors: modelTensors(cfg)}
	if err := setSizes(p.Tensors); err != nil {
		return nil, err
	}
	offset := int64(0)
	for i := range p.Tensors {
		t := &p.Tensors[i]
		t.Offset = offset
		offset = align(offset + t.Size)
	}
	p.header = header(cfg, p.Tensors)
	for i := range p.Tensors {
		p.Tensors[i].Offset += int64(len(p.header))
	}
	p.Size = offset + int64(len(p.header))
	return p, nil
}

// setSizes sets the tensors' Size.
func setSizes(ts []Tensor) error {
	for i := range ts {
		t := &ts[i]
		row, err := t.Type.RowBytes(t.Shape[0])
		if err != nil {
			return fmt.Errorf("lay out %s: %w", t.Name, err)
		}
		t.Size = row
		for _, n := range t.Shape[1:] {
			t.Size *= n // cannot overflow: see maxDim
		}
	}
	return nil
}

// modelTensors lists the tensors in the order in which llama.cpp's converter and quantiser write them: the vocabulary's first, then layer
// by layer in alphabetical order. So file order is not access order (for example, ffn_down precedes ffn_up).
func modelTensors(cfg Config) []Tensor {
	ts := vocabTensors(cfg)
	for l := range cfg.Layers {
		ts = append(ts, layerTensors(cfg, l)...)
	}
	return ts
}

// vocabTensors lists the tensors that belong to no layer.
func vocabTensors(cfg Config) []Tensor {
	n, vocab := int64(cfg.Embd), int64(cfg.Vocab)
	outStd := logitStd / math.Sqrt(float64(n))
	// A row of the embedding is the initial content of the residual stream: with a standard deviation of 1 it is as large as what the
	// layers add to it.
	const embdStd = 1
	if !cfg.Tied {
		return []Tensor{
			{Name: "output.weight", Type: cfg.Type, Shape: []int64{n, vocab}, spans: vocabSpans(cfg, outStd)},
			normTensor("output_norm.weight", n),
			matrix("token_embd.weight", cfg.Type, embdStd, n, vocab),
		}
	}
	// At the end, the residual stream still contains the token's own embedding, so a tied model would repeat the same token. Random signs
	// of the last norm's weights prevent this; their size determines the size of the logits.
	return []Tensor{
		{Name: "output_norm.weight", Type: gguf.F32, Shape: []int64{n},
			spans: []span{{elems: n, mean: float32(outStd), std: float32(outStd * normStd), randomSign: true}}},
		{Name: "token_embd.weight", Type: cfg.Type, Shape: []int64{n, vocab}, spans: vocabSpans(cfg, embdStd)},
	}
}

// layerTensors lists the tensors of layer l. The values of a matrix have the standard deviation gain/sqrt(fan-in), so that inputs of unit
// size (which the norms produce) give outputs of size gain. Gains are 1, except that queries and keys are a little larger: attention must
// prefer some tokens, otherwise all late positions would see the same average of the context, and the text would fall into a short cycle.
func layerTensors(cfg Config, l int) []Tensor {
	n, ff := int64(cfg.Embd), int64(cfg.FF)
	kv := n / int64(cfg.Heads) * int64(cfg.KVHeads)
	name := func(component string) string { return fmt.Sprintf("blk.%d.%s.weight", l, component) }
	unit, unitFF := 1/math.Sqrt(float64(n)), 1/math.Sqrt(float64(ff))
	ts := []Tensor{
		matrix(name("attn_k"), cfg.Type, queryKeyGain*unit, n, kv),
		normTensor(name("attn_norm"), n),
		matrix(name("attn_output"), cfg.Type, unit, n, n),
		matrix(name("attn_q"), cfg.Type, queryKeyGain*unit, n, n),
		matrix(name("attn_v"), cfg.Type, unit, n, kv),
	}
	if cfg.Experts == 0 {
		return append(ts,
			matrix(name("ffn_down"), cfg.Type, unitFF, ff, n),
			matrix(name("ffn_gate"), cfg.Type, unit, n, ff),
			normTensor(name("ffn_norm"), n),
			matrix(name("ffn_up"), cfg.Type, unit, n, ff))
	}
	experts := int64(cfg.Experts)
	return append(ts,
		matrix(name("ffn_down_exps"), cfg.Type, unitFF, ff, n, experts),
		matrix(name("ffn_gate_exps"), cfg.Type, unit, n, ff, experts),
		// The router is F32, as in real files. Its scores are N(0, 1): no expert is preferred in general, and the chosen ones have
		// different weights.
		matrix(name("ffn_gate_inp"), gguf.F32, unit, n, experts),
		normTensor(name("ffn_norm"), n),
		matrix(name("ffn_up_exps"), cfg.Type, unit, n, ff, experts))
}

// matrix returns a tensor of values with mean 0.
func matrix(name string, typ gguf.Type, std float64, shape ...int64) Tensor {
	elems := int64(1)
	for _, n := range shape {
		elems *= n
	}
	return Tensor{Name: name, Type: typ, Shape: shape, spans: []span{{elems: elems, std: float32(std)}}}
}

// normStd is the standard deviation of a norm's weights from 1.
const normStd = 0.05

func normTensor(name string, n int64) Tensor {
	return Tensor{Name: name, Type: gguf.F32, Shape: []int64{n}, spans: []span{{elems: n, mean: 1, std: normStd}}}
}

// vocabSpans is the distribution of the matrix that computes the logits, with one row per token. Logits are N(0, logitStd), except that the
// rows of control tokens and of bytes that are neither printable ASCII nor line feeds are scaled down: their logits stay near 0, far below
// the largest of about a hundred others. So the text is readable ASCII, and </s> does not end it early, though it remains possible, as in a
// real model (a probability of about 1e-4 per token at temperature 1).
func vocabSpans(cfg Config, std float64) []span {
	var spans []span
	for id := range cfg.Vocab {
		s := span{elems: int64(cfg.Embd), std: float32(std)}
		if b := id - firstByte; id < ByteVocab && b != '\n' && (b < ' ' || b > '~') {
			s.std = float32(std * damping)
		}
		if last := len(spans) - 1; last >= 0 && spans[last].std == s.std {
			spans[last].elems += s.elems
		} else {
			spans = append(spans, s)
		}
	}
	return spans
}
