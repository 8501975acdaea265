package pattern

// This file guesses the cycle of a model from its file alone. A helper uses that before the target
// has read anything.

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"strings"

	"tensorcast/gguf"
)

// ErrNoGuess means that the order in which a file is read cannot be guessed: judging by its
// tensors' names, the model is no plain decoder.
var ErrNoGuess = errors.New("the model's tensors do not tell in which order they are read")

// Guess returns the cycle that llama.cpp's graphs have for a model with these tensors, judging by
// their names: layer after layer, and in each layer first the attention, then the feed-forward
// part. The real order depends on the release of llama.cpp and on the architecture, so callers must
// compare the guess with what a target really reads. Of models whose layers read a part of the token's
// row in a table, it is that of Gemma 4. Layers that predict further tokens are left
// out, because no graph reads them for every token. Models with routed experts are not guessed,
// because most of what a token reads is not known in advance: see GuessMixture. Recurrent models are
// not guessed either. Times are unknown (-1). files are the parts of the model in any order, and CycleRead.File
// is an index of them. Cycle.Files is left to the caller, who may have described the files already.
// The error is ErrNoGuess, or one of reading a file's metadata.
func Guess(files []*gguf.File) (*Cycle, error) { return guess(files, 0) }

// GuessMixture is Guess for a model with routed experts, of whose experts something is known, so that
// a guess of the rest is of use. A token is taken to read as many experts of each layer as the
// metadata say (expert_used_count, or 1). Models without experts have the guess of Guess. Experts
// with tensors of their own, as in models of 2023, are not guessed.
func GuessMixture(files []*gguf.File) (*Cycle, error) {
	return guess(files, max(ExpertsUsed(files), 1))
}

// ExpertsUsed is how many experts of a layer a token is sent to, by the metadata of a model's parts; 0 if
// they do not say.
func ExpertsUsed(files []*gguf.File) int64 {
	for _, f := range files {
		arch, _ := f.String("general.architecture")
		if n, ok := f.Uint(arch + ".expert_used_count"); ok {
			return int64(min(n, math.MaxInt32))
		}
	}
	return 0
}

// guess guesses for both. A token reads used of the experts; 0 refuses models with experts.
func guess(files []*gguf.File, used int64) (*Cycle, error) {
	g := guesser{named: map[string]rankedTensor{}, layers: map[int][]rankedTensor{}, used: used}
	for i, f := range files {
		for j := range f.Tensors {
			g.addTensor(i, &f.Tensors[j])
		}
		if err := g.addWindows(f); err != nil {
			return nil, err
		}
	}
	_, normed := g.named["output_norm.weight"]
	embedding, embeds := g.named["token_embd.weight"]
	if len(g.layers) == 0 || !normed || !embeds || g.unsupported {
		return nil, ErrNoGuess
	}
	g.read(embedding)
	for _, stem := range []string{"token_types", "position_embd", "token_embd_norm", "per_layer_token_embd"} {
		g.readNamed(stem)
	}
	numbers := make([]int, 0, len(g.layers))
	for n := range g.layers {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		g.readLayer(n, g.layers[n])
	}
	g.readNamed("output_norm")
	if _, ok := g.named["output.weight"]; ok {
		g.readNamed("output")
	} else { // the embeddings compute the logits as well
		g.readWhole(embedding)
	}
	if len(g.reads) > maxReads {
		return nil, ErrNoGuess
	}
	return &Cycle{Reads: g.reads}, nil
}

// rankedTensor is a tensor and its rank in the order of its layer.
type rankedTensor struct {
	*gguf.Tensor
	file int
	rank int
}

// guesser makes a guess.
type guesser struct {
	named       map[string]rankedTensor // tensors of no layer
	layers      map[int][]rankedTensor
	reads       []CycleRead
	used        int64  // experts that a token reads; 0: models with experts are not supported
	windowed    []bool // by layer: its attention sees only the last tokens
	unsupported bool   // some layer is not that of a plain transformer
}

// hasTable reports whether each layer reads a part of the token's row in a table.
func (g *guesser) hasTable() bool {
	_, has := g.named["per_layer_token_embd.weight"]
	return has
}

// addWindows finds out which layers' attention sees only the last tokens, if the file's metadata tell.
func (g *guesser) addWindows(f *gguf.File) error {
	const most = 1024 // layers; llama.cpp has a bound of 512
	for i := range f.Metadata {
		kv := &f.Metadata[i]
		isPattern := strings.HasSuffix(kv.Key, ".attention.sliding_window_pattern")
		if !isPattern || kv.Type != gguf.ValueArray || kv.Elem != gguf.ValueBool {
			continue
		}
		return f.Each(kv, most, func(value any) error {
			is, _ := value.(bool)
			g.windowed = append(g.windowed, is)
			return nil
		})
	}
	return nil
}

