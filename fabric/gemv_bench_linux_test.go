package fabric_test

// This file compares the kernels' speed with ggml's. They alternate every few milliseconds, so that other activity of the machine affects
// both; a benchmark's metrics are medians over these turns, and the median of their ratios.

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama/ggmltest"
	"tensorcast/fabric"
	"tensorcast/fabric/decompose"
	"tensorcast/fabric/kernel"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
	"tensorcast/internal/stats"
)

// outOfCache is four times the largest last-level cache that the benchmarks have met.
const outOfCache = 4 * 105 << 20

// pages are bytes on pages that may be huge, as the rival's are.
func pages(b testing.TB, n int) []byte {
	p, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		b.Fatal(err)
	}
	if err := unix.Madvise(p, unix.MADV_HUGEPAGE); err != nil {
		b.Logf("no huge pages: %v", err)
	}
	b.Cleanup(func() { unix.Munmap(p) })
	return p
}

// copies are operands of n copies of m, each plane's one after the other in memory, which skip what thresholds tell.
func copies(b testing.TB, m *fabric.Matrix, n int, density, groups float64) []*fabric.Operand {
	all := make([]fabric.Matrix, n)
	for i := range all {
		all[i] = *m
		all[i].Terms = slices.Clone(m.Terms)
		all[i].Min = cloned(m.Min)
		for t := range all[i].Terms {
			all[i].Terms[t].Planes = slices.Clone(m.Terms[t].Planes)
			all[i].Terms[t].Scales = cloned(m.Terms[t].Scales)
		}
	}
	for t := range m.Terms {
		for p, plane := range m.Terms[t].Planes {
			memory := pages(b, n*len(plane))
			for i := range all {
				all[i].Terms[t].Planes[p] = memory[i*len(plane) : (i+1)*len(plane)]
				copy(all[i].Terms[t].Planes[p], plane)
			}
		}
	}
	operands := make([]*fabric.Operand, n)
	for i := range all {
		o, err := fabric.NewOperandSkipping(&all[i], density, groups)
		if err != nil {
			b.Fatal(err)
		}
		operands[i] = o
	}
	return operands
}

func cloned(s fabric.Scales) fabric.Scales {
	s.Half, s.Sub, s.Super = slices.Clone(s.Half), slices.Clone(s.Sub), slices.Clone(s.Super)
	return s
}

// turn times count calls of f.
func turn(count int, f func()) float64 {
	begin := time.Now()
	for range count {
		f()
	}
	return time.Since(begin).Seconds()
}

// native prepares a product with a matrix of a type, here and at the rival's, of as many copies as make size bytes there.
type native struct {
	typ        gguf.Type
	rows, cols int
	rival      *ggmltest.Rival
	operands   []*fabric.Operand
	x          *fabric.Activations
	dst        []float32
	scratch    fabric.Scratch
	next       int
	bytes      int // of our planes and scales
}

func newNative(b *testing.B, rival *ggmltest.Rival, typ gguf.Type, layout trit.Layout, rows, cols, size int) *native {
	rng := rand.New(rand.NewPCG(61, 62))
	src := blocks(rng, typ, rows*cols)
	m, err := decompose.Exact(b.Context(), typ, rows, cols, src, decompose.Options{Layout: layout})
	if err != nil {
		b.Fatal(err)
	}
	n := max(1, (size+len(src)-1)/len(src))
	k := &native{typ: typ, rows: rows, cols: cols, rival: rival, operands: copies(b, m, n, -1, 2), dst: make([]float32, rows)}
	for _, t := range m.Terms {
		k.bytes += len(t.Planes)*len(t.Planes[0]) + 2*len(t.Scales.Half) + len(t.Scales.Sub) + 2*len(t.Scales.Super)
	}
	k.bytes += len(m.Min.Sub) + 2*len(m.Min.Super)
	x := make([]float32, cols)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	quantised, block := with(typ)
	if k.x, err = fabric.NewActivations(cols, block); err != nil {
		b.Fatal(err)
	}
	k.x.Quantize(x)
	if _, err := rival.Quantize(quantised, x); err != nil {
		b.Fatal(err)
	}
	if err := rival.Load(typ, rows, cols, n, src); err != nil {
		b.Fatal(err)
	}
	return k
}

