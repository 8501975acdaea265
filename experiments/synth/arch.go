package synth

// This file has the graphs that a model can have: the tensors and metadata that each needs besides
// those that all have. They are those of llama.cpp's src/models, and differ most in how a router
// chooses its experts:
//
//	llama      softmax over all, then the best ones; their weights are divided by their sum
//	qwen2moe   softmax; beside the chosen experts a shared one, with a gate of its own;
//	           biases at attention's queries, keys and values
//	qwen3moe   softmax; queries and keys are normed
//	deepseek2  softmax, or sigmoid with a bias that only the choice uses; shared experts;
//	           latent attention; the first layer is dense
//	gpt-oss    the best ones, then softmax over these; biases at the router and at the experts;
//	           sinks and sliding windows
//	deepseek4  square root of softplus; in the first layers the token's id chooses, by a table;
//	           four residual streams
//	gemma4     softmax over all; beside the experts a dense part, which is all there is without
//	           experts; sliding windows; each layer reads its part of the token's row in a table
//
// Groups of experts, of which the best are chosen first, are possible with all.

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"tensorcast/gguf"
)

// Names of graphs (general.architecture).
const (
	llamaArch     = "llama"
	qwen2Arch     = "qwen2moe"
	qwen3Arch     = "qwen3moe"
	deepseek2Arch = "deepseek2"
	gptossArch    = "gpt-oss"
	deepseek4Arch = "deepseek4"
	gemma4Arch    = "gemma4"
)

// graph describes what an architecture has of its own.
type graph struct {
	attention func(b *layer)
	metadata  func(e *encoder, c Config) // nil: none
	dense     bool                       // it needs no experts
	table     bool                       // it has a table with a row for each token, of which each layer reads a part
	fusable   bool                       // gate and up may be one tensor
	shared    bool                       // it has shared experts
	sigmoid   bool                       // it may choose by sigmoid
	untied    bool                       // output.weight is required
	oneKV     bool                       // one key/value head, whatever Config.KVHeads
	ropeHalf  bool                       // half of each head is rotated
}

