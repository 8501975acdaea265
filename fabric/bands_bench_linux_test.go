package fabric_test

// This file measures products with bands. They take turns with other products.

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tensorcast/fabric"
	"tensorcast/fabric/trit"
	"tensorcast/internal/stats"
)

// BenchmarkBands measures the speed of products with bands, as many as a token needs, on all
// processors that -cpu allows. It compares one vector with the same planes in other layouts, and
// several vectors at once with the same number one by one.
func BenchmarkBands(b *testing.B) {
	for _, size := range []int{0, outOfCache} {
		for planes := 2; planes <= 3; planes++ {
			const rows, cols = 2048, 2048
			rng := rand.New(rand.NewPCG(117, 118))
			m := fitted(b, rng, trit.PT5Striped, rows, cols, planes)
			bytes := fabric.BandsBytes(rows, cols, planes)
			n := max(1, size/bytes)
			memory := pages(b, n*bytes)
			bands := make([]*fabric.Operand, n)
			for i := range bands {
				part := memory[i*bytes : (i+1)*bytes]
				fabric.PackBands(part, m, 2)
				var err error
				if bands[i], err = fabric.NewBands(rows, cols, planes, part); err != nil {
					b.Fatal(err)
				}
			}
			var x []*fabric.Activations
			var dst [][]float32
			for range 8 {
				a, _ := smallActivations(b, rng, cols, 32)
				x, dst = append(x, a), append(dst, make([]float32, rows))
			}
			times := max(1, 100_000_000/(rows*cols))
			pool := fabric.NewPool(0)
			defer pool.Close()
			next := 0
			product := func(all []*fabric.Operand, k int) func() {
				return func() {
					pool.GEMM(all[next%n], dst[:k], x[:k])
					next++
				}
			}
			run := func(name string, ours func(), other []func()) {
				b.Run(fmt.Sprintf("%dMB/planes=%d/%s", size>>20, planes, name), func(b *testing.B) {
					var speed, ratio []float64
					for b.Loop() {
						o, t := timeCalls(times, ours), 0.0
						for _, f := range other {
							t += timeCalls(times, f)
						}
						speed, ratio = append(speed, float64(times*rows*cols)/1e9/o), append(ratio, t/o)
					}
					report(b, speed, ratio)
				})
			}
			for _, layout := range layouts {
				l := fitted(b, rng, layout, rows, cols, planes)
				run(layout.String(), product(bands, 1), []func(){product(copies(b, l, n, -1, 2), 1)})
			}
			for _, k := range []int{2, 3, 4, 8} {
				run(fmt.Sprintf("vectors=%d", k), product(bands, k), slices.Repeat([]func(){product(bands, 1)}, k))
			}
		}
	}
}

// report reports medians: billions of weights (of one vector) per second, and how many times as
// long the other way takes. It also reports the range of this ratio.
func report(b *testing.B, speed, ratio []float64) {
	b.ReportMetric(stats.Median(speed), "Gw/s")
	b.ReportMetric(stats.Median(ratio), "times")
	b.ReportMetric(slices.Min(ratio), "min")
	b.ReportMetric(slices.Max(ratio), "max")
}
