package mixture

// This file draws how often experts are chosen, and which of them are in memory.

import (
	"math"

	"tensorcast/prefetch/pages"
)

// mostHeatRows and mostHeatColumns bound a picture of the experts, whatever model it is of.
const (
	mostHeatRows    = 64
	mostHeatColumns = 128
)

// Heat is a picture of the experts: a row for each layer that has some, in the order of use, and a column for each
// expert. Where there are more than the picture has room for, neighbours share a row or a column, and their mean
// counts. In JSON bytes are base64.
type Heat struct {
	Layers  int `json:"layers"`  // that have experts
	Experts int `json:"experts"` // of a layer, at most
	Rows    int `json:"rows"`
	Columns int `json:"columns"`
	// Use is how often they were chosen in about the last 256 tokens, row by row, as a part of 255 of what the most
	// used cell has.
	Use []byte `json:"use"`
	// Kept is which share of them is in memory, row by row, of 255.
	Kept   []byte `json:"kept"`
	All    int    `json:"all"`       // experts of all layers
	Inside int    `json:"in_memory"` // of these, in memory, as far as is known
	Chosen int64  `json:"chosen"`    // experts, once for each layer and decode
	Missed int64  `json:"missed"`    // of these, not in memory when they were chosen
}

// Heat draws the experts. It looks at each of them once.
func (m *Mixture) Heat() Heat {
	h := Heat{Layers: len(m.layers), Chosen: m.total.chosen, Missed: m.total.missed}
	for i := range m.layers {
		h.Experts = max(h.Experts, len(m.layers[i].experts))
	}
	h.Rows, h.Columns = min(h.Layers, mostHeatRows), min(h.Experts, mostHeatColumns)
	cells := h.Rows * h.Columns
	use, kept, count := make([]float64, cells), make([]int, cells), make([]int, cells)
	for i := range m.layers {
		l := &m.layers[i]
		row := i * h.Rows / h.Layers
		for j := range l.experts {
			e := &l.experts[j]
			cell := row*h.Columns + j*h.Columns/h.Experts
			use[cell] += e.score / l.step
			count[cell]++
			if e.resident {
				kept[cell]++
				h.Inside++
			}
		}
		h.All += len(l.experts)
	}
	h.Use, h.Kept = make([]byte, cells), make([]byte, cells)
	most := 0.0
	for i := range use {
		use[i] /= float64(max(count[i], 1))
		most = max(most, use[i])
	}
	for i := range use {
		if most > 0 {
			h.Use[i] = byte(math.Round(math.MaxUint8 * use[i] / most))
		}
		h.Kept[i] = byte(math.MaxUint8 * kept[i] / max(count[i], 1))
	}
	return h
}

// EachSlice calls visit with each slice of each expert, and whether that expert is in memory as far as is known.
func (m *Mixture) EachSlice(visit func(r pages.Range, resident bool)) {
	for i := range m.layers {
		for j := range m.layers[i].experts {
			e := &m.layers[i].experts[j]
			for _, r := range e.slices {
				visit(r, e.resident)
			}
		}
	}
}

// EachStaged calls visit with each tensor of experts that is read ahead for a prompt.
func (m *Mixture) EachStaged(visit func(r pages.Range)) {
	for _, staged := range m.stream.staged {
		visit(m.tensors[staged.number%int64(len(m.tensors))].own)
	}
}