var graphs = map[string]graph{
	llamaArch: {dense: true, attention: (*layer).llamaAttention},
	qwen2Arch: {shared: true, untied: true,
		attention: func(b *layer) {
			b.llamaAttention()
			b.qkvBiases()
		},
		metadata: func(e *encoder, c Config) {
			e.kvU32("qwen2moe.expert_feed_forward_length", c.FF)
			e.kvU32("qwen2moe.expert_shared_feed_forward_length", c.FF*c.Shared)
		}},
	qwen3Arch: {
		attention: func(b *layer) {
			b.llamaAttention()
			b.norm("attn_q_norm", b.head)
			b.norm("attn_k_norm", b.head)
		},
		metadata: func(e *encoder, c Config) { e.kvU32("qwen3moe.expert_feed_forward_length", c.FF) }},
	deepseek2Arch: {fusable: true, shared: true, sigmoid: true, oneKV: true, ropeHalf: true,
		attention: (*layer).latentAttention,
		metadata: func(e *encoder, c Config) {
			head := c.Embd / c.Heads
			q, kv := ranks(int64(c.Embd))
			e.kvU32("deepseek2.attention.q_lora_rank", int(q))
			e.kvU32("deepseek2.attention.kv_lora_rank", int(kv))
			e.kvU32("deepseek2.attention.key_length", int(kv)+head/2)
			e.kvU32("deepseek2.attention.value_length", int(kv))
			e.kvU32("deepseek2.attention.key_length_mla", head)
			e.kvU32("deepseek2.attention.value_length_mla", head)
			e.kvU32("deepseek2.leading_dense_block_count", c.denseLayers())
			e.kvU32("deepseek2.expert_feed_forward_length", c.FF)
			e.kvU32("deepseek2.expert_shared_count", c.Shared)
			e.kvF32("deepseek2.expert_weights_scale", 1.5)
			e.kvBool("deepseek2.expert_weights_norm", c.Sigmoid)
			gating := gatingSoftmax
			if c.Sigmoid {
				gating = gatingSigmoid
			}
			e.kvU32("deepseek2.expert_gating_func", gating)
		}},
	gptossArch: {untied: true,
		attention: func(b *layer) {
			b.llamaAttention()
			b.qkvBiases()
			b.bias("attn_output", b.embd)
			b.vector("attn_sinks.weight", 1, int64(b.cfg.Heads))
		},
		metadata: func(e *encoder, c Config) {
			e.kvU32("gpt-oss.expert_feed_forward_length", c.FF)
			e.kvU32("gpt-oss.attention.sliding_window", 128)
		}},
	deepseek4Arch: {shared: true, untied: true, oneKV: true, ropeHalf: true,
		attention: (*layer).streamedAttention,
		metadata: func(e *encoder, c Config) {
			q, kv := ranks(int64(c.Embd))
			head := c.Embd / c.Heads
			e.kvU32("deepseek4.attention.q_lora_rank", int(q))
			e.kvU32("deepseek4.attention.output_lora_rank", int(kv))
			e.kvU32("deepseek4.attention.output_group_count", outputGroups(c))
			e.kvU32("deepseek4.attention.key_length", head)
			e.kvU32("deepseek4.attention.value_length", head)
			e.kvU32("deepseek4.attention.sliding_window", 128)
			e.kvU32("deepseek4.attention.indexer.head_count", indexerHeads)
			e.kvU32("deepseek4.attention.indexer.key_length", 2*head)
			e.kvU32("deepseek4.attention.indexer.top_k", 8)
			e.kvF32("deepseek4.attention.compress_rope_freq_base", 10000)
			e.kvArray("deepseek4.attention.compress_ratios", kvInt32, c.Layers)
			for l := range c.Layers {
				e.u32(uint32(compression(l)))
			}
			e.kvU32("deepseek4.hyper_connection.count", streams)
			e.kvU32("deepseek4.hyper_connection.sinkhorn_iterations", 4)
			e.kvF32("deepseek4.hyper_connection.epsilon", 1e-6)
			e.kvU32("deepseek4.hash_layer_count", c.Hashed)
			e.kvU32("deepseek4.expert_feed_forward_length", c.FF)
			e.kvU32("deepseek4.expert_shared_count", c.Shared)
			e.kvF32("deepseek4.expert_weights_scale", 1.5)
			e.kvBool("deepseek4.expert_weights_norm", true)
			e.kvU32("deepseek4.expert_gating_func", gatingSqrtSoftplus)
			e.kvF32("deepseek4.swiglu_clamp_exp", 10)
		}},
	gemma4Arch: {dense: true, table: true, fusable: true,
		attention: (*layer).windowedAttention,
		metadata: func(e *encoder, c Config) {
			head := c.Embd / c.Heads
			e.kvU32("gemma4.embedding_length_per_layer_input", c.PerLayer)
			e.kvU32("gemma4.attention.key_length", head)
			e.kvU32("gemma4.attention.value_length", head)
			e.kvU32("gemma4.attention.key_length_swa", head)
			e.kvU32("gemma4.attention.value_length_swa", head)
			e.kvU32("gemma4.attention.sliding_window", 128)
			e.kvArray("gemma4.attention.sliding_window_pattern", kvBool, c.Layers)
			for l := range c.Layers {
				e.bool(isWindowed(l))
			}
			if c.Experts > 0 {
				e.kvU32("gemma4.expert_feed_forward_length", c.FF)
			}
		}},
}

// isWindowed says whether layer l of gemma4 sees only the last tokens. llama.cpp needs layers of both kinds.
func isWindowed(l int) bool { return l%2 == 0 }