func (k *native) ours() {
	k.operands[k.next].GEMV(k.dst, k.x, &k.scratch)
	k.next = (k.next + 1) % len(k.operands)
}

func (k *native) theirs(b *testing.B, count int) float64 {
	d, _, err := k.rival.Multiply(k.typ, count)
	if err != nil {
		b.Fatal(err)
	}
	return d.Seconds()
}

// count is how many products take a few milliseconds.
func (k *native) count() int { return max(1, 100_000_000/(k.rows*k.cols)) }

// compare runs the benchmark.
func (k *native) compare(b *testing.B) (ours float64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var us, them, ratio []float64
	n := k.count()
	weights := float64(n) * float64(k.rows) * float64(k.cols) / 1e9
	b.ReportAllocs()
	for b.Loop() {
		o := turn(n, k.ours)
		t := k.theirs(b, n)
		us, them, ratio = append(us, weights/o), append(them, weights/t), append(ratio, t/o)
	}
	b.ReportMetric(stats.Median(us), "Gw/s")
	b.ReportMetric(stats.Median(them), "ggml-Gw/s")
	b.ReportMetric(stats.Median(ratio), "x-ggml")
	return stats.Median(us)
}

// BenchmarkTernary is one plane with a scale per 256 weights, by layouts, against ggml's TQ2_0.
func BenchmarkTernary(b *testing.B) {
	rival := ggmltest.ForTest(b)
	for _, where := range []struct {
		name             string
		rows, cols, size int
	}{{"1024x4096", 1024, 4096, 0}, {"4096x4096", 4096, 4096, 0}, {"memory", 4096, 4096, outOfCache}} {
		for _, layout := range layouts {
			b.Run(fmt.Sprintf("%s/%v", where.name, layout), func(b *testing.B) {
				newNative(b, rival, gguf.TQ2_0, layout, where.rows, where.cols, where.size).compare(b)
			})
		}
	}
}

// BenchmarkBandwidth is how much of what a core can read the kernels read, from memory.
func BenchmarkBandwidth(b *testing.B) {
	rival := ggmltest.ForTest(b)
	for _, layout := range layouts {
		b.Run(layout.String(), func(b *testing.B) {
			// PT-5 takes less than TQ2_0: so much more that it, too, is out of the cache.
			k := newNative(b, rival, gguf.TQ2_0, layout, 4096, 4096, outOfCache*5/4)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var us, read, part []float64
			n := k.count()
			for b.Loop() {
				gb := float64(n*k.bytes) / 1e9
				o := gb / turn(n, k.ours)
				best := 0.0
				for _, ahead := range []int{0, 8192} {
					d, err := rival.Read(n, ahead)
					if err != nil {
						b.Fatal(err)
					}
					best = max(best, float64(n)*4096*4096/256*66/1e9/d.Seconds())
				}
				us, read, part = append(us, o), append(read, best), append(part, o/best)
			}
			b.ReportMetric(stats.Median(us), "GB/s")
			b.ReportMetric(stats.Median(read), "read-GB/s")
			b.ReportMetric(stats.Median(part), "of-read")
		})
	}
}

// BenchmarkExact is exact planes against the types that they are made of.
func BenchmarkExact(b *testing.B) {
	rival := ggmltest.ForTest(b)
	for _, typ := range []gguf.Type{gguf.Q4_K, gguf.Q6_K, gguf.Q8_0, gguf.TQ1_0} {
		for _, size := range []int{0, outOfCache} {
			for _, layout := range layouts {
				b.Run(fmt.Sprintf("%v/%dMB/%v", typ, size>>20, layout), func(b *testing.B) {
					newNative(b, rival, typ, layout, 1024, 4096, size).compare(b)
				})
			}
		}
	}
}

