// Package synth writes GGUF models with random weights that a real llama.cpp loads and runs.
//
// Experiments need models of any size that can be made anywhere with the same bytes: [Config]
// describes a model, [NewPlan] computes every tensor and the exact file size, and [Plan.Write]
// streams the file in constant memory. The models have the graph of llama, dense or mixture of
// experts, or another one with another kind of router ([Archs]), and a byte-level vocabulary. Their
// weights are noise, but they behave: activations stay finite through any number of layers, greedy
// text varies and depends on the whole prompt, the experts change from token to token, and the
// end-of-text token practically never comes. With [Config].Routes, a mixture's experts are those that a
// recorded trace says instead, token by token ([Routing]). "lab synth" and tests use it.
package synth

// This file defines the configuration of a model and checks whether llama.cpp can run it.

import (
	"cmp"
	"fmt"
	"strings"

	"tensorcast/gguf"
	"tensorcast/moe"
)

// Config describes a model. The zero values of Vocab and Ctx mean the usual values; all other
// dimensions are required. The same Config gives the same bytes on every machine.
type Config struct {
	Layers int // transformer blocks, 1 to 512
	Embd   int // width of the residual stream, in elements; a whole number of blocks of Type
	// hidden width of the feed-forward network, of each expert if Experts > 0; a whole number of
	// blocks of Type
	FF      int
	Heads   int // query heads; Embd/Heads is the head width, which must be even
	KVHeads int // key and value heads; must divide Heads
	// tokens; 0 means ByteVocab, the least possible. Tokens beyond it are words that only occur in
	// the model's output.
	Vocab   int
	Ctx     int // context length to declare; 0 means 4096
	Experts int // experts per layer, 2 to 512; 0 makes a dense model
	Used    int // experts per token

	// Arch is the graph: one of Archs. "" means llama, or gemma4 with Table. All others have experts.
	Arch       string
	Groups     int // groups of experts, of which the best GroupsUsed are chosen before experts are; 0: none
	GroupsUsed int
	Shared     int  // shared experts, as wide as the others, which every token uses; 0 means 1 where the graph has them
	Sigmoid    bool // the router scores by sigmoid, and has a bias that only the choice sees (deepseek2)
	Fused      bool // the experts' gate and up are one tensor (deepseek2)
	Hashed     int  // first layers in which the token's id chooses the experts (deepseek4)

	// Table is about how many bytes the table per_layer_token_embd.weight has, with a row for each token (gemma4). It
	// replaces Vocab: there are as many tokens as the table has rows. 0: Vocab says how many.
	Table int64
	// PerLayer is how many elements of a row each layer reads (gemma4); a whole number of blocks of Type. 0 means Embd.
	PerLayer int

	// Routes is a trace that is planted, see Routing; nil: routing is random. Then 0 means the trace's
	// number for Layers, Experts and Used. Layers with experts are the trace's in turn, whatever their
	// number.
	Routes *moe.Trace
	Recall float64 // Routing.Recall that is wanted; 0 means UsualRecall

	// Of all matrices except the router: one of Types. With Routes, the embedding and the output are Q8_0
	// if this is quantised.
	Type gguf.Type
	Seed uint64 // of all values
	Tied bool   // no output.weight: token_embd.weight is used for the logits, too
}

// ByteVocab is the size of the byte-level vocabulary: <unk>, <s>, </s> and the 256 bytes.
const ByteVocab = 259

// Limits of a Config. Those for layers and experts are llama.cpp's (LLAMA_MAX_LAYERS,
// LLAMA_MAX_EXPERTS). The one for dimensions is ours: it is beyond any real model, and no size
// computed here exceeds 63 bits (512 layers x 3 matrices x 512 experts x 2^20 x 2^20 elements x 4
// bytes < 2^63).
const (
	maxLayers  = 512
	maxExperts = 512
	maxDim     = 1 << 20
)

// Types lists the supported weight types.
func Types() []gguf.Type {
	return []gguf.Type{gguf.F32, gguf.F16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_K, gguf.Q2_0, gguf.Q1_0, gguf.TQ1_0,
		gguf.TQ2_0}
}

