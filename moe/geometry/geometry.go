// Package geometry says what can be known of a mixture of experts from its file alone: how many experts it has, how
// large they are, and in which range what memory for them buys lies. Which of it is so depends on how the model
// routes, which only a trace tells.
package geometry

// This file reads the geometry.

import "tensorcast/gguf"

// Geometry is how a model's file has its experts. Amounts are bytes.
type Geometry struct {
	Layers  int   `json:"layers"`  // that have experts
	Experts int   `json:"experts"` // of a layer; of several numbers the greatest
	Chosen  int   `json:"chosen"`  // of these by a token; 0 if the file does not say
	Bytes   int64 `json:"bytes"`   // of all experts
	// Rest is what a token reads besides, at most: all other tensors but tables of which it reads a row.
	Rest int64 `json:"rest_bytes"`
}

// Of reads the geometry of a model. It is false of a dense model.
func Of(m *gguf.Model) (g Geometry, ok bool) {
	layers := map[int]bool{}
	_, hasOutput := m.Lookup("output.weight")
	for _, f := range m.Files {
		for i := range f.Tensors {
			t := &f.Tensors[i]
			n := t.Experts()
			switch {
			case n > 0 && t.Layer() >= 0:
				layers[t.Layer()] = true
				g.Experts = max(g.Experts, n)
				g.Bytes += t.Size
			case t.Name == "per_layer_token_embd.weight" || t.Name == "token_embd.weight" && hasOutput:
			default:
				g.Rest += t.Size
			}
		}
	}
	if g.Layers = len(layers); g.Layers == 0 || g.Bytes <= 0 {
		return Geometry{}, false
	}
	first := m.Files[0]
	arch, _ := first.String("general.architecture")
	if used, ok := first.Uint(arch + ".expert_used_count"); ok && used <= uint64(g.Experts) {
		g.Chosen = int(used)
	}
	return g, true
}

// TokenBytes is how many bytes of experts a token reads that finds none of them in memory.
func (g *Geometry) TokenBytes() int64 {
	return int64(float64(g.Bytes) * float64(g.Chosen) / float64(g.Experts))
}
