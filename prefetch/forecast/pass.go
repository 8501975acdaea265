package forecast

// This file finds out from a model's file what one pass of a token through the model reads and computes.

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"tensorcast/gguf"
	"tensorcast/moe/geometry"
)

var (
	// ErrExperts says that a mixture's file does not say what a token reads of its experts.
	ErrExperts = errors.New("the file does not say what a token reads of its experts")
	// ErrNoWeights says that a model has nothing that a token reads.
	ErrNoWeights = errors.New("the model has no weights that a token reads")
)

// Pass is what a pass through the model reads. Amounts are bytes, if nothing else is said.
type Pass struct {
	Files int64 `json:"files_bytes"` // all of the model's files
	// Trunk is what every token reads: all but experts, and tables of which it reads a row.
	Trunk int64 `json:"trunk_bytes"`
	// Types are the weights that one token reads, experts among them, by type, most bytes first.
	Types []Weights `json:"types"`
	// Layers is how many layers the model has.
	Layers  int      `json:"layers"`
	Experts *Experts `json:"experts,omitempty"` // nil of a dense model
	// Context is what a token of context takes in memory: its keys and values, with 16 bits each as llama.cpp has them
	// by default.
	Context int64 `json:"context_bytes"`
}

// Weights are weights of one type.
type Weights struct {
	Type     gguf.Type `json:"-"`
	Name     string    `json:"type"`
	Bytes    float64   `json:"bytes"`
	Elements float64   `json:"elements"` // 0 of a type that is not known
	// Routed is the share of the bytes, and of the elements, that are experts'.
	Routed float64 `json:"routed"`
}

// Experts is how a mixture has its experts.
type Experts struct {
	geometry.Geometry
	Slice  int64 `json:"slice_bytes"` // of an expert in one tensor; in the mean
	Slices int   `json:"slices"`      // that an expert has: tensors of a layer
}

// Token is how many bytes of experts a token chooses.
func (e *Experts) Token() float64 { return float64(e.TokenBytes()) }

// PassOf finds out what a pass through a model reads. The error wraps ErrExperts or ErrNoWeights, and says more.
func PassOf(m *gguf.Model) (*Pass, error) {
	p := &Pass{Files: m.Size()}
	g, routed := geometry.Of(m)
	if routed && g.Chosen == 0 {
		return nil, fmt.Errorf("%w: it does not say how many of them a token chooses (expert_used_count)", ErrExperts)
	}
	share := 0.0 // of the experts that a token chooses
	if routed {
		p.Experts = &Experts{Geometry: g}
		share = float64(g.Chosen) / float64(g.Experts)
	}
	_, hasOutput := m.Lookup("output.weight")
	types, layers := map[gguf.Type]*Weights{}, map[int]bool{}
	var parts int // of all layers
	for _, f := range m.Files {
		for i := range f.Tensors {
			t := &f.Tensors[i]
			if t.Layer() >= 0 {
				layers[t.Layer()] = true
			}
			p.Context += contextOf(t, m)
			of := 1.0
			switch {
			case t.IsTable(hasOutput):
				continue
			case t.Experts() > 0:
				of = share
				if t.ExpertStride() > 0 && !strings.HasSuffix(t.Name, ".bias") {
					parts++
				}
			case t.Kind() == gguf.KindExpert:
				return nil, fmt.Errorf("%w: each has tensors of its own, as in files of 2023", ErrExperts)
			default:
				p.Trunk += t.Size
			}
			w := types[t.Type]
			if w == nil {
				w = &Weights{Type: t.Type, Name: t.Type.String()}
				types[t.Type] = w
			}
			bytes := of * float64(t.Size)
			w.Bytes += bytes
			w.Elements += of * elements(t)
			if t.Experts() > 0 {
				w.Routed += bytes
			}
		}
	}
	for _, w := range types {
		if w.Bytes > 0 {
			w.Routed /= w.Bytes
			p.Types = append(p.Types, *w)
		}
	}
	if len(p.Types) == 0 {
		return nil, ErrNoWeights
	}
	slices.SortFunc(p.Types, func(a, b Weights) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	p.Layers = len(layers)
	if e := p.Experts; e != nil {
		e.Slices = max(int(math.Round(float64(parts)/float64(e.Layers))), 1)
		e.Slice = max(e.Bytes/int64(e.Layers)/int64(e.Experts)/int64(e.Slices), 1)
	}
	return p, nil
}

// Weights is how many bytes of weights there are that tokens read: the trunk and all experts.
func (p *Pass) Weights() int64 {
	if p.Experts == nil {
		return p.Trunk
	}
	return p.Trunk + p.Experts.Bytes
}

// elements is how many elements a tensor has; 0 if its type is not known.
func elements(t *gguf.Tensor) float64 {
	if t.Opaque() {
		return 0
	}
	n := 1.0
	for _, d := range t.Shape {
		n *= float64(d)
	}
	return n
}

// valueBytes is the size of a key's or a value's element: 16 bits.
const valueBytes = 2

// contextOf is how many bytes of keys and values a token of context takes because of a tensor: the rows of the matrix
// that makes them. It is 0 of other tensors.
func contextOf(t *gguf.Tensor, m *gguf.Model) int64 {
	if len(t.Shape) != 2 || t.Layer() < 0 {
		return 0
	}
	switch t.Component() {
	case "attn_k.weight", "attn_v.weight", "attn_kv_a_mqa.weight":
		return valueBytes * t.Shape[1]
	case "attn_qkv.weight": // queries have as many rows as the output has columns
		at, ok := m.Lookup(fmt.Sprintf("blk.%d.attn_output.weight", t.Layer()))
		if !ok || len(at.Tensor.Shape) != 2 {
			return 0
		}
		return valueBytes * max(t.Shape[1]-at.Tensor.Shape[0], 0)
	}
	return 0
}