// How a router scores experts (enum llama_expert_gating_func_type).
const (
	gatingSoftmax      = 1
	gatingSigmoid      = 2
	gatingSqrtSoftplus = 4
)

// Of deepseek4.
const (
	streams = 4 // residual streams; llama.cpp knows no other number
	// indexerHeads is the number of heads of the indexer, which chooses compressed keys. They are
	// twice as wide as other heads: llama.cpp confuses those of equal width.
	indexerHeads = 2
)

// compression is how many keys of layer l are compressed to one, 0 if none are. llama.cpp needs at
// least one layer where four are.
func compression(l int) int64 {
	if l == 0 {
		return 4
	}
	return 0
}

// Archs lists the names of the graphs.
func Archs() []string {
	return []string{llamaArch, qwen2Arch, qwen3Arch, deepseek2Arch, gptossArch, deepseek4Arch, gemma4Arch}
}

// denseLayers is the number of dense layers before the first layer with experts. A model of one
// layer has experts in it.
func (c Config) denseLayers() int {
	if c.Arch == deepseek2Arch {
		return min(1, c.Layers-1)
	}
	return 0
}

// ranks are the widths to which latent attention projects: one for queries, and one for keys and
// values.
func ranks(embd int64) (q, kv int64) { return embd / 2, embd / 4 }

// outputGroups is the number of groups of heads whose outputs are projected separately.
func outputGroups(c Config) int { return 2 - c.Heads%2 }

// layer collects the tensors of a layer.
type layer struct {
	cfg            Config
	number         int
	embd, head, kv int64 // widths of the model, of a head, of all keys
	ts             []Tensor
}

// layerTensors lists the tensors of layer l. The values of a matrix have the standard deviation
// gain/sqrt(fan-in), so that inputs of unit size, which the norms produce, give outputs of size
// gain. Gains are 1, except that queries and keys are a little larger. Attention must prefer some
// tokens: otherwise all late positions would see the same average of the context, and the text
// would fall into a short cycle.
func layerTensors(cfg Config, l int) []Tensor {
	b := &layer{cfg: cfg, number: l, embd: int64(cfg.Embd), head: int64(cfg.Embd / cfg.Heads)}
	b.kv = b.head * int64(cfg.KVHeads)
	graphs[cfg.Arch].attention(b)
	b.norm("attn_norm", b.embd)
	if graphs[cfg.Arch].table {
		b.table()
	}
	if cfg.Arch == gptossArch {
		b.norm("post_attention_norm", b.embd)
	} else {
		b.norm("ffn_norm", b.embd)
	}
	ff := int64(cfg.FF)
	routed := cfg.Experts > 0 && l >= cfg.denseLayers()
	if !routed || cfg.Arch == gemma4Arch {
		b.matrix("ffn_down", 1, ff, b.embd)
		b.matrix("ffn_gate", 1, b.embd, ff)
		b.matrix("ffn_up", 1, b.embd, ff)
	}
	if routed {
		b.experts(ff)
	}
	slices.SortFunc(b.ts, func(x, y Tensor) int { return cmp.Compare(x.Name, y.Name) })
	return b.ts
}

func (b *layer) add(component string, typ gguf.Type, shape []int64, spans ...span) {
	b.ts = append(b.ts, Tensor{Name: fmt.Sprintf("blk.%d.%s", b.number, component), Type: typ, Shape: shape,
		spans: spans})
}

// matrix adds a matrix with rows of shape[0] inputs. If a row is not a whole number of blocks, it
// is F16: llama.cpp's quantiser falls back to another type there, too.
func (b *layer) matrix(component string, gain float64, shape ...int64) {
	typ := b.cfg.Type
	if shape[0]%typ.BlockElems() != 0 {
		typ = gguf.F16
	}
	b.add(component+".weight", typ, shape,
		span{elems: elementCount(shape), std: float32(gain * (1 / math.Sqrt(float64(shape[0]))))})
}