// BenchmarkOrdered is what ggml's order of sums costs: x-free is how many times as fast products are as without it.
func BenchmarkOrdered(b *testing.B) {
	rival := ggmltest.ForTest(b)
	for _, typ := range orderedTypes {
		for _, level := range kernel.Levels() {
			b.Run(fmt.Sprintf("%v/%v", typ, level), func(b *testing.B) {
				k := newNative(b, rival, typ, trit.TwoBit, 1024, 4096, outOfCache)
				_, block := with(typ)
				use := func(order int) {
					for _, o := range k.operands {
						o.SetLevel(level)
						o.Order(order)
					}
				}
				weights := float64(k.rows) * float64(k.cols) / 1e9
				var us, them, ratio, free []float64
				for b.Loop() {
					n := len(k.operands)
					use(0)
					f := turn(n, k.ours)
					use(block)
					o, t := turn(n, k.ours), k.theirs(b, n)
					all := float64(n) * weights
					us, them, ratio, free = append(us, all/o), append(them, all/t), append(ratio, t/o), append(free, f/o)
				}
				b.ReportMetric(stats.Median(us), "Gw/s")
				b.ReportMetric(stats.Median(them), "ggml-Gw/s")
				b.ReportMetric(stats.Median(ratio), "x-ggml")
				b.ReportMetric(stats.Median(free), "x-free")
			})
		}
	}
}

// skipping compares products that skip with those that do not.
func skipping(b *testing.B, m *fabric.Matrix, size int, density, groups float64) {
	a, err := fabric.NewActivations(m.Cols, 32)
	if err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(83, 84))
	for i := range a.Q[:m.Cols] {
		a.Q[i] = int8(rng.IntN(255) - 127)
	}
	n := max(1, size/(len(m.Terms[0].Planes)*len(m.Terms[0].Planes[0])))
	all := copies(b, m, n, -1, 2)
	skip := copies(b, m, n, density, groups)
	dst := make([]float32, m.Rows)
	var s fabric.Scratch
	var with, without, ratio []float64
	next := 0
	for b.Loop() {
		times := max(1, 20_000_000/(m.Rows*m.Cols))
		w := turn(times, func() { skip[next].GEMV(dst, a, &s); next = (next + 1) % n })
		wo := turn(times, func() { all[next].GEMV(dst, a, &s); next = (next + 1) % n })
		weights := float64(times*m.Rows*m.Cols) / 1e9
		with, without, ratio = append(with, weights/w), append(without, weights/wo), append(ratio, wo/w)
	}
	b.ReportMetric(stats.Median(with), "Gw/s")
	b.ReportMetric(stats.Median(without), "dense-Gw/s")
	b.ReportMetric(stats.Median(ratio), "x-dense")
}

// BenchmarkSparse finds the density up to which a last plane is better a list of its trits.
func BenchmarkSparse(b *testing.B) {
	for _, size := range []int{0, outOfCache} {
		for _, planes := range []int{1, 4} {
			for _, density := range []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.08} {
				b.Run(fmt.Sprintf("%dMB/planes=%d/density=%v", size>>20, planes, density), func(b *testing.B) {
					skipping(b, planesMatrix(trit.PT5Striped, 1024, 4096, planes, density, 0), size, 0.2, 2)
				})
			}
		}
	}
}

// BenchmarkZeroGroups finds the part of groups of zeros from which on skipping them is better.
func BenchmarkZeroGroups(b *testing.B) {
	for _, size := range []int{0, outOfCache} {
		for _, planes := range []int{1, 3} {
			for _, zeros := range []float64{0.1, 0.3, 0.5, 0.7, 0.9} {
				b.Run(fmt.Sprintf("%dMB/planes=%d/zeros=%v", size>>20, planes, zeros), func(b *testing.B) {
					skipping(b, planesMatrix(trit.PT5Striped, 1024, 4096, planes, 1, zeros), size, -1, 0)
				})
			}
		}
	}
}

