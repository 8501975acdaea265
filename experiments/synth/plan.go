package synth

// This file lists a model's tensors in file order, with the distribution of their values.

import (
	"context"
	"fmt"
	"math"
	"slices"

	"tensorcast/gguf"
)

// Tensor is one tensor of a Plan.
type Tensor struct {
	Name   string
	Type   gguf.Type
	Shape  []int64 // fastest dimension first, as in the file
	Offset int64   // offset of the first byte in the file
	Size   int64   // in bytes, without padding

	spans []span
	// rows makes a function that computes the tensor's values, row by row; nil: they are random, as spans
	// say.
	rows func() rowMaker
}

// rowMaker computes a row of a tensor: all elements along its fastest dimension.
type rowMaker func(number int64, row []float32)

// Plan describes a model completely; it can be written. It is immutable and may be used by several goroutines.
type Plan struct {
	// Config is the configuration that the plan was made from, with defaults filled in.
	Config Config
	// Tensors are in file order.
	Tensors []Tensor
	// Size is the size of the whole file in bytes.
	Size int64
	// Routing is what was planted of Config.Routes; nil if there are none.
	Routing *Routing

	header []byte
}

// These factors are by how much some matrices differ from unit gain (see layerTensors and
// vocabSpans).
const (
	queryKeyGain = 2
	logitStd     = 4
	damping      = 1. / 16
)

// NewPlan is NewPlanContext for a plan that is made at once: one without Config.Routes, or with a small
// trace.
func NewPlan(cfg Config) (*Plan, error) { return NewPlanContext(context.Background(), cfg) }

// NewPlanContext checks cfg and lays out the file. If the model is impossible, the error is a
// *ConfigError. With Config.Routes it takes about a second for a trace of 150 tokens and 48 layers, and
// half a minute for one of 1000 tokens. When ctx ends meanwhile, it returns the context's cause. The plan then
// has 8 bytes for each token of the trace, expert and layer.
func NewPlanContext(ctx context.Context, cfg Config) (*Plan, error) {
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
	if cfg.Routes != nil {
		var err error
		if p.Routing, err = newRouting(ctx, cfg); err != nil {
			return nil, err
		}
		p.Routing.plant(p.Tensors)
	}
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

// modelTensors lists the tensors in the order in which llama.cpp's converter and quantiser write
// them: first those of the vocabulary, then layer by layer in alphabetical order. So file order is
// not access order (for example, ffn_down precedes ffn_up).
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
	// A row of the embedding is the initial content of the residual stream: with a standard
	// deviation of 1 it is as large as what the layers add to it.
	embdStd := 1.
	if cfg.Arch == gemma4Arch { // llama.cpp multiplies it by the root of the width
		embdStd = 1 / math.Sqrt(float64(n))
	}
	if !cfg.Tied {
		ts := []Tensor{
			{Name: "output.weight", Type: cfg.vocabType(), Shape: []int64{n, vocab}, spans: vocabSpans(cfg, outStd)},
			{Name: "output_norm.weight", Type: gguf.F32, Shape: []int64{n},
				spans: []span{{elems: n, mean: 1, std: normStd}}},
			{Name: "token_embd.weight", Type: cfg.vocabType(), Shape: []int64{n, vocab},
				spans: []span{{elems: n * vocab, std: float32(embdStd)}}},
		}
		if graphs[cfg.Arch].table {
			ts = slices.Insert(ts, 2, tableTensors(cfg)...)
		}
		if cfg.Arch == deepseek4Arch { // at the end the streams become one
			ts = append(ts,
				Tensor{Name: "output_hc_base.weight", Type: gguf.F32, Shape: []int64{streams},
					spans: []span{{elems: streams, std: 0.5}}},
				Tensor{Name: "output_hc_fn.weight", Type: gguf.F32, Shape: []int64{streams * n, streams},
					spans: []span{{elems: streams * n * streams, std: float32(1 / math.Sqrt(float64(streams*n)))}}},
				Tensor{Name: "output_hc_scale.weight", Type: gguf.F32, Shape: []int64{1},
					spans: []span{{elems: 1, mean: 1, std: normStd}}})
		}
		return ts
	}
	// At the end, the residual stream still contains the token's own embedding, so a tied model
	// would repeat the same token. Random signs of the last norm's weights prevent this; their size
	// determines the size of the logits.
	outStd /= embdStd
	ts := []Tensor{
		{Name: "output_norm.weight", Type: gguf.F32, Shape: []int64{n},
			spans: []span{{elems: n, mean: float32(outStd), std: float32(outStd * normStd), randomSign: true}}},
		{Name: "token_embd.weight", Type: cfg.Type, Shape: []int64{n, vocab}, spans: vocabSpans(cfg, embdStd)},
	}
	if graphs[cfg.Arch].table {
		ts = slices.Insert(ts, 1, tableTensors(cfg)...)
	}
	return ts
}

// tableTensors lists the table of which each layer reads a part of the token's row, and what llama.cpp makes of
// the token's embedding to be added to that. The rows are multiplied by the root of a part's width.
func tableTensors(cfg Config) []Tensor {
	n, part, all := int64(cfg.Embd), int64(cfg.PerLayer), int64(cfg.PerLayer)*int64(cfg.Layers)
	half := int64(cfg.Embd / cfg.Heads / 2)
	return []Tensor{
		{Name: "per_layer_model_proj.weight", Type: cfg.Type, Shape: []int64{n, all},
			spans: []span{{elems: n * all, std: float32(1 / math.Sqrt(float64(n)))}}},
		{Name: "per_layer_proj_norm.weight", Type: gguf.F32, Shape: []int64{part},
			spans: []span{{elems: part, mean: 1, std: normStd}}},
		{Name: "per_layer_token_embd.weight", Type: cfg.Type, Shape: []int64{all, int64(cfg.Vocab)},
			spans: []span{{elems: all * int64(cfg.Vocab), std: float32(1 / math.Sqrt(float64(part)))}}},
		{Name: "rope_freqs.weight", Type: gguf.F32, Shape: []int64{half}, spans: []span{{elems: half, mean: 1}}},
	}
}

// vocabType is the type of the matrices with a row per token. Those of a planted trace have other values
// than random ones, so they are of one of the types that rows are encoded in (see appendRow).
func (c Config) vocabType() gguf.Type {
	if c.Routes != nil && c.Type != gguf.F32 && c.Type != gguf.F16 {
		return gguf.Q8_0
	}
	return c.Type
}

// normStd is the standard deviation of a norm's weights from 1.
const normStd = 0.05

// vocabSpans is the distribution of the matrix that computes the logits, with one row per token.
// Logits are N(0, logitStd), except that the rows of control tokens, and of bytes that are neither
// printable ASCII nor line feeds, are scaled down. Their logits stay near 0, far below the largest
// of about a hundred others. So the text is readable ASCII, and </s> does not end it early. It
// remains possible, as in a real model (a probability of about 1e-4 per token at temperature 1).
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
