package gather

// This file tests figures of mixtures with few experts and with very many.

import (
	"math"
	"testing"

	"tensorcast/moe"
	"tensorcast/trace/tables"
)

// manyExperts is a trace of tokens of which each chooses expert 7*layer+3 and another one. The first is of a prompt.
func manyExperts(t *testing.T, layers, experts, tokens int) *moe.Trace {
	t.Helper()
	empty := &moe.Trace{Experts: experts}
	for l := range layers {
		empty.Layers = append(empty.Layers, moe.Layer{Number: int32(l), Bytes: 1})
	}
	steps := map[int32]moe.Step{0: {Phase: moe.Prompt}}
	for i := 1; i < tokens; i++ {
		steps[int32(i)] = moe.Step{Phase: moe.Decode}
	}
	tr, err := moe.FromRoutes(empty, func(yield func(tables.Route, error) bool) {
		for i := range tokens {
			for l := range layers {
				hot := (7*l + 3) % experts
				for slot, e := range []int{hot, (hot + 1 + i) % experts} {
					if !yield(tables.Route{
						Step: int32(i), Layer: int32(l), Slot: int32(slot), Expert: int32(e),
					}, nil) {
						return
					}
				}
			}
		}
	}, steps)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// Up to 256 experts have a column each, in their order. Of more, neighbours by use share a column, and the most used
// ones come first. Nothing is lost: the sum over a row is what its tokens chose.
func TestShareFigure(t *testing.T) {
	for experts, columns := range map[int]int{32: 32, 256: 256, 512: 256, 600: 200} {
		const layers, tokens = 3, 20
		f := NewExperts(manyExperts(t, layers, experts, tokens)).ShareFigure()
		m := f.Matrix
		if len(m.Columns) != 2*columns || len(m.Rows) != layers || len(m.Values) != layers*2*columns {
			t.Fatalf("%d experts: %d columns, %d rows, %d values; want %d, %d", experts, len(m.Columns), len(m.Rows),
				len(m.Values), 2*columns, layers)
		}
		each := (experts + 255) / 256
		for layer := range layers {
			row := m.Values[layer*2*columns:][:2*columns]
			sum := 0.0
			for i, v := range row[columns:] {
				sum += float64(v) * float64(min(each, experts-i*each))
			}
			if math.Abs(sum-2) > 1e-3 {
				t.Errorf("%d experts, layer %d: a token chooses %.3f, want 2", experts, layer, sum)
			}
			hot := columns
			if each == 1 {
				hot += (7*layer + 3) % experts
			}
			if row[hot] < 1/float32(each) {
				t.Errorf("%d experts, layer %d: the hottest has %.3f in column %d", experts, layer, row[hot],
					hot-columns)
			}
		}
		if last := m.Columns[len(m.Columns)-1].Number; last != (columns-1)*each {
			t.Errorf("%d experts: the last column is %d", experts, last)
		}
	}
}

// A model with 48 layers of 512 experts can be drawn, too: several experts share a row, and each token's choices are in
// it.
func TestChoiceFigure(t *testing.T) {
	for _, tc := range []struct{ layers, experts, rows, hot int }{
		{4, 32, 128, 7*3 + 3}, {48, 128, 48 * 43, 0}, {48, 512, 48 * 47, 0}, {94, 512, 94 * 25, 0},
	} {
		const tokens = 12
		f, err := NewExperts(manyExperts(t, tc.layers, tc.experts, tokens)).ChoiceFigure()
		if err != nil {
			t.Fatal(err)
		}
		m := f.Matrix
		if len(m.Rows) != tc.rows || len(m.Columns) != tokens || len(m.Values) != tc.rows*tokens {
			t.Fatalf("%d layers of %d experts: %d rows, want %d", tc.layers, tc.experts, len(m.Rows), tc.rows)
		}
		ofLayer := tc.rows / tc.layers
		for token := range tokens {
			if v := m.Values[(min(3, tc.layers-1)*ofLayer+tc.hot)*tokens+token]; v != 1 {
				t.Errorf("%d layers of %d experts: token %d has %v of the hottest of layer 3, want 1", tc.layers, tc.experts,
					token, v)
			}
		}
	}
}

// The page's map has the share of tokens that chose each expert, and its table the hot and the cold ones of each layer.
func TestExpertMaps(t *testing.T) {
	const layers, experts, tokens = 3, 16, 11
	e := NewExperts(manyExperts(t, layers, experts, tokens))
	maps := e.Maps()
	if len(maps) != 2 || maps[0].Name != "generated tokens" || len(maps[0].Rows) != layers ||
		maps[0].Columns != experts {
		t.Fatalf("maps %+v, want one of generated tokens and one of the prompt", maps)
	}
	for layer := range layers {
		hot := (7*layer + 3) % experts
		sum := 0.0
		for expert := range experts {
			sum += maps[0].At(layer, expert)
		}
		if got := maps[0].At(layer, hot); got != 100 || math.Abs(sum-200) > 1e-9 {
			t.Errorf("layer %d: the hottest has %g %% of %g, want 100 of 200", layer, got, sum)
		}
	}
	table := e.LayersTable()
	for i, row := range table.Rows {
		if len(row) != len(table.Columns) || row[0] != float64(i) || row[4] != float64((7*i+3)%experts) ||
			row[5] != 50. {
			t.Errorf("row %d is %v, want expert %d with half of the choices", i, row, (7*i+3)%experts)
		}
	}
}
