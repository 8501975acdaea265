package forecast

// This file says how long a pass computes that finds all of its weights in memory.

import (
	"math"

	"tensorcast/gguf"
)

// products is how many products of two float32, as package pace measures them, take as long as ggml needs for one
// element of a type, on one thread and in its cache: ggml_vec_dot_* of ggml-cpu 0.18 against internal/vec, both with
// AVX-512 (docs/measurements/analyze.md). Types that are not named are taken to need otherProducts.
var products = map[gguf.Type]float64{
	gguf.F32: 0.9, gguf.F16: 1.3, gguf.BF16: 0.5,
	gguf.Q4_0: 0.9, gguf.Q4_1: 1, gguf.Q5_0: 1, gguf.Q5_1: 1.1, gguf.Q8_0: 0.8,
	gguf.Q2_K: 0.5, gguf.Q3_K: 0.8, gguf.Q4_K: 0.6, gguf.Q5_K: 0.9, gguf.Q6_K: 0.6,
	gguf.IQ1S: 1.5, gguf.IQ1M: 1.6, gguf.IQ2XXS: 1.6, gguf.IQ2XS: 3.1, gguf.IQ2S: 4.7, gguf.IQ3XXS: 4.2, gguf.IQ3S: 7.4,
	gguf.IQ4NL: 1, gguf.IQ4XS: 0.9, gguf.TQ1_0: 0.7, gguf.TQ2_0: 0.4, gguf.MXFP4: 1.1, gguf.NVFP4: 1.3, gguf.Q1_0: 0.7,
	gguf.Q2_0: 40, // ggml has no vectors for it on x86: two builds had 29 and 57
}

const otherProducts = 3

// notHidden is which share of the lesser of two times, of memory and of arithmetic, is not hidden behind the greater
// one: 764 MiB of Q8_0 took 22 ms, where memory needs 18 for them and arithmetic 13.
const notHidden = 0.3

const (
	// layerTime is what a layer takes besides its weights: small ops, and the threads' waiting for each other after
	// each op. With experts it is mixtureLayerTime ("Many small experts": a token of three mixtures took 9, 14 and
	// 20 ms where memory delivers its weights in 6, 9 and 11).
	layerTime        = 20e-6
	mixtureLayerTime = 170e-6
)

// ComputeTime is how many seconds a pass of so many tokens computes if it waits for no disk. With each type either
// memory or arithmetic is what is slow: memory delivers a weight once for all tokens, and each token multiplies with
// it.
func (p *Pass) ComputeTime(m *Machine, tokens int) float64 {
	more := p.union(tokens)
	seconds := layerTime * float64(p.Layers)
	if p.Experts != nil {
		seconds = mixtureLayerTime * float64(p.Layers)
	}
	for _, w := range p.Types {
		bytes := w.Bytes * (1 - w.Routed + more*w.Routed)
		each, known := products[w.Type]
		if !known {
			each = otherProducts
		}
		arithmetic := float64(tokens) * w.Elements * each / (float64(m.Threads) * m.Products)
		seconds += max(bytes/m.Memory, arithmetic) + notHidden*min(bytes/m.Memory, arithmetic)
	}
	return seconds
}

// union is how many times as many experts so many tokens choose together as one does, if they choose at random.
func (p *Pass) union(tokens int) float64 {
	if p.Experts == nil || tokens <= 1 {
		return 1
	}
	share := float64(p.Experts.Chosen) / float64(p.Experts.Experts)
	return (1 - math.Pow(1-share, float64(tokens))) / share
}
