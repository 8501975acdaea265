package kernel

// This file compares products of sparse planes at all levels.

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// randomSparse makes a product that can be computed without rounding.
func randomSparse(rng *rand.Rand, cols, count int, density float64) *SparseRows {
	shift := uint32(4 + rng.IntN(5))
	blocks := (cols-1)>>shift + 1
	r := &SparseRows{
		Count: count, X: make([]int8, cols, cols+3), Weight: 3, Shift: shift, FactorPitch: blocks + rng.IntN(3),
		Dst:   make([]float32, count),
		Begin: []uint32{0},
	}
	r.Factors = make([]float32, count*r.FactorPitch)
	for i := range r.Factors {
		r.Factors[i] = float32(rng.IntN(5) - 2)
	}
	for i := range r.X {
		r.X[i] = int8(rng.Uint32())
	}
	for i := range r.Dst {
		r.Dst[i] = float32(rng.IntN(2001) - 1000)
		for c := range cols {
			if rng.Float64() < density {
				r.Entries = append(r.Entries, uint16(2*c+rng.IntN(2)))
			}
		}
		r.Begin = append(r.Begin, uint32(len(r.Entries)))
	}
	return r
}

func TestDotSparse(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 16))
	for range 500 {
		r := randomSparse(rng, 1+rng.IntN(700), 1+rng.IntN(4), []float64{0, 0.01, 0.1, 1}[rng.IntN(4)])
		if rng.IntN(2) == 0 { // leave out the first row
			r.Count--
			r.Begin = r.Begin[1:]
		}
		begin := append([]float32(nil), r.Dst...)
		Go.DotSparse(r)
		want := r.Dst
		for _, level := range Levels() {
			r.Dst = append([]float32(nil), begin...)
			level.DotSparse(r)
			if fmt.Sprint(r.Dst) != fmt.Sprint(want) {
				t.Fatalf("%v, %d columns: %v, want %v", level, len(r.X), r.Dst, want)
			}
		}
	}
}

// The entry of the last column that is allowed is encoded without loss.
func TestMaxSparseCols(t *testing.T) {
	last := MaxSparseCols - 1
	if e := 2*last + 1; int(uint16(e)) != e || int(uint16(e+1)) == e+1 {
		t.Errorf("entry %d of the last column does not fit, or that of one more column does", e)
	}
	for _, level := range Levels() {
		r := &SparseRows{Begin: []uint32{0, 2}, Entries: []uint16{0, uint16(2*last + 1)}, Count: 1,
			X: make([]int8, last+1, last+4), Weight: 1, Shift: 8, Factors: make([]float32, (last>>8)+1),
			FactorPitch: last>>8 + 1, Dst: make([]float32, 1)}
		r.X[0], r.X[last], r.Factors[0], r.Factors[last>>8] = 3, 5, 1, 2
		level.DotSparse(r)
		if r.Dst[0] != 3-5*2 {
			t.Errorf("%v: %v, want %v", level, r.Dst[0], 3-5*2)
		}
	}
}
