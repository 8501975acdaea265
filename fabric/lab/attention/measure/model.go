package measure

// This file computes keys, values and queries of a trained model with a forward pass of the llama
// architecture. It uses package vec.

import (
	"errors"
	"fmt"
	"math"

	"tensorcast/fabric/lab/attention"
	"tensorcast/gguf"
	"tensorcast/internal/vec"
)

// byteToken is the token of byte 0 in a byte-level vocabulary, which begins with <unk>, <s> and </s>.
const byteToken = 3

// Model returns the keys, values and newest queries that the model in the GGUF file at path
// computes for text. The text is split into windows of positions - 1 bytes, which with <s> are
// positions tokens each. A head of the workload is a head of a layer in a window. Model also
// returns the mean cross-entropy of the bytes in nats, which shows whether the model can handle
// that many positions.
//
// It supports models of the llama architecture without biases, experts and scaled positions, with a
// byte-level vocabulary, in any type that package gguf decodes.
func Model(path string, text []byte, positions, windows int) (w *Workload, nats float64, err error) {
	m, err := openModel(path)
	if err != nil {
		return nil, 0, fmt.Errorf("read the model %s: %w", path, err)
	}
	if len(text) < windows*(positions-1) {
		return nil, 0, fmt.Errorf("a text of %d bytes for %d windows of %d positions", len(text), windows, positions)
	}
	w = &Workload{Name: "model", Dim: m.dim, Positions: positions, Group: m.heads / m.kvHeads}
	for i := range windows {
		n, err := m.runWindow(w, text[i*(positions-1):][:positions-1])
		if err != nil {
			return nil, 0, err
		}
		nats += n / float64(windows)
	}
	return w, nats, nil
}

type model struct {
	heads, kvHeads, dim, embd int
	eps                       float32
	frequencies               []float64 // angle per position of each pair of a head's elements, radians
	embedding, norm, output   []float32
	layers                    []layer
	rows                      []int32 // 0, 1, 2, ...
}

type layer struct {
	attnNorm, q, k, v, attnOutput, ffnNorm, gate, up, down []float32
}

// openModel reads a model with all its weights.
func openModel(path string) (_ *model, err error) {
	gm, err := gguf.OpenModel(path)
	if err != nil {
		return nil, err
	}
	weights, err := gguf.OpenWeights(gm, 1<<30)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, weights.Close()) }()
	m, blocks, ffn, err := readShape(gm.Files[0])
	if err != nil {
		return nil, err
	}
	err = m.loadTensors(weights, blocks, ffn)
	return m, err
}

// readShape reads the shape of a model from its metadata: a model without weights, the number of
// its layers and the length of their feed-forward vectors.
func readShape(f *gguf.File) (m *model, blocks, ffn int, err error) {
	if arch, _ := f.String("general.architecture"); arch != "llama" {
		return nil, 0, 0, fmt.Errorf("architecture %q, want llama", arch)
	}
	number := func(key string) int {
		n, ok := f.Uint("llama." + key)
		if (!ok || n == 0 || n > 1<<20) && err == nil {
			err = fmt.Errorf("llama.%s is %d", key, n)
		}
		return int(n)
	}
	m = &model{
		heads: number("attention.head_count"), kvHeads: number("attention.head_count_kv"),
		embd: number("embedding_length"),
	}
	blocks, ffn = number("block_count"), number("feed_forward_length")
	if err != nil {
		return nil, 0, 0, err
	}
	if m.heads%m.kvHeads != 0 || m.embd%m.heads != 0 || m.embd/m.heads%2 != 0 {
		return nil, 0, 0, fmt.Errorf("%d heads, %d of keys, for %d elements", m.heads, m.kvHeads, m.embd)
	}
	m.dim = m.embd / m.heads
	eps, _ := f.Float("llama.attention.layer_norm_rms_epsilon")
	m.eps = float32(eps)
	base, ok := f.Float("llama.rope.freq_base")
	if !ok {
		base = 10000
	}
	for i := range m.dim / 2 {
		m.frequencies = append(m.frequencies, math.Pow(base, -2*float64(i)/float64(m.dim)))
	}
	return m, blocks, ffn, nil
}

