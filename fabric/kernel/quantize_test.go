package kernel

// This file compares quantised vectors and sums of fours at all levels.

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestQuantizeLevels(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, block := range []int{32, 256} {
		for range 300 {
			x := make([]float32, 1+rng.IntN(1200))
			for i := range x {
				x[i] = float32(rng.NormFloat64())
			}
			switch rng.IntN(4) {
			case 0: // zeros
				clear(x[rng.IntN(len(x)):])
			case 1: // several values of the largest magnitude, with both signs
				for i := range x {
					x[i] = float32(rng.IntN(7) - 3)
				}
			case 2: // any magnitudes
				for i := range x {
					x[i] = math.Float32frombits(rng.Uint32()&0x807fffff | rng.Uint32N(0xfe)<<23)
				}
			}
			n := (len(x) + 319) / 64 * 64
			wantQ, wantScale, wantSums := make([]int8, n), make([]float32, (len(x)+block-1)/block), make([]int32, n/4)
			Go.Quantize(wantQ, wantScale, x, block)
			Go.SumFours(wantSums, wantQ)
			for _, level := range Levels() {
				q, scale, sums := make([]int8, n), make([]float32, len(wantScale)), make([]int32, n/4)
				level.Quantize(q, scale, x, block)
				level.SumFours(sums, q)
				if !slices.Equal(q, wantQ) || !sameFloats(scale, wantScale) || !slices.Equal(sums, wantSums) {
					t.Fatalf("%v, %d values in blocks of %d:\ngot  %v %v %v\nwant %v %v %v",
						level, len(x), block, q, scale, sums, wantQ, wantScale, wantSums)
				}
			}
		}
	}
}

// Values in the middle between two integers become the even one, at all levels, as in ggml's SIMD code.
func TestQuantizeTies(t *testing.T) {
	x := make([]float32, 32) // the largest is 127, so that values are divided by 1
	want := make([]int8, 32)
	x[0], want[0] = 127, 127
	for i := 1; i < 32; i++ {
		x[i] = float32(i-16) + 0.5
		want[i] = int8(math.RoundToEven(float64(x[i])))
	}
	for _, level := range Levels() {
		for _, n := range []int{32, 31} { // 31 have no whole block, and so no assembly
			q, scale := make([]int8, n), make([]float32, 1)
			level.Quantize(q, scale, x[:n], 32)
			if !slices.Equal(q, want[:n]) {
				t.Errorf("%v, %d values: %v, want %v", level, n, q, want[:n])
			}
		}
	}
}
