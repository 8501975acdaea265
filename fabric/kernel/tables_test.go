package kernel

// This file tests products by lookup tables.

import (
	"math/rand/v2"
	"slices"
	"testing"

	"tensorcast/fabric/trit"
)

// TestTables compares products by tables with those of decoded weights, which are the same bit for bit.
func TestTables(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	for _, layout := range []trit.Layout{trit.PT5Striped, trit.TwoBit} {
		n, _ := layout.Group()
		for _, groups := range []int{1, 2, 3, 4, 5, 9, 13} {
			for _, count := range []int{1, minTableRows, 70, TableRows + 3} {
				cols, pitch := groups*n, (groups*n+255)/256+rng.IntN(3)
				p := &Product{
					Layout: layout, Groups: groups, Count: count, Block: 256,
					X: make([]int8, cols), Bias: make([]int32, 16*pitch),
					FactorPitch: pitch, Factors: make([]float32, count*pitch), Dst: make([]float32, count),
					Weights: make([]byte, cols), Planes: [][]byte{make([]byte, count*groups*64)},
				}
				for i := range p.X {
					p.X[i] = int8(rng.Uint32())
					if groups == 4 {
						p.X[i] = -128
					}
				}
				for i := range p.Bias {
					p.Bias[i] = int32(rng.IntN(20001) - 10000)
				}
				for i := range p.Factors {
					p.Factors[i] = float32(rng.NormFloat64())
				}
				row, digit := make([]int8, cols), rng.IntN(4)
				for r := range count {
					for c := range row {
						row[c] = int8(rng.IntN(3) - 1)
						if digit < 3 && groups == 4 {
							row[c] = int8(digit - 1)
						}
					}
					layout.Pack(p.Planes[0][r*groups*64:][:groups*64], row)
				}
				for i := range p.Dst {
					p.Dst[i] = float32(rng.NormFloat64())
				}
				begun := slices.Clone(p.Dst)
				multiplyByTables(p)
				got := p.Dst
				p.Dst = slices.Clone(begun)
				for r := range count {
					Go.Decode(layout, p.Weights, [][]byte{p.Planes[0][r*groups*64:]}, groups*64)
					Go.Dot(&Rows{
						Weights: p.Weights, Pitch: cols, Count: 1, Stripes: cols / Stripe, X: p.X, Block: 256,
						Bias: p.Bias, Factors: p.Factors[r*pitch:], Dst: p.Dst[r:],
					})
				}
				if !sameFloats(got, p.Dst) {
					t.Fatalf("%v, %d groups, %d rows:\ngot  %v\nwant %v", layout, groups, count, got, p.Dst)
				}
			}
		}
	}
}