// ParseType returns the type with this name, in upper or lower case.
func ParseType(name string) (gguf.Type, error) {
	var names []string
	for _, t := range Types() {
		if strings.EqualFold(t.String(), name) {
			return t, nil
		}
		names = append(names, t.String())
	}
	return 0, &ConfigError{"type", fmt.Sprintf("%q is not one of %s", name, strings.Join(names, ", "))}
}

// ConfigError says which setting makes a model impossible, and why.
type ConfigError struct {
	Setting string // name of the flag, e.g. "kv-heads"
	Reason  string // what is wrong with the value, and what would be right
}

func (e *ConfigError) Error() string { return e.Setting + ": " + e.Reason }

// withDefaults fills in the settings whose zero value means a default.
func (c Config) withDefaults() Config {
	if c.Vocab == 0 {
		c.Vocab = ByteVocab
		if c.Routes != nil {
			c.Vocab += len(c.Routes.Tokens)
		}
	}
	if c.Ctx == 0 {
		c.Ctx = 4096
	}
	if c.Arch == "" {
		c.Arch = llamaArch
		if c.Table > 0 {
			c.Arch = gemma4Arch
		}
	}
	if graphs[c.Arch].table {
		c.PerLayer = cmp.Or(c.PerLayer, c.Embd)
		if row := c.tableRow(); c.Table > 0 && row > 0 {
			c.Vocab = int(max(min(c.Table/row, maxDim+1), ByteVocab))
		}
	}
	if graphs[c.Arch].shared && c.Shared == 0 {
		c.Shared = 1
	}
	if c.Routes != nil {
		c.Experts, c.Used = cmp.Or(c.Experts, c.Routes.Experts), cmp.Or(c.Used, c.Routes.K)
		c.Recall = cmp.Or(c.Recall, UsualRecall)
		if c.Layers == 0 {
			c.Layers = 2 // or a layer would not count as dense
			c.Layers = len(c.Routes.Layers) + c.denseLayers()
		}
	}
	return c
}

// tableRow is how many bytes a row of the table has; 0 if it cannot have a row of that width.
func (c Config) tableRow() int64 {
	if c.PerLayer < 0 || c.PerLayer > maxDim || c.Layers < 0 || c.Layers > maxLayers {
		return 0
	}
	row, err := c.Type.RowBytes(int64(c.PerLayer) * int64(c.Layers))
	if err != nil {
		return 0
	}
	return row
}

// check returns a *ConfigError if llama.cpp could not run the model.
func (c Config) check() error {
	if fileType(c.Type) < 0 {
		return &ConfigError{"type", fmt.Sprintf("%v weights cannot be written", c.Type)}
	}
	g, ok := graphs[c.Arch]
	if !ok {
		return &ConfigError{"arch", fmt.Sprintf("%q is not one of %s", c.Arch, strings.Join(Archs(), ", "))}
	}
	if c.Routes != nil {
		if err := c.checkRoutes(); err != nil {
			return err
		}
	}
	minExperts := 0
	if c.Experts != 0 || c.Used != 0 || !g.dense {
		minExperts = 2 // llama.cpp treats a model with one expert as dense, and then misses tensors
	}
	if c.Table > 0 && c.Vocab > maxDim {
		return &ConfigError{"table", fmt.Sprintf("%d bytes are more than %d rows of %d bytes: make the rows longer, by "+
			"more layers or a larger part for each", c.Table, maxDim, c.tableRow())}
	}
	for _, f := range []struct {
		setting     string
		value       int
		least, most int
	}{
		{"layers", c.Layers, 1, maxLayers},
		{"embd", c.Embd, 1, maxDim},
		{"ff", c.FF, 1, maxDim},
		{"heads", c.Heads, 1, maxDim},
		{"kv-heads", c.KVHeads, 1, maxDim},
		{"per-layer", c.PerLayer, 0, maxDim},
		{"vocab", c.Vocab, ByteVocab, maxDim},
		{"ctx", c.Ctx, 1, maxDim * 16},
		{"experts", c.Experts, minExperts, maxExperts},
		{"used", c.Used, min(c.Experts, 1), c.Experts},
		{"groups", c.Groups, 0, max(c.Experts-1, 0)},
		{"groups-used", c.GroupsUsed, min(c.Groups, 1), max(c.Groups-1, min(c.Groups, 1))},
		{"shared", c.Shared, 0, maxExperts},
		{"hashed", c.Hashed, 0, c.Layers},
	} {
		if f.value < f.least || f.value > f.most {
			return &ConfigError{f.setting, fmt.Sprintf("%d is outside %d to %d", f.value, f.least, f.most)}
		}
	}
	block := int(c.Type.BlockElems())
	switch {
	case c.Table < 0:
		return &ConfigError{"table", fmt.Sprintf("%d bytes are less than nothing", c.Table)}
	case c.PerLayer%block != 0:
		return &ConfigError{"per-layer",
			fmt.Sprintf("%d is not a multiple of %d, the block of %v", c.PerLayer, block, c.Type)}
	case c.Embd%block != 0:
		return &ConfigError{"embd", fmt.Sprintf("%d is not a multiple of %d, the block of %v", c.Embd, block, c.Type)}
	case c.FF%block != 0:
		return &ConfigError{"ff", fmt.Sprintf("%d is not a multiple of %d, the block of %v", c.FF, block, c.Type)}
	case c.Embd%(2*c.Heads) != 0:
		return &ConfigError{"heads", fmt.Sprintf("%d heads do not divide a width of %d into heads of an even width",
			c.Heads, c.Embd)}
	case c.Heads%c.KVHeads != 0:
		return &ConfigError{"kv-heads", fmt.Sprintf("%d does not divide %d heads", c.KVHeads, c.Heads)}
	}
	return c.checkArch(g)
}

