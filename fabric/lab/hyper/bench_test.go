package hyper

// This file has benchmarks.

import (
	"fmt"
	"testing"
)

func BenchmarkVector(b *testing.B) {
	for _, d := range []int{4096, 65536} {
		rng := newRand(1)
		x, y, dst, sum := dense(d, rng), dense(d, rng), New(d), NewSum(d)
		for _, op := range []struct {
			name string
			run  func()
		}{
			{"bind", func() { Bind(dst, x, y) }},
			{"permute", func() { Permute(dst, x, 77) }},
			{"blockbind", func() { BlockBind(dst, x, y) }},
			{"add", func() { sum.Add(x, 1) }},
			{"ternary", func() { sum.Ternary(dst, 1) }},
		} {
			b.Run(fmt.Sprintf("%s/%d", op.name, d), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					op.run()
				}
				b.ReportMetric(float64(d)*float64(b.N)/b.Elapsed().Seconds(), "trits/s")
			})
		}
	}
}

// BenchmarkAsk queries a bundle of 500 pairs for one value: unbinding, and cleanup among 500 vectors.
func BenchmarkAsk(b *testing.B) {
	for _, d := range []int{4096, 16384, 65536} {
		b.Run(fmt.Sprint(d), func(b *testing.B) {
			r := CapacityRow{Coding: Majority, Dim: d, Items: 500, Candidates: 500}
			ask := newPairs(&r, newRand(1))
			i := 0
			for b.Loop() {
				ask(i % r.Items)
				i++
			}
			b.ReportMetric(float64(r.Candidates)*float64(d)*float64(b.N)/b.Elapsed().Seconds(), "trits/s")
		})
	}
}

// BenchmarkEdit changes one trit of a value three levels deep. It does so in place, by replacing
// the value, and by building everything anew.
func BenchmarkEdit(b *testing.B) {
	tree := newTestTree(4096, 4, 1)
	_, leaves := tree.build(0)
	lens := leaves[5].Lens(tree.roles[2][1], tree.values[21])
	other := New(tree.d)
	i := 0
	b.Run("lens", func(b *testing.B) {
		for b.Loop() {
			lens.Set(i%tree.d, -lens.At(i%tree.d))
			i++
		}
	})
	b.Run("replace", func(b *testing.B) {
		for b.Loop() {
			other.Copy(lens.Value())
			other.Set(i%tree.d, -other.At(i%tree.d))
			lens.Replace(other)
			i++
		}
	})
	b.Run("rebuild", func(b *testing.B) {
		for b.Loop() {
			tree.rebuild(0)
		}
	})
}
