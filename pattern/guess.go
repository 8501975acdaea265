package pattern

// This file guesses the cycle of a model from its file alone, for a helper that begins before the
// target has read anything.

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"tensorcast/gguf"
)

// ErrNoGuess means that of a file nobody knows in which order it is read: it is no plain decoder, as
// far as its tensors' names tell.
var ErrNoGuess = errors.New("the model's tensors do not tell in which order they are read")

// Guess is the cycle that the graphs of llama.cpp make of a model with these tensors, by their
// names: layer after layer, and in a layer the attention, then the feed-forward part. It depends on
// the release of llama.cpp and on the architecture, so it is to be compared with what a target
// really reads. What no graph reads for every token (layers that predict further tokens) is left
// out. Models with routed experts are not guessed, as nobody knows most of what a token reads
// before, nor are recurrent ones. Times are unknown (-1). Files are the parts of the model, in any
// order: CycleRead.File is an index of them. Cycle.Files is left to the caller, who may have
// described them already. The error is ErrNoGuess.
func Guess(files []*gguf.File) (*Cycle, error) {
	g := guess{named: map[string]guessed{}, layers: map[int][]guessed{}}
	for i, f := range files {
		for j := range f.Tensors {
			g.add(i, &f.Tensors[j])
		}
	}
	_, normed := g.named["output_norm.weight"]
	embedding, embeds := g.named["token_embd.weight"]
	if len(g.layers) == 0 || !normed || !embeds || g.other {
		return nil, ErrNoGuess
	}
	g.read(embedding)
	for _, stem := range []string{"token_types", "position_embd", "token_embd_norm"} {
		g.readNamed(stem)
	}
	numbers := make([]int, 0, len(g.layers))
	for n := range g.layers {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		g.layer(g.layers[n])
	}
	g.readNamed("output_norm")
	if _, ok := g.named["output.weight"]; ok {
		g.readNamed("output")
	} else { // the embeddings compute the logits, too
		g.readWhole(embedding)
	}
	if len(g.reads) > maxReads {
		return nil, ErrNoGuess
	}
	return &Cycle{Reads: g.reads}, nil
}

// guessed is a tensor and its place in the order of its layer.
type guessed struct {
	*gguf.Tensor
	file int
	rank int
}

// guess is one that is being made.
type guess struct {
	named  map[string]guessed // tensors of no layer
	layers map[int][]guessed
	reads  []CycleRead
	other  bool // a layer is no plain transformer's
}

// order is in which order a layer's weights are read, by the first part of their names. A weight's
// bias follows it.
var order = []string{
	"attn_norm", "attn_norm_2",
	"attn_qkv",
	// The value comes before the key since llama.cpp fuses the key's rotation with its store in the
	// cache.
	"attn_q", "attn_q_norm", "attn_v", "attn_k", "attn_k_norm", "attn_sinks", "attn_gate",
	attentionElse,
	"attn_sub_norm", "attn_output", "attn_output_norm", "attn_post_norm", "post_attention_norm",
	"ffn_norm", "ffn_gate", "ffn_up", "ffn_act",
	feedForwardElse,
	"ffn_sub_norm", "ffn_down", "ffn_post_norm", "post_ffw_norm", "layer_output_norm", "layer_output_scale",
}

// These stand for weights that are not in order.
const (
	attentionElse   = "(attention)"
	feedForwardElse = "(feed forward)"
)

var ranks = func() map[string]int {
	ranks := map[string]int{}
	for i, stem := range order {
		ranks[stem] = i
	}
	return ranks
}()

func (g *guess) add(file int, t *gguf.Tensor) {
	g.other = g.other || t.Experts() > 0 || t.Kind() == gguf.KindExpert || t.Kind() == gguf.KindRecurrent
	n := t.Layer()
	if n < 0 {
		g.named[t.Name] = guessed{t, file, 0}
		return
	}
	stem, _, _ := strings.Cut(t.Component(), ".")
	rank, known := ranks[stem]
	if !known {
		rank = ranks[feedForwardElse]
		if t.Kind() == gguf.KindAttention {
			rank = ranks[attentionElse]
		}
	}
	g.layers[n] = append(g.layers[n], guessed{t, file, rank})
}

// layer reads the weights of one layer.
func (g *guess) layer(tensors []guessed) {
	if slices.ContainsFunc(tensors, func(t guessed) bool { return strings.HasPrefix(t.Component(), "nextn.") }) {
		return // only to predict further tokens
	}
	bias := func(t guessed) int {
		if strings.HasSuffix(t.Name, ".bias") {
			return 1
		}
		return 0
	}
	slices.SortFunc(tensors, func(a, b guessed) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(bias(a), bias(b)), cmp.Compare(a.file, b.file),
			cmp.Compare(a.Offset, b.Offset))
	})
	rotation, rotates := g.named["rope_freqs.weight"]
	for i, t := range tensors {
		g.read(t)
		// Queries and keys are rotated when they are whole.
		whole := i+1 == len(tensors) || !rotated(tensors[i+1].rank) || part(tensors[i+1].rank) != part(t.rank)
		if rotates && rotated(t.rank) && whole {
			g.readWhole(rotation)
		}
	}
}

// rotated says that what is read at a place in the order makes queries or keys.
func rotated(rank int) bool { return part(rank) != 0 }

func part(rank int) int {
	switch order[rank] {
	case "attn_q", "attn_q_norm":
		return 1
	case "attn_k", "attn_k_norm":
		return 2
	}
	return 0
}

// readNamed reads a tensor of no layer and its bias, if they are there.
func (g *guess) readNamed(stem string) {
	for _, what := range []string{".weight", ".bias"} {
		if t, ok := g.named[stem+what]; ok {
			g.read(t)
		}
	}
}

// read adds the read of a tensor, as far as a token reads it.
func (g *guess) read(t guessed) {
	g.readWhole(t)
	r := &g.reads[len(g.reads)-1]
	if t.Kind() == gguf.KindEmbedding && len(t.Shape) == 2 {
		r.Op = "GET_ROWS"
		r.gather(t.Size/t.Shape[1], 1, false)
	}
}

func (g *guess) readWhole(t guessed) {
	op := "MUL_MAT"
	switch {
	case strings.HasSuffix(t.Name, ".bias"):
		op = "ADD"
	case strings.HasPrefix(t.Name, "rope_"):
		op = "ROPE"
	case len(t.Shape) == 1:
		op = "MUL"
	}
	g.reads = append(g.reads, CycleRead{File: t.file, Tensor: t.Name, Op: op, Offset: t.Offset, Length: t.Size,
		Nanos: -1})
}