// checkArch checks what depends on the graph.
func (c Config) checkArch(g graph) error {
	lacks := func(setting, what string) error {
		return &ConfigError{setting, fmt.Sprintf("%s has no %s", c.Arch, what)}
	}
	switch {
	case c.Sigmoid && !g.sigmoid:
		return lacks("sigmoid", "router with sigmoid")
	case c.Fused && !g.fusable:
		return lacks("fused", "tensors of gate and up")
	case c.Shared > 0 && !g.shared:
		return lacks("shared", "shared experts")
	case (c.Table != 0 || c.PerLayer != 0) && !g.table:
		return lacks("table", "table with a row for each token")
	case g.table && c.Routes != nil:
		return &ConfigError{"routes", fmt.Sprintf("a trace cannot be planted in a %s", c.Arch)}
	case g.table && c.Layers < 2:
		return &ConfigError{"layers", fmt.Sprintf("%s needs two layers or more", c.Arch)}
	case c.Hashed > 0 && c.Arch != deepseek4Arch:
		return lacks("hashed", "routers that go by the token's id")
	case c.Tied && g.untied:
		return lacks("tied", "output from token embeddings")
	case c.Groups == 1 || c.Groups > 1 && (c.Experts%c.Groups != 0 || c.Experts < 2*c.Groups):
		return &ConfigError{"groups",
			fmt.Sprintf("%d experts cannot be in %d groups: want two groups or more, of two or more, all of the "+
				"same size", c.Experts, c.Groups)}
	case c.Groups > 1 && c.Used > c.Experts/c.Groups*c.GroupsUsed:
		return &ConfigError{"groups-used", fmt.Sprintf("%d groups have fewer than %d experts", c.GroupsUsed, c.Used)}
	case g.ropeHalf && c.Embd%(4*c.Heads) != 0:
		return &ConfigError{"heads", fmt.Sprintf("%s needs heads whose width is a multiple of 4", c.Arch)}
	case c.Arch == deepseek4Arch && c.Embd%(32*c.Heads) != 0: // the indexer's keys are rotated 64 at a time
		return &ConfigError{"heads", fmt.Sprintf("%s needs heads whose width is a multiple of 32", c.Arch)}
	case c.Arch == deepseek2Arch && (c.Layers == 26 || c.Layers == 27 || c.Layers == 48 && c.Vocab == 128256):
		return &ConfigError{"layers",
			fmt.Sprintf("llama.cpp takes a deepseek2 of %d layers for a lite one, with other tensors", c.Layers)}
	case c.FF*max(c.Shared, 1) > maxDim:
		return &ConfigError{"shared", fmt.Sprintf("%d experts of width %d are wider than %d", c.Shared, c.FF, maxDim)}
	}
	return nil
}
