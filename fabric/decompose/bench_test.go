package decompose

// This file has benchmarks, and weights to fit.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"tensorcast/fabric/trit"
	"tensorcast/gguf"
	"tensorcast/gguf/half"
)

// BenchmarkExact reports the bytes of blocks per second, and the time divided by that of copying
// the blocks to new memory. Decomposing and copying take turns.
func BenchmarkExact(b *testing.B) {
	for _, typ := range []gguf.Type{gguf.Q8_0, gguf.Q6_K, gguf.Q5_K, gguf.Q4_K, gguf.Q4_0, gguf.TQ1_0, gguf.TQ2_0} {
		for _, layout := range []trit.Layout{trit.PT5Striped, trit.PT5, trit.TwoBit} {
			if layout == trit.TwoBit && ExactPlanes(typ) > 1 {
				continue
			}
			b.Run(fmt.Sprintf("%v/%v", typ, layout), func(b *testing.B) {
				const rows, cols = 4096, 4096
				src := blocks(typ, rows*cols/int(typ.BlockElems()), rand.New(rand.NewPCG(5, 5)))
				b.SetBytes(int64(len(src)))
				var copied time.Duration
				for b.Loop() {
					b.StopTimer()
					start := time.Now()
					copy(make([]byte, len(src)), src)
					copied += time.Since(start)
					b.StartTimer()
					mustExact(b, typ, rows, cols, src, Options{Layout: layout})
				}
				b.ReportMetric(rows*cols*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gweights/s")
				b.ReportMetric(b.Elapsed().Seconds()/copied.Seconds(), "/copy")
			})
		}
	}
}

// BenchmarkLossy reports the seconds that a gigabyte of Q8_0 blocks takes.
func BenchmarkLossy(b *testing.B) {
	const rows, cols = 1024, 2560
	src := gaussian(gguf.Q8_0, rows*cols, rand.New(rand.NewPCG(6, 6)))
	for _, shared := range []bool{true, false} {
		for k := 1; (Fit{k, 32, shared}).Check() == nil; k++ {
			b.Run(fmt.Sprintf("shared=%v/planes=%d", shared, k), func(b *testing.B) {
				b.SetBytes(int64(len(src)))
				for b.Loop() {
					o := Options{Layout: trit.PT5Striped}
					if _, _, err := Lossy(b.Context(), gguf.Q8_0, rows, cols, src, Fit{k, 32, shared}, o); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/float64(len(src))*1e9, "s/GB")
				b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/rows/cols*1e9, "ns/weight")
			})
		}
	}
}

// gaussian makes blocks of a type with n normally distributed weights.
func gaussian(t gguf.Type, n int, rng *rand.Rand) []byte {
	w := make([]float64, n)
	for i := range w {
		w[i] = rng.NormFloat64() / 50
	}
	elems, size := int(t.BlockElems()), int(t.BlockBytes())
	out := make([]byte, n/elems*size)
	code := func(x float64, low, high int) byte { return byte(max(low, min(high, int(math.Round(x))))) }
	for i := range n / elems {
		x, b := w[i*elems:(i+1)*elems], out[i*size:(i+1)*size]
		switch t {
		case gguf.Q8_0:
			h := half.Round(float32(largestMagnitude(x) / 127))
			putHalf(b, h)
			for j, v := range x {
				b[2+j] = code(v/float64(half.Float32(h)), -128, 127)
			}
		case gguf.Q6_K:
			h := half.Round(float32(largestMagnitude(x) / 31 / 127))
			putHalf(b[208:], h)
			codes := make([]byte, 256)
			for j, v := range x {
				d := float64(half.Float32(h))
				s := code(largestMagnitude(x[j/16*16:j/16*16+16])/31/d, 1, 127)
				b[192+j/16] = s
				codes[j] = code(v/d/float64(s)+32, 0, 63)
			}
			f := factors{scale: factorList{super: []uint16{h}, sub: make([]int8, 16)}}
			for s := range 16 {
				f.scale.sub[s] = int8(b[192+s])
			}
			join6K(b, codes, &f)
		case gguf.Q4_K:
			f := factors{
				scale: factorList{super: make([]uint16, 1), sub: make([]int8, 8)},
				min:   factorList{super: make([]uint16, 1), sub: make([]int8, 8)},
			}
			var step, min [8]float64
			for s := range step {
				low, high := 0.0, 0.0
				for _, v := range x[32*s : 32*s+32] {
					low, high = math.Min(low, v), math.Max(high, v)
				}
				step[s], min[s] = (high-low)/15, -low
			}
			f.scale.super[0] = half.Round(float32(largestMagnitude(step[:]) / 63))
			f.min.super[0] = half.Round(float32(largestMagnitude(min[:]) / 63))
			d, dmin := float64(half.Float32(f.scale.super[0])), float64(half.Float32(f.min.super[0]))
			codes := make([]byte, 256)
			for j, v := range x {
				s := j / 32
				f.scale.sub[s], f.min.sub[s] = int8(code(step[s]/d, 1, 63)), int8(code(min[s]/dmin, 0, 63))
				codes[j] = code((v+dmin*float64(f.min.sub[s]))/(d*float64(f.scale.sub[s])), 0, 15)
			}
			join4K(b, codes, &f)
		}
	}
	return out
}

// largestMagnitude returns the largest magnitude.
func largestMagnitude(x []float64) float64 {
	m := 0.0
	for _, v := range x {
		m = math.Max(m, math.Abs(v))
	}
	return m
}

// BenchmarkRebuild reports the time per weight, and the bytes of blocks per second, for restoring
// weights and blocks from planes with shared goroutine.
func BenchmarkRebuild(b *testing.B) {
	const rows, cols = 64, 4096
	for _, typ := range []gguf.Type{gguf.Q8_0, gguf.Q4_K} {
		src := gaussian(typ, rows*cols, rand.New(rand.NewPCG(7, 7)))
		m := mustExact(b, typ, rows, cols, src, Options{})
		row := make([]float32, cols)
		b.Run(fmt.Sprintf("%v/weights", typ), func(b *testing.B) {
			for b.Loop() {
				for r := range rows {
					if err := Dequantize(row, m, r); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/rows/cols*1e9, "ns/weight")
		})
		b.Run(fmt.Sprintf("%v/blocks", typ), func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				if err := RestoreBlocks(src, m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