// loadTensors copies the weights of a model whose shape is known.
func (m *model) loadTensors(weights *gguf.Weights, blocks, ffn int) (err error) {
	// tensor returns the elements of a tensor. Its first error is stored in err.
	tensor := func(name string, elems int) []float32 {
		if err != nil {
			return nil
		}
		h, ok := weights.Lookup(name)
		if !ok {
			err = fmt.Errorf("no tensor %s", name)
			return nil
		}
		values, failure := h.Float32()
		if failure != nil {
			err = failure
			return nil
		}
		defer values.Release()
		if len(values.Data) != elems {
			err = fmt.Errorf("tensor %s has %d elements, want %d", name, len(values.Data), elems)
		}
		return append([]float32(nil), values.Data...)
	}
	const vocabulary = byteToken + 256
	kv := m.kvHeads * m.dim
	m.embedding, m.output = tensor("token_embd.weight", vocabulary*m.embd), tensor("output.weight", vocabulary*m.embd)
	m.norm = tensor("output_norm.weight", m.embd)
	for i := range blocks {
		t := func(name string, elems int) []float32 {
			return tensor(fmt.Sprintf("blk.%d.%s.weight", i, name), elems)
		}
		m.layers = append(m.layers, layer{
			attnNorm: t("attn_norm", m.embd),
			q:        t("attn_q", m.embd*m.embd), k: t("attn_k", kv*m.embd), v: t("attn_v", kv*m.embd),
			attnOutput: t("attn_output", m.embd*m.embd),
			ffnNorm:    t("ffn_norm", m.embd),
			gate:       t("ffn_gate", ffn*m.embd), up: t("ffn_up", ffn*m.embd), down: t("ffn_down", ffn*m.embd),
		})
	}
	m.rows = make([]int32, max(vocabulary, m.embd, ffn))
	for i := range m.rows {
		m.rows[i] = int32(i)
	}
	return err
}

// multiply computes dst = matrix x. The rows of matrix are as long as x.
func (m *model) multiply(dst, matrix, x []float32) { vec.DotRows(dst, x, matrix, m.rows[:len(dst)]) }

// applyRotary applies the rotary embedding for a position. It rotates neighbouring elements of each
// head by the angle of their frequency (ggml's "normal" mode).
func (m *model) applyRotary(x []float32, position int) {
	for i := 0; i < len(x); i += 2 {
		sin, cos := math.Sincos(float64(position) * m.frequencies[i%m.dim/2])
		a, b := float64(x[i]), float64(x[i+1])
		x[i], x[i+1] = float32(a*cos-b*sin), float32(a*sin+b*cos)
	}
}

// runWindow adds the heads of one window to w, and returns the cross-entropy of its bytes in nats.
func (m *model) runWindow(w *Workload, text []byte) (float64, error) {
	tokens := []int{1} // <s>
	for _, b := range text {
		tokens = append(tokens, byteToken+int(b))
	}
	kv := m.kvHeads * m.dim
	streams := make([]float32, len(tokens)*m.embd)
	for p, t := range tokens {
		copy(streams[p*m.embd:], m.embedding[t*m.embd:][:m.embd])
	}
	x, q, result := make([]float32, m.embd), make([]float32, m.embd), make([]float32, m.embd)
	k, v := make([]float32, kv), make([]float32, kv)
	scale := w.scale()
	for _, l := range m.layers {
		c, err := attention.New(attention.Config{
			Heads: m.kvHeads, Group: w.Group, Dim: m.dim, Capacity: len(tokens), KeyDigits: 1, QueryDigits: 1,
		})
		if err != nil {
			return 0, err
		}
		first := len(w.Keys)
		for range m.kvHeads {
			w.Keys, w.Values, w.Queries = append(w.Keys, nil), append(w.Values, nil), append(w.Queries, nil)
		}
		gate, up := make([]float32, len(l.gate)/m.embd), make([]float32, len(l.up)/m.embd)
		for p := range tokens {
			stream := streams[p*m.embd:][:m.embd]
			vec.RMSNorm(x, stream, l.attnNorm, m.eps)
			m.multiply(q, l.q, x)
			m.multiply(k, l.k, x)
			m.multiply(v, l.v, x)
			m.applyRotary(q, p)
			m.applyRotary(k, p)
			if err := c.Append(k, v); err != nil {
				return 0, err
			}
			c.Dense(result, q, scale)
			for h := range m.kvHeads {
				w.Keys[first+h] = append(w.Keys[first+h], k[h*m.dim:][:m.dim]...)
				w.Values[first+h] = append(w.Values[first+h], v[h*m.dim:][:m.dim]...)
			}
			m.multiply(x, l.attnOutput, result)
			vec.Add(stream, stream, x)

			vec.RMSNorm(x, stream, l.ffnNorm, m.eps)
			m.multiply(gate, l.gate, x)
			m.multiply(up, l.up, x)
			for i, g := range gate {
				gate[i] = float32(float64(g)/(1+math.Exp(-float64(g)))) * up[i]
			}
			m.multiply(x, l.down, gate)
			vec.Add(stream, stream, x)
		}
		size := w.Group * m.dim
		for h := range m.kvHeads {
			w.Queries[first+h] = append([]float32(nil), q[h*size:][:size]...)
		}
	}
	logits, nats := make([]float32, byteToken+256), 0.0
	for p, t := range tokens[1:] {
		vec.RMSNorm(x, streams[p*m.embd:][:m.embd], m.norm, m.eps)
		m.multiply(logits, m.output, x)
		vec.Softmax(logits, 1)
		nats -= math.Log(float64(logits[t])) / float64(len(tokens)-1)
	}
	return nats, nil
}
