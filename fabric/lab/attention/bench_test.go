package attention

// This file compares the times of selective and dense attention. Each iteration runs both on the
// same cache. "x-dense" is the median factor by which selective attention is faster. Package
// measure has the table with errors.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"tensorcast/internal/stats"
)

func BenchmarkAttend(b *testing.B) {
	for _, d := range []int{64, 128} {
		for _, n := range []int{2080, 4128} { // with half a block that has no ternary copy
			for _, group := range []int{1, 4} {
				b.Run(fmt.Sprintf("dim=%d/positions=%d/group=%d", d, n, group), func(b *testing.B) {
					rng := rand.New(rand.NewPCG(1, 2))
					c := newFilledCache(b,
						Config{Heads: 8, Group: group, Dim: d, Capacity: n, KeyDigits: 2, QueryDigits: 2}, n, rng)
					q := newQuery(c, 2, 9, []int{n / 3}, rng)
					dst, scale := make([]float32, len(q)), float32(1/math.Sqrt(float64(d)))
					o := Options{Scale: scale, Top: n / 16, Sinks: 4, Audit: 32, Tolerance: math.Inf(1)}
					var us, ratios []float64
					for b.Loop() {
						start := time.Now()
						c.Dense(dst, q, scale)
						middle := time.Now()
						c.Attend(dst, q, o)
						selecting := time.Since(middle)
						us = append(us, selecting.Seconds()*1e6)
						ratios = append(ratios, float64(middle.Sub(start))/float64(selecting))
					}
					b.ReportMetric(0, "ns/op") // of both together
					b.ReportMetric(stats.Median(us), "us/step")
					b.ReportMetric(stats.Median(ratios), "x-dense")
				})
			}
		}
	}
}

// BenchmarkAppend includes the share of a position in its block's ternary copy.
func BenchmarkAppend(b *testing.B) {
	for _, d := range []int{64, 128} {
		b.Run(fmt.Sprintf("dim=%d", d), func(b *testing.B) {
			const heads, n = 8, 4096
			c := newFilledCache(b,
				Config{Heads: heads, Group: 1, Dim: d, Capacity: n, KeyDigits: 2, QueryDigits: 2}, 0, nil)
			rng := rand.New(rand.NewPCG(3, 4))
			k := make([]float32, heads*d)
			for i := range k {
				k[i] = float32(rng.NormFloat64())
			}
			b.ReportAllocs()
			for b.Loop() {
				if c.n == n {
					c.n, c.sealed = 0, 0
					for i := range c.heads {
						h := &c.heads[i]
						h.residual = 0
						clear(h.means) // sums start from there
						clear(h.valueMeans)
					}
				}
				if err := c.Append(k, k); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
