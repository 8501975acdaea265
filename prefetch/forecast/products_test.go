package forecast

// This file compares the table of types with the real ggml.

import (
	"math"
	"testing"
	"time"

	"tensorcast/experiments/llama/ggmltest"
	"tensorcast/gguf"
	"tensorcast/prefetch/pace"
)

// BenchmarkProducts reports how many products of package pace take as long as the real ggml needs for an element of a
// type, on one thread and in its cache, and what the table says.
func BenchmarkProducts(b *testing.B) {
	const rows, cols, count = 4, 4096, 20_000
	rival := ggmltest.ForTest(b)
	reader, err := pace.NewReader(1, 128<<20)
	if err != nil {
		b.Fatal(err)
	}
	defer reader.Close()
	for _, t := range []gguf.Type{
		gguf.Q4_0, gguf.Q8_0, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K, gguf.TQ1_0, gguf.TQ2_0, gguf.Q2_0,
	} {
		b.Run(t.String(), func(b *testing.B) {
			size, err := t.RowBytes(cols)
			if err != nil {
				b.Fatal(err)
			}
			data := make([]byte, rows*size)
			for i := range data {
				data[i] = byte(i*131) & 0x3f // scales stay small numbers
			}
			activations := gguf.Q8_K
			if t == gguf.Q4_0 || t == gguf.Q8_0 || t == gguf.Q2_0 {
				activations = gguf.Q8_0
			}
			if _, err := rival.Quantize(activations, make([]float32, cols)); err != nil {
				b.Fatal(err)
			}
			if err := rival.Load(t, rows, cols, 1, data); err != nil {
				b.Fatal(err)
			}
			least := math.Inf(1)
			for b.Loop() {
				n := count
				if t == gguf.Q2_0 { // it has no vectors there
					n /= 50
				}
				took, _, err := rival.Multiply(t, n)
				if err != nil {
					b.Fatal(err)
				}
				p, err := reader.Measure(b.Context(), 20*time.Millisecond)
				if err != nil {
					b.Fatal(err)
				}
				least = min(least, took.Seconds()/float64(n)/(rows*cols)*p.Products)
			}
			b.ReportMetric(least, "products/element")
			b.ReportMetric(products[t], "products/element-in-table")
		})
	}
}
