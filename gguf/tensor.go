package gguf

// This file defines Tensor: its extent in the file, and what its name says about its use in the model.

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Tensor is one tensor of a file: its name, shape and extent. It holds no weights.
type Tensor struct {
	Name   string
	Type   Type
	Shape  []int64 // elements per dimension, fastest first, 1 to 4 dimensions, none negative
	Offset int64   // absolute byte offset in the file
	// Size is in bytes, without the padding that may follow. Of an opaque tensor it has the padding, up to
	// the next tensor or the end of the file. It is 0 if a dimension is.
	Size int64
}

// Opaque reports whether nothing but the extent is known of the tensor's bytes, because its type is
// not known.
func (t *Tensor) Opaque() bool { return !t.Type.Known() }

// End is the absolute offset of the byte after the tensor.
func (t *Tensor) End() int64 { return t.Offset + t.Size }

// Layer is N for a tensor named "blk.N.…", -1 for others.
func (t *Tensor) Layer() int {
	layer, _ := splitLayer(t.Name)
	return layer
}

// Component is the part of the name after "blk.N." ("attn_q.weight"), or the whole name if the
// tensor is in no layer ("token_embd.weight").
func (t *Tensor) Component() string {
	_, component := splitLayer(t.Name)
	return component
}

// splitLayer splits a name like "blk.7.attn_q.weight" into 7 and "attn_q.weight".
func splitLayer(name string) (layer int, component string) {
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return -1, name
	}
	digits, component, ok := strings.Cut(rest, ".")
	if !ok || component == "" {
		return -1, name
	}
	// 31 bits: tables hold layers as int32. ParseUint refuses signs and the empty string.
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil {
		return -1, name
	}
	return int(n), component
}

// splitExperts reports whether a component has one slice per expert, as ggml's MUL_MAT_ID and
// ADD_ID read them. The projection is "gate", "up", "down" or "gate_up"; bias is true for a bias.
// "chexps" are the chunk experts of GroveMoE. Shared experts ("shexp") are plain matrices.
func splitExperts(component string) (projection string, bias, ok bool) {
	rest, ok := strings.CutPrefix(component, "ffn_")
	if !ok {
		return "", false, false
	}
	rest, what, _ := strings.Cut(rest, ".")
	projection, ok = strings.CutSuffix(rest, "_exps")
	if !ok {
		projection, ok = strings.CutSuffix(rest, "_chexps")
	}
	switch projection {
	case "gate", "up", "down", "gate_up":
		return projection, what == "bias", ok && (what == "bias" || what == "weight")
	}
	return "", false, false
}

// Experts is the number of experts whose slices the tensor holds: the last dimension of a 3-D
// expert weight ("ffn_gate_exps.weight") or of its 2-D bias. It is 0 for all other tensors,
// including those of shared experts.
func (t *Tensor) Experts() int {
	_, bias, ok := splitExperts(t.Component())
	dims := 3
	if bias {
		dims = 2
	}
	if !ok || len(t.Shape) != dims {
		return 0
	}
	return int(t.Shape[dims-1])
}

// ExpertStride is the size in bytes of one expert's slice. Expert e is at [Offset+e*ExpertStride,
// Offset+(e+1)*ExpertStride). It is 0 if Experts is, and if it is not known where slices begin. The
// slices of an opaque tensor are taken to be equal parts of it, if it has such.
func (t *Tensor) ExpertStride() int64 {
	n := int64(t.Experts())
	if n == 0 || t.Size%n != 0 || t.Type.Known() && t.Type.BlockElems() == 0 {
		return 0
	}
	return t.Size / n
}

// ExpertAt is the expert that byte off of the file belongs to; -1 if it belongs to none, or is not
// in the tensor. In models of 2023 and 2024 each expert has tensors of its own
// ("blk.N.ffn_up.7.weight"): all their bytes belong to that expert.
func (t *Tensor) ExpertAt(off int64) int {
	if off < t.Offset || off >= t.End() {
		return -1
	}
	if stride := t.ExpertStride(); stride > 0 {
		return int((off - t.Offset) / stride)
	}
	return singleExpert(t.Component())
}

// singleExpert is N of "ffn_up.N.weight", or -1.
func singleExpert(component string) int {
	projection, rest, _ := strings.Cut(component, ".")
	digits, what, _ := strings.Cut(rest, ".")
	switch projection {
	case "ffn_gate", "ffn_up", "ffn_down":
		if n, err := strconv.ParseUint(digits, 10, 31); err == nil && (what == "weight" || what == "bias") {
			return int(n)
		}
	}
	return -1
}

// Projection is "gate", "up", "down" or "gate_up" (the two in one tensor) for a matrix or bias of
// experts, "" if Experts is 0.
func (t *Tensor) Projection() string {
	if t.Experts() == 0 {
		return ""
	}
	projection, _, _ := splitExperts(t.Component())
	return projection
}

// Kind says what a tensor is for.
type Kind uint8

// The kinds of tensors.
const (
	KindOther        Kind = iota
	KindEmbedding         // tables in which a token's row is looked up
	KindOutput            // projects to the vocabulary
	KindNorm              // weights of normalisations
	KindAttention         // projections, biases and sinks of attention
	KindFeedForward       // dense feed-forward matrices, used by every token
	KindRouter            // selects the experts
	KindExpert            // a slice or a tensor per expert, used by the tokens that are routed to it
	KindSharedExpert      // experts that every token uses
	KindRecurrent         // state-space, RWKV and convolution layers

	kindCount
)

var kinds = [kindCount]string{
	"other", "embedding", "output", "norm", "attention", "feed_forward", "router", "expert", "shared_expert",
	"recurrent",
}

// String is the kind's name as tables show it ("feed_forward").
func (k Kind) String() string {
	if k >= kindCount {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return kinds[k]
}

// IsTable reports whether the tensor is a table of which a token reads the rows that it looks up, and nothing else:
// embeddings of tokens, of their positions, or of tokens for each layer. hasOutput says that the model has an
// output.weight. Without one, all of its token_embd.weight is read for the logits of each token.
func (t *Tensor) IsTable(hasOutput bool) bool {
	return t.Kind() == KindEmbedding && (hasOutput || t.Name != "token_embd.weight")
}

// Kind is derived from llama.cpp's tensor names.
func (t *Tensor) Kind() Kind {
	component := t.Component()
	if t.Experts() > 0 || singleExpert(component) >= 0 {
		return KindExpert
	}
	stem, _, _ := strings.Cut(component, ".")
	begins := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(stem, p) })
	}
	switch {
	case strings.Contains(stem, "_norm"):
		return KindNorm
	case stem == "token_embd", stem == "token_types", stem == "position_embd", stem == "per_layer_token_embd":
		return KindEmbedding
	case stem == "output", stem == "cls":
		return KindOutput
	case begins("ffn_gate_inp"), stem == "exp_probs_b":
		return KindRouter
	case strings.HasSuffix(stem, "_shexp"):
		return KindSharedExpert
	case begins("ffn_"):
		return KindFeedForward
	case begins("attn_", "cross_attn_", "indexer"):
		return KindAttention
	case begins("ssm_", "time_mix_", "channel_mix_", "shortconv"):
		return KindRecurrent
	}
	return KindOther
}
