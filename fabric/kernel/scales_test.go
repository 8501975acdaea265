package kernel

// This file compares factors made of scales, and sums that are subtracted, at all levels.

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// sameFloats reports whether all numbers have the same bits. All NaNs count as the same.
func sameFloats(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool {
		return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
	})
}

func TestExpand(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, per := range []int{0, 1, 2, 4, 8, 16} {
		for blocks := 1; blocks < 70; blocks++ {
			for range 4 {
				s := &Scales{Rows: 1 + rng.IntN(4), Blocks: blocks, Per: per, With: make([]float32, blocks)}
				for i := range s.With {
					s.With[i] = float32(rng.NormFloat64())
				}
				if per == 0 {
					s.Half = make([]uint16, s.Rows*blocks)
					for i := range s.Half {
						s.Half[i] = uint16(rng.Uint32())
					}
				} else {
					s.Supers = (blocks + per - 1) / per
					s.Sub, s.Super = make([]int8, s.Rows*blocks), make([]uint16, s.Rows*s.Supers)
					for i := range s.Sub {
						s.Sub[i] = int8(rng.Uint32())
					}
					for i := range s.Super {
						s.Super[i] = uint16(rng.Uint32())
					}
				}
				pitch := blocks + rng.IntN(3)
				want := make([]float32, s.Rows*pitch+16)
				for i := range want {
					want[i] = 77
				}
				begin := slices.Clone(want)
				Go.Expand(want, pitch, s)
				for _, level := range Levels() {
					got := slices.Clone(begin)
					level.Expand(got, pitch, s)
					if !sameFloats(got, want) {
						t.Fatalf("%v, %d blocks, %d of a super: %v, want %v", level, blocks, per, got, want)
					}
				}
			}
		}
	}
}

func TestSubtractSums(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for n := 1; n < 100; n++ {
		rows, pitch := 1+rng.IntN(3), n+rng.IntN(4)
		v, begin := make([]float32, rows*pitch), make([]float32, rows)
		for i := range v {
			v[i] = float32(rng.IntN(2001) - 1000)
		}
		want := slices.Clone(begin)
		Go.SubtractSums(want, v, pitch, n)
		for _, level := range Levels() {
			got := slices.Clone(begin)
			level.SubtractSums(got, v, pitch, n)
			if !sameFloats(got, want) {
				t.Fatalf("%v, %d values: %v, want %v", level, n, got, want)
			}
		}
	}
}
