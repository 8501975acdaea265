package vec

// This file compares the times of the variants. Each iteration runs a variant and then the Go
// variant on the same data, so that other activity of the machine affects both. "x-go" is the ratio
// of the sums, i.e. the factor by which the variant is faster.

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func BenchmarkKernels(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	const rows, d = 256, 128
	for _, size := range []int{128, 4096} {
		x, y, w, dst := randomFloats(rng, size), randomFloats(rng, size), randomFloats(rng, size), make([]float32, size)
		ints, at := make([]int32, size), make([]int32, size)
		for _, kernel := range []struct {
			name string
			run  func(v variant)
		}{
			{"Dot", func(v variant) { v.dot(x, y) }},
			{"Add", func(v variant) { v.add(dst, x, y) }},
			{"AXPY", func(v variant) { v.axpy(dst, x, 1e-9) }},
			{"Scale", func(v variant) { v.scale(dst, 0.999999) }},
			{"Max", func(v variant) { v.max(x) }},
			{"ExpSum", func(v variant) { v.expSum(dst, x, 3) }},
			{"SumSquares", func(v variant) { v.sumSquares(x) }},
			{"MulScaled", func(v variant) { v.mulScaled(dst, x, w, 0.5) }},
			{"AddInt32", func(v variant) { v.addInt32(dst, w, ints, 0.5) }},
			{"CountAtLeast", func(v variant) { v.countAtLeast(x, 2) }},
			{"SumBelow", func(v variant) { v.sumBelow(x, 2) }},
			{"IndexAtLeast", func(v variant) { v.indexAtLeast(at, x, 2) }},
		} {
			benchmarkAgainstGo(b, fmt.Sprintf("%s/%d", kernel.name, size), 4*size, kernel.run)
		}
	}
	k, at := randomFloats(rng, rows*d), make([]int32, rows)
	for i, j := range rng.Perm(rows) {
		at[i] = int32(j)
	}
	q, w, dst := randomFloats(rng, d), randomFloats(rng, rows), make([]float32, rows)
	benchmarkAgainstGo(b, "DotRows/256x128", 4*len(k), func(v variant) { v.dotRows(dst, q, k, at) })
	benchmarkAgainstGo(b, "AddRows/256x128", 4*len(k), func(v variant) { v.addRows(q, w, k, at) })
}

// benchmarkAgainstGo runs a kernel with the given number of bytes of input in turn with its Go
// variant, for each other variant.
func benchmarkAgainstGo(b *testing.B, name string, bytes int, run func(v variant)) {
	for _, v := range variants() {
		if v == inGo {
			continue
		}
		b.Run(fmt.Sprintf("%s/%v", name, v), func(b *testing.B) {
			const repeats = 64 // one call is too short for the clock
			var mine, twin time.Duration
			calls := 0
			for b.Loop() {
				start := time.Now()
				for range repeats {
					run(v)
				}
				middle := time.Now()
				for range repeats {
					run(inGo)
				}
				mine += middle.Sub(start)
				twin += time.Since(middle)
				calls += repeats
			}
			b.ReportMetric(0, "ns/op") // of both together
			b.ReportMetric(float64(mine.Nanoseconds())/float64(calls), "ns/call")
			b.ReportMetric(float64(bytes)*float64(calls)/float64(mine.Nanoseconds()), "GB/s")
			b.ReportMetric(float64(twin)/float64(mine), "x-go")
		})
	}
}
