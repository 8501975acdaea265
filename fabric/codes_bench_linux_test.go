package fabric_test

// This file compares the speed of products with Q2_0 to ggml's, and to that of planes of the same
// weights.

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"tensorcast/experiments/llama/ggmltest"
	"tensorcast/fabric"
	"tensorcast/fabric/decompose"
	"tensorcast/fabric/kernel"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
	"tensorcast/internal/stats"
)

// newNativeCodes is newNative for Q2_0, with operands of blocks.
func newNativeCodes(b *testing.B, rival *ggmltest.Rival, rows, cols, size int) *native {
	rng := rand.New(rand.NewPCG(65, 66))
	src := blocks(rng, gguf.Q2_0, rows*cols)
	n := max(1, (size+len(src)-1)/len(src))
	k := &native{typ: gguf.Q2_0, rows: rows, cols: cols, rival: rival, dst: make([]float32, rows), bytes: len(src)}
	memory := pages(b, n*len(src))
	for i := range n {
		part := memory[i*len(src) : (i+1)*len(src)]
		copy(part, src)
		k.operands = append(k.operands, newCodes(b, rows, cols, part))
	}
	x := make([]float32, cols)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	var err error
	if k.x, err = fabric.NewActivations(cols, 32); err != nil {
		b.Fatal(err)
	}
	k.x.Quantize(x)
	if _, err := rival.Quantize(gguf.Q8_0, x); err != nil {
		b.Fatal(err)
	}
	if err := rival.Load(gguf.Q2_0, rows, cols, n, src); err != nil {
		b.Fatal(err)
	}
	return k
}

// BenchmarkCodes compares a product with Q2_0 to ggml's, by instruction sets, in cache and from memory.
func BenchmarkCodes(b *testing.B) {
	rival := ggmltest.ForTest(b)
	for _, where := range []struct {
		name             string
		rows, cols, size int
	}{{"1024x4096", 1024, 4096, 0}, {"4096x4096", 4096, 4096, 0}, {"memory", 4096, 4096, outOfCache}} {
		for _, level := range kernel.Levels() {
			b.Run(fmt.Sprintf("%s/%v", where.name, level), func(b *testing.B) {
				k := newNativeCodes(b, rival, where.rows, where.cols, where.size)
				for _, o := range k.operands {
					o.SetLevel(level)
				}
				k.compare(b)
			})
		}
	}
}

// BenchmarkCodesAsPlanes compares a product with blocks of Q2_0 to one with exact planes of the
// same weights. If no weight has the value 2, the second plane is an empty list, so that only one
// plane is read.
func BenchmarkCodesAsPlanes(b *testing.B) {
	for _, size := range []int{0, outOfCache} {
		for _, ternary := range []bool{true, false} {
			b.Run(fmt.Sprintf("%dMB/ternary=%v", size>>20, ternary), func(b *testing.B) {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				const rows, cols = 1024, 4096
				rng := rand.New(rand.NewPCG(67, 68))
				src := blocks(rng, gguf.Q2_0, rows*cols)
				if ternary {
					ternaryCodes(src)
				}
				m, err := decompose.Exact(b.Context(), gguf.Q2_0, rows, cols, src,
					decompose.Options{Layout: trit.TwoBit})
				if err != nil {
					b.Fatal(err)
				}
				n := max(1, size/len(src))
				planes := copies(b, m, n, 0.01, 2)
				memory := pages(b, n*len(src))
				var codes []*fabric.Operand
				for i := range n {
					part := memory[i*len(src) : (i+1)*len(src)]
					copy(part, src)
					codes = append(codes, newCodes(b, rows, cols, part))
				}
				a, err := fabric.NewActivations(cols, 32)
				if err != nil {
					b.Fatal(err)
				}
				x := make([]float32, cols)
				for i := range x {
					x[i] = float32(rng.NormFloat64())
				}
				a.Quantize(x)
				dst := make([]float32, rows)
				var s fabric.Scratch
				var speed, ratio []float64
				next := 0
				for b.Loop() {
					const times = 8
					c := timeCalls(times, func() { codes[next].GEMV(dst, a, &s); next = (next + 1) % n })
					p := timeCalls(times, func() { planes[next].GEMV(dst, a, &s); next = (next + 1) % n })
					speed, ratio = append(speed, times*rows*cols/1e9/c), append(ratio, p/c)
				}
				b.ReportMetric(stats.Median(speed), "Gw/s")
				b.ReportMetric(stats.Median(ratio), "x-planes")
			})
		}
	}
}

// BenchmarkPrompt measures a product with 256 vectors at once. It compares its speed to ggml's dot
// products, of which a prompt needs as many as it has tokens, and to our own products of one
// vector.
func BenchmarkPrompt(b *testing.B) {
	rival := ggmltest.ForTest(b)
	const rows, cols, n = 1024, 4096, 256
	for _, typ := range []gguf.Type{gguf.Q2_0, gguf.TQ2_0} {
		for _, level := range kernel.Levels()[1:] {
			b.Run(fmt.Sprintf("%v/%v", typ, level), func(b *testing.B) {
				var k *native
				if typ == gguf.Q2_0 {
					k = newNativeCodes(b, rival, rows, cols, 0)
				} else {
					k = newNative(b, rival, typ, trit.TwoBit, rows, cols, 0)
				}
				o := k.operands[0]
				o.SetLevel(level)
				x, dst := make([]*fabric.Activations, n), make([][]float32, n)
				for i := range x {
					x[i], dst[i] = k.x, make([]float32, rows)
				}
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				var us, them, ratio, apart []float64
				const some = 8 // the speed of products of one vector does not depend on their number
				for b.Loop() {
					o := timeCalls(1, func() { o.GEMM(dst, x, &k.scratch) }) / n
					t := k.theirs(b, some) / some
					one := timeCalls(some, k.ours) / some
					us, them = append(us, rows*cols/1e9/o), append(them, rows*cols/1e9/t)
					ratio, apart = append(ratio, t/o), append(apart, one/o)
				}
				b.ReportMetric(stats.Median(us), "Gw/s")
				b.ReportMetric(stats.Median(them), "ggml-Gw/s")
				b.ReportMetric(stats.Median(ratio), "x-ggml")
				b.ReportMetric(stats.Median(apart), "x-apart")
			})
		}
	}
}