// BenchmarkLevels is BenchmarkTernary in cache, by instruction sets.
func BenchmarkLevels(b *testing.B) {
	rival := ggmltest.ForTest(b)
	for _, level := range kernel.Levels() {
		for _, layout := range layouts {
			b.Run(fmt.Sprintf("%v/%v", level, layout), func(b *testing.B) {
				k := newNative(b, rival, gguf.TQ2_0, layout, 1024, 4096, 0)
				k.operands[0].SetLevel(level)
				k.compare(b)
			})
		}
	}
}

// newOperand prepares a matrix of a type: codes of Q2_0, planes of others.
func newOperand(b *testing.B, typ gguf.Type, rows, cols int, src []byte) *fabric.Operand {
	if typ == gguf.Q2_0 {
		return newCodes(b, rows, cols, src)
	}
	m, err := decompose.Exact(b.Context(), typ, rows, cols, src, decompose.Options{Layout: trit.TwoBit})
	if err != nil {
		b.Fatal(err)
	}
	o, err := fabric.NewOperand(m)
	if err != nil {
		b.Fatal(err)
	}
	return o
}

// BenchmarkGEMM is what several vectors cost, against as many products of one.
func BenchmarkGEMM(b *testing.B) {
	for _, typ := range []gguf.Type{gguf.TQ2_0, gguf.Q4_K, gguf.Q2_0} {
		for _, n := range []int{2, 4, 8, 32} {
			b.Run(fmt.Sprintf("%v/%d", typ, n), func(b *testing.B) {
				const rows, cols = 1024, 4096
				rng := rand.New(rand.NewPCG(91, 92))
				src := blocks(rng, typ, rows*cols)
				o := newOperand(b, typ, rows, cols, src)
				_, block := with(typ)
				x, dst := make([]*fabric.Activations, n), make([][]float32, n)
				for i := range x {
					var err error
					if x[i], err = fabric.NewActivations(cols, block); err != nil {
						b.Fatal(err)
					}
					v := make([]float32, cols)
					for j := range v {
						v[j] = float32(rng.NormFloat64())
					}
					x[i].Quantize(v)
					dst[i] = make([]float32, rows)
				}
				var s fabric.Scratch
				var speed, ratio []float64
				for b.Loop() {
					together := turn(4, func() { o.GEMM(dst, x, &s) })
					apart := turn(4, func() {
						for i := range x {
							o.GEMV(dst[i], x[i], &s)
						}
					})
					speed, ratio = append(speed, 4*float64(n)*rows*cols/1e9/together), append(ratio, apart/together)
				}
				b.ReportMetric(stats.Median(speed), "Gw/s")
				b.ReportMetric(stats.Median(ratio), "x-apart")
			})
		}
	}
}

// BenchmarkPool is what a pool of all processors gains over one.
func BenchmarkPool(b *testing.B) {
	rival := ggmltest.ForTest(b)
	k := newNative(b, rival, gguf.Q4_K, trit.PT5Striped, 4096, 4096, 0)
	pool := fabric.NewPool(0)
	defer pool.Close()
	var ratio []float64
	for b.Loop() {
		one := turn(4, k.ours)
		all := turn(4, func() { pool.GEMV(k.operands[0], k.dst, k.x) })
		ratio = append(ratio, one/all)
	}
	b.ReportMetric(stats.Median(ratio), "x-one")
}

// BenchmarkQuantize is what activations cost.
func BenchmarkQuantize(b *testing.B) {
	rng := rand.New(rand.NewPCG(93, 94))
	x := make([]float32, 4096)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	for _, block := range []int{32, 256} {
		b.Run(fmt.Sprint(block), func(b *testing.B) {
			a, err := fabric.NewActivations(len(x), block)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(4 * len(x)))
			for b.Loop() {
				a.Quantize(x)
			}
		})
	}
}