// perHead adds matrices for parts of all heads. They are F32: matrices of other types are taken by
// llama.cpp's code for AMX, where the processor has it, which then cannot multiply them by values
// that are permuted.
func (b *layer) perHead(component string, gain float64, shape ...int64) {
	b.vector(component+".weight", gain/math.Sqrt(float64(shape[0])), shape...)
}

func (b *layer) norm(component string, n int64) { b.normOf(component, n, 1) }

// normOf adds a norm that makes values of another size than 1.
func (b *layer) normOf(component string, n int64, size float64) {
	b.add(component+".weight", gguf.F32, []int64{n},
		span{elems: n, mean: float32(size), std: float32(size * normStd)})
}

// vector adds values of type F32 and mean 0.
func (b *layer) vector(name string, std float64, shape ...int64) {
	b.add(name, gguf.F32, shape, span{elems: elementCount(shape), std: float32(std)})
}

// bias adds a bias that is small compared to the values that it is added to.
func (b *layer) bias(component string, shape ...int64) { b.vector(component+".bias", 0.1, shape...) }

// routerBias adds a bias that the choice of experts sees. It is 0 where a trace says what is chosen.
func (b *layer) routerBias(component string, n int64) {
	if b.cfg.Routes != nil {
		b.vector(component+".bias", 0, n)
		return
	}
	b.bias(component, n)
}