// readOrder lists the first parts of the names of a layer's weights, in the order in which they are
// read. A weight's bias follows it.
var readOrder = []string{
	"attn_norm", "attn_norm_2",
	"attn_qkv",
	// The value comes before the key, since llama.cpp fuses the key's rotation with its store in
	// the cache.
	"attn_q", "attn_q_norm", "attn_v", "attn_k", "attn_k_norm", "attn_sinks", "attn_gate",
	attentionElse,
	"attn_sub_norm", "attn_output", "attn_output_norm", "attn_post_norm", "post_attention_norm",
	"ffn_norm", "ffn_gate", "ffn_up", "ffn_act",
	"ffn_gate_inp", "exp_probs_b", "ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps",
	feedForwardElse,
	"ffn_sub_norm", "ffn_down", "ffn_post_norm", "post_ffw_norm",
	"inp_gate", "proj", "post_norm", // what a layer makes of its part of a row in a table
	"layer_output_norm", "layer_output_scale",
}

// These stand for weights that are not in readOrder.
const (
	attentionElse   = "(attention)"
	feedForwardElse = "(feed forward)"
)

var ranks = func() map[string]int {
	ranks := map[string]int{}
	for i, stem := range readOrder {
		ranks[stem] = i
	}
	return ranks
}()

func (g *guesser) addTensor(file int, t *gguf.Tensor) {
	expert := t.Experts() > 0 || t.Kind() == gguf.KindExpert
	g.unsupported = g.unsupported || t.Kind() == gguf.KindRecurrent ||
		expert && (g.used == 0 || t.ExpertStride() == 0)
	n := t.Layer()
	if n < 0 {
		g.named[t.Name] = rankedTensor{t, file, 0}
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
	g.layers[n] = append(g.layers[n], rankedTensor{t, file, rank})
}

// readLayer reads the weights of the layer with this number.
func (g *guesser) readLayer(number int, tensors []rankedTensor) {
	if slices.ContainsFunc(tensors, func(t rankedTensor) bool { return strings.HasPrefix(t.Component(), "nextn.") }) {
		return // only needed to predict further tokens
	}
	bias := func(t rankedTensor) int {
		if strings.HasSuffix(t.Name, ".bias") {
			return 1
		}
		return 0
	}
	place := func(t rankedTensor) int {
		if g.hasTable() && readOrder[t.rank] == "attn_v" { // it is normed, and nothing is fused with the key
			return 2*ranks["attn_k_norm"] + 1
		}
		return 2 * t.rank
	}
	slices.SortFunc(tensors, func(a, b rankedTensor) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(bias(a), bias(b)), cmp.Compare(a.file, b.file),
			cmp.Compare(a.Offset, b.Offset))
	})
	rotation, rotates := g.named["rope_freqs.weight"]
	if g.hasTable() && number < len(g.windowed) && g.windowed[number] {
		rotates = false // by the usual frequencies
	}
	for i, t := range tensors {
		g.read(t)
		if number == 0 && readOrder[t.rank] == "inp_gate" { // llama.cpp makes the layers' parts of the row as late
			g.readNamed("per_layer_model_proj")
			g.readNamed("per_layer_proj_norm")
		}
		// Queries and keys are rotated once they are complete.
		whole := i+1 == len(tensors) || !isRotated(tensors[i+1].rank) ||
			rotatedPart(tensors[i+1].rank) != rotatedPart(t.rank)
		if rotates && isRotated(t.rank) && whole {
			g.readWhole(rotation)
		}
	}
}

// isRotated reports whether the weights of a rank make queries or keys.
func isRotated(rank int) bool { return rotatedPart(rank) != 0 }

func rotatedPart(rank int) int {
	switch readOrder[rank] {
	case "attn_q", "attn_q_norm":
		return 1
	case "attn_k", "attn_k_norm":
		return 2
	}
	return 0
}

// readNamed adds the reads of a tensor of no layer and of its bias, if they exist.
func (g *guesser) readNamed(stem string) {
	for _, what := range []string{".weight", ".bias"} {
		if t, ok := g.named[stem+what]; ok {
			g.read(t)
		}
	}
}

// read adds the read of a tensor. A token reads only a row of the embedding, and only some experts.
func (g *guesser) read(t rankedTensor) {
	g.readWhole(t)
	r := &g.reads[len(g.reads)-1]
	if t.Kind() == gguf.KindEmbedding && len(t.Shape) == 2 {
		r.Op = "GET_ROWS"
		r.setGather(t.Size/t.Shape[1], 1, false)
	}
	if t.Experts() > 0 {
		r.Op = "MUL_MAT_ID"
		if strings.HasSuffix(t.Name, ".bias") {
			r.Op = "ADD_ID"
		}
		r.setGather(t.ExpertStride(), min(g.used, int64(t.Experts())), true)
	}
}

func (g *guesser) readWhole(t rankedTensor) {
	op := "MUL_MAT"
	switch {
	case strings.HasSuffix(t.Name, ".bias"):
		op = "ADD"
	case strings.HasPrefix(t.Name, "rope_"):
		op = "ROPE"
	case len(t.Shape) == 1:
		op = "MUL"
	}
	g.reads = append(g.reads, CycleRead{
		File: t.file, Tensor: t.Name, Op: op, Offset: t.Offset, Length: t.Size, Nanos: -1,
	})
}
