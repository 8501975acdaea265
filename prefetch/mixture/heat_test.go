package mixture

// This file tests the picture of the experts.

import (
	"fmt"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
)

// mixtureOf is a mixture of so many layers and experts, of which each has one slice of a page for each part.
func mixtureOf(layers, experts, parts int) *Mixture {
	var cycle pattern.Cycle
	for layer := range layers {
		for part := range parts {
			offset := int64(layer*parts+part) * int64(experts) * page
			cycle.Reads = append(cycle.Reads,
				expertsRead(0, fmt.Sprintf("blk.%d.ffn_%d_exps.weight", layer, part), offset, page, experts, 2))
		}
	}
	return New(&cycle, nil, Options{
		Levers: &recorder{}, Keep: true, Refuse: func(string, ...any) {}, Now: time.Now,
	})
}

// A picture has a cell for each expert, with how often it was chosen. The one that was chosen most has all of the
// scale.
func TestHeat(t *testing.T) {
	needPages(t)
	m := mixtureOf(2, 4, 3)
	m.SetRoom(1 << 30)
	for range 8 {
		for layer, ids := range [][]int32{{0, 1}, {3}} {
			if _, err := m.Select(event.Selected{Decode: 1, Layer: int32(layer), IDs: ids, IDRows: 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	h := m.Heat()
	want := []byte{255, 255, 0, 0, 0, 0, 0, 255}
	if h.Rows != 2 || h.Columns != 4 || string(h.Use) != string(want) || string(h.Kept) != string(want) ||
		h.All != 8 || h.Inside != 3 || h.Chosen != 24 {
		t.Errorf("%+v, want 2 rows of %v, with 3 experts of 8 in memory", h, want)
	}
}

// A picture is bounded. Where experts share a cell, each of them counts.
func TestHeatOfMany(t *testing.T) {
	needPages(t)
	m := mixtureOf(100, 500, 1)
	h := m.Heat()
	if h.Rows != mostHeatRows || h.Columns != mostHeatColumns || len(h.Use) != h.Rows*h.Columns ||
		len(h.Kept) != len(h.Use) || h.All != 100*500 {
		t.Errorf("%d rows, %d columns, %d cells of %d experts", h.Rows, h.Columns, len(h.Use), h.All)
	}
	for i := range m.layers {
		for j := range m.layers[i].experts {
			m.layers[i].experts[j].resident = j%2 == 0
		}
	}
	for i, in := range m.Heat().Kept {
		if in < 80 || in > 175 {
			t.Fatalf("cell %d has %d of 255 in memory, want about half", i, in)
		}
	}
}

// BenchmarkHeat makes the picture of as many experts as the largest models have, and goes through their slices.
func BenchmarkHeat(b *testing.B) {
	m := mixtureOf(60, 384, 3)
	for b.Loop() {
		m.Heat()
	}
}