func elementCount(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

func (b *layer) llamaAttention() {
	b.matrix("attn_k", queryKeyGain, b.embd, b.kv)
	b.matrix("attn_output", 1, b.embd, b.embd)
	b.matrix("attn_q", queryKeyGain, b.embd, b.embd)
	b.matrix("attn_v", 1, b.embd, b.kv)
}

func (b *layer) qkvBiases() {
	b.bias("attn_q", b.embd)
	b.bias("attn_k", b.kv)
	b.bias("attn_v", b.kv)
}

// windowedAttention adds attention whose queries and keys are normed. llama.cpp does not divide their
// products by the root of a head's width, as the trained norms have learned that.
func (b *layer) windowedAttention() {
	b.llamaAttention()
	b.normOf("attn_q_norm", b.head, queryKeyGain/math.Sqrt(float64(b.head)))
	b.norm("attn_k_norm", b.head)
	b.norm("post_attention_norm", b.embd)
	b.norm("post_ffw_norm", b.embd)
}

// table adds what a layer makes of its part of the token's row.
func (b *layer) table() {
	width := int64(b.cfg.PerLayer)
	b.matrix("inp_gate", 1, b.embd, width)
	b.matrix("proj", 1, width, b.embd)
	b.norm("post_norm", b.embd)
}

// latentAttention adds attention whose queries, and whose keys with values, pass a narrow layer.
// Half of each head is rotated. The rotated keys are shared by all heads.
func (b *layer) latentAttention() {
	heads, half := int64(b.cfg.Heads), b.head/2
	q, kv := ranks(b.embd)
	b.matrix("attn_q_a", 1, b.embd, q)
	b.norm("attn_q_a_norm", q)
	b.matrix("attn_q_b", queryKeyGain, q, heads*b.head)
	b.matrix("attn_kv_a_mqa", queryKeyGain, b.embd, kv+half)
	b.norm("attn_kv_a_norm", kv)
	b.perHead("attn_k_b", queryKeyGain, half, kv, heads)
	b.perHead("attn_v_b", 1, kv, b.head, heads)
	b.matrix("attn_output", 1, heads*b.head, b.embd)
}

// streamedAttention adds attention with one key, which is also the value, for all heads, and with
// its output in two steps. Before it and before the experts, the residual streams are mixed.
func (b *layer) streamedAttention() {
	heads, groups := int64(b.cfg.Heads), int64(outputGroups(b.cfg))
	q, out := ranks(b.embd)
	b.matrix("attn_q_a", 1, b.embd, q)
	b.norm("attn_q_a_norm", q)
	b.matrix("attn_q_b", queryKeyGain, q, heads*b.head)
	b.matrix("attn_kv", 1, b.embd, b.head)
	b.norm("attn_kv_a_norm", b.head)
	b.perHead("attn_output_a", 1, heads*b.head/groups, out*groups)
	b.matrix("attn_output_b", 1, out*groups, b.embd)
	b.vector("attn_sinks.weight", 1, heads)
	if n := compression(b.number); n > 0 {
		index := 2 * b.head
		b.matrix("indexer.proj", 1, b.embd, indexerHeads)
		b.matrix("indexer.attn_q_b", 1, q, indexerHeads*index)
		for _, c := range []struct {
			name  string
			width int64
		}{{"attn", b.head}, {"indexer", index}} {
			b.matrix(c.name+"_compressor_kv", 1, b.embd, 2*c.width)
			b.matrix(c.name+"_compressor_gate", 1, b.embd, 2*c.width)
			b.vector(c.name+"_compressor_ape.weight", 0.1, 2*c.width, n)
			b.norm(c.name+"_compressor_norm", c.width)
		}
	}
	for _, place := range []string{"attn", "ffn"} {
		const mixes = (2 + streams) * streams
		b.vector("hc_"+place+"_fn.weight", 1/math.Sqrt(streams*float64(b.embd)), streams*b.embd, mixes)
		b.vector("hc_"+place+"_base.weight", 0.5, mixes)
		b.norm("hc_"+place+"_scale", 3)
	}
}

// experts adds a router with its experts of width ff.
func (b *layer) experts(ff int64) {
	c, n := b.cfg, int64(b.cfg.Experts)
	// The router is F32, as in real files. Its scores are N(0, 1). No expert is preferred in
	// general, and the chosen ones have different weights.
	b.vector("ffn_gate_inp.weight", 1/math.Sqrt(float64(b.embd)), b.embd, n)
	b.matrix("ffn_down_exps", 1, ff, b.embd, n)
	if c.Fused {
		b.matrix("ffn_gate_up_exps", 1, b.embd, 2*ff, n)
	} else {
		b.matrix("ffn_gate_exps", 1, b.embd, ff, n)
		b.matrix("ffn_up_exps", 1, b.embd, ff, n)
	}
	if width := ff * int64(c.Shared); width > 0 {
		b.matrix("ffn_down_shexp", 1, width, b.embd)
		b.matrix("ffn_gate_shexp", 1, b.embd, width)
		b.matrix("ffn_up_shexp", 1, b.embd, width)
	}
	switch hashed := b.number < c.Hashed; {
	case c.Arch == qwen2Arch:
		b.vector("ffn_gate_inp_shexp.weight", 1/math.Sqrt(float64(b.embd)), b.embd)
	case c.Arch == gemma4Arch:
		// llama.cpp divides the router's input by the root of the width.
		b.add("ffn_gate_inp.scale", gguf.F32, []int64{b.embd},
			span{elems: b.embd, mean: float32(math.Sqrt(float64(b.embd)))})
		b.norm("pre_ffw_norm_2", b.embd)
		b.norm("post_ffw_norm_1", b.embd)
		b.norm("post_ffw_norm_2", b.embd)
	case c.Arch == gptossArch:
		b.routerBias("ffn_gate_inp", n)
		b.bias("ffn_gate_exps", ff, n)
		b.bias("ffn_up_exps", ff, n)
		b.bias("ffn_down_exps", b.embd, n)
	case c.Sigmoid, c.Arch == deepseek4Arch && !hashed:
		b.routerBias("exp_probs_b", n)
	case hashed:
		b.add("ffn_gate_tid2eid.weight", gguf.I32, []int64{int64(c.Used), int64(c.Vocab)},
			span{elems: int64(c.Used) * int64(c.Vocab), choose: c.Used, of: c.Experts})
	}
}
