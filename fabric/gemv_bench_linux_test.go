package fabric_test

// This file compares the kernels' speed to ggml's. The two take turns of a few milliseconds, so
// that other activity of the machine affects both. The metrics of a benchmark are medians over
// these turns, and the median of their ratios.

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

// outOfCache is four times the largest last-level cache of the machines on which the benchmarks
// were run.
const outOfCache = 4 * 105 << 20

// pages allocates n bytes on pages that may be huge, as the pages of ggml's process are.
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

// copies makes operands of n copies of m, which skip what the thresholds say. All copies of a plane
// follow each other in memory.
func copies(b testing.TB, m *fabric.Matrix, n int, density, groups float64) []*fabric.Operand {
	all := make([]fabric.Matrix, n)
	for i := range all {
		all[i] = *m
		all[i].Terms = slices.Clone(m.Terms)
		all[i].Min = cloneScales(m.Min)
		for t := range all[i].Terms {
			all[i].Terms[t].Planes = slices.Clone(m.Terms[t].Planes)
			all[i].Terms[t].Scales = cloneScales(m.Terms[t].Scales)
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

func cloneScales(s fabric.Scales) fabric.Scales {
	s.Half, s.Sub, s.Super = slices.Clone(s.Half), slices.Clone(s.Sub), slices.Clone(s.Super)
	return s
}

// timeCalls returns the seconds that count calls of f take.
func timeCalls(count int, f func()) float64 {
	begin := time.Now()
	for range count {
		f()
	}
	return time.Since(begin).Seconds()
}

// native is a product with a matrix of a type, prepared both here and in ggml's process. There are
// as many copies of the matrix as take size bytes in ggml's process.
type native struct {
	typ        gguf.Type
	rows, cols int
	rival      *ggmltest.Rival
	operands   []*fabric.Operand
	x          *fabric.Activations
	dst        []float32
	scratch    fabric.Scratch
	next       int
	bytes      int // size of our planes and scales
}

// newNative makes a matrix of random weights of a type, and prepares its product.
func newNative(b *testing.B, rival *ggmltest.Rival, typ gguf.Type, layout trit.Layout, rows, cols, size int) *native {
	rng := rand.New(rand.NewPCG(61, 62))
	src := blocks(rng, typ, rows*cols)
	m, err := decompose.Exact(b.Context(), typ, rows, cols, src, decompose.Options{Layout: layout})
	if err != nil {
		b.Fatal(err)
	}
	n := max(1, (size+len(src)-1)/len(src))
	k := &native{
		typ: typ, rows: rows, cols: cols, rival: rival,
		operands: copies(b, m, n, -1, 2), dst: make([]float32, rows),
	}
	for _, t := range m.Terms {
		k.bytes += len(t.Planes)*len(t.Planes[0]) + 2*len(t.Scales.Half) + len(t.Scales.Sub) + 2*len(t.Scales.Super)
	}
	k.bytes += len(m.Min.Sub) + 2*len(m.Min.Super)
	x := make([]float32, cols)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	quantised, block := activationsFor(typ)
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

// ours computes our product with the next copy of the matrix.
func (k *native) ours() {
	k.operands[k.next].GEMV(k.dst, k.x, &k.scratch)
	k.next = (k.next + 1) % len(k.operands)
}

// theirs returns the seconds that count of ggml's products take.
func (k *native) theirs(b *testing.B, count int) float64 {
	d, _, err := k.rival.Multiply(k.typ, count)
	if err != nil {
		b.Fatal(err)
	}
	return d.Seconds()
}

// callsPerTurn is how many products take a few milliseconds.
func (k *native) callsPerTurn() int { return max(1, 100_000_000/(k.rows*k.cols)) }

// compare runs the benchmark.
func (k *native) compare(b *testing.B) (ours float64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var us, them, ratio []float64
	n := k.callsPerTurn()
	weights := float64(n) * float64(k.rows) * float64(k.cols) / 1e9
	b.ReportAllocs()
	for b.Loop() {
		o := timeCalls(n, k.ours)
		t := k.theirs(b, n)
		us, them, ratio = append(us, weights/o), append(them, weights/t), append(ratio, t/o)
	}
	b.ReportMetric(stats.Median(us), "Gw/s")
	b.ReportMetric(stats.Median(them), "ggml-Gw/s")
	b.ReportMetric(stats.Median(ratio), "x-ggml")
	return stats.Median(us)
}

// BenchmarkTernary compares one plane with a scale per 256 weights to ggml's TQ2_0, by layouts.
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

// BenchmarkBandwidth measures the kernels' memory bandwidth, and its share of what a core can read.
func BenchmarkBandwidth(b *testing.B) {
	rival := ggmltest.ForTest(b)
	for _, layout := range layouts {
		b.Run(layout.String(), func(b *testing.B) {
			// PT-5 takes less memory than TQ2_0. The size is so much larger that PT-5 does not fit
			// into the cache, either.
			k := newNative(b, rival, gguf.TQ2_0, layout, 4096, 4096, outOfCache*5/4)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var us, read, part []float64
			n := k.callsPerTurn()
			for b.Loop() {
				gb := float64(n*k.bytes) / 1e9
				o := gb / timeCalls(n, k.ours)
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

// BenchmarkExact compares exact planes to the types that they are made of.
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

// BenchmarkOrdered measures what ggml's order of sums costs. x-free is the speed in ggml's order,
// divided by that in the order that is otherwise used.
func BenchmarkOrdered(b *testing.B) {
	rival := ggmltest.ForTest(b)
	for _, typ := range orderedTypes {
		for _, level := range kernel.Levels() {
			b.Run(fmt.Sprintf("%v/%v", typ, level), func(b *testing.B) {
				k := newNative(b, rival, typ, trit.TwoBit, 1024, 4096, outOfCache)
				_, block := activationsFor(typ)
				use := func(order int) {
					for _, o := range k.operands {
						o.SetLevel(level)
						o.SetOrder(order)
					}
				}
				weights := float64(k.rows) * float64(k.cols) / 1e9
				var us, them, ratio, free []float64
				for b.Loop() {
					n := len(k.operands)
					use(0)
					f := timeCalls(n, k.ours)
					use(block)
					o, t := timeCalls(n, k.ours), k.theirs(b, n)
					all := float64(n) * weights
					us, them, ratio = append(us, all/o), append(them, all/t), append(ratio, t/o)
					free = append(free, f/o)
				}
				b.ReportMetric(stats.Median(us), "Gw/s")
				b.ReportMetric(stats.Median(them), "ggml-Gw/s")
				b.ReportMetric(stats.Median(ratio), "x-ggml")
				b.ReportMetric(stats.Median(free), "x-free")
			})
		}
	}
}

// compareSkipping compares products that skip to those that do not.
func compareSkipping(b *testing.B, m *fabric.Matrix, size int, density, groups float64) {
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
		w := timeCalls(times, func() { skip[next].GEMV(dst, a, &s); next = (next + 1) % n })
		wo := timeCalls(times, func() { all[next].GEMV(dst, a, &s); next = (next + 1) % n })
		weights := float64(times*m.Rows*m.Cols) / 1e9
		with, without, ratio = append(with, weights/w), append(without, weights/wo), append(ratio, wo/w)
	}
	b.ReportMetric(stats.Median(with), "Gw/s")
	b.ReportMetric(stats.Median(without), "dense-Gw/s")
	b.ReportMetric(stats.Median(ratio), "x-dense")
}

// BenchmarkSparse shows up to which density a last plane should be a list of its trits.
func BenchmarkSparse(b *testing.B) {
	for _, size := range []int{0, outOfCache} {
		for _, planes := range []int{1, 4} {
			for _, density := range []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.08} {
				b.Run(fmt.Sprintf("%dMB/planes=%d/density=%v", size>>20, planes, density), func(b *testing.B) {
					compareSkipping(b, planesMatrix(trit.PT5Striped, 1024, 4096, planes, density, 0), size, 0.2, 2)
				})
			}
		}
	}
}

// BenchmarkZeroGroups shows from which share of groups of zeros on they should be skipped.
func BenchmarkZeroGroups(b *testing.B) {
	for _, size := range []int{0, outOfCache} {
		for _, planes := range []int{1, 3} {
			for _, zeros := range []float64{0.1, 0.3, 0.5, 0.7, 0.9} {
				b.Run(fmt.Sprintf("%dMB/planes=%d/zeros=%v", size>>20, planes, zeros), func(b *testing.B) {
					compareSkipping(b, planesMatrix(trit.PT5Striped, 1024, 4096, planes, 1, zeros), size, -1, 0)
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

// newOperand prepares a matrix of a type: as codes for Q2_0, as planes for others.
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

// BenchmarkGEMM compares products of several vectors at once to as many products of one.
func BenchmarkGEMM(b *testing.B) {
	for _, typ := range []gguf.Type{gguf.TQ2_0, gguf.Q4_K, gguf.Q2_0} {
		for _, n := range []int{2, 4, 8, 32} {
			b.Run(fmt.Sprintf("%v/%d", typ, n), func(b *testing.B) {
				const rows, cols = 1024, 4096
				rng := rand.New(rand.NewPCG(91, 92))
				src := blocks(rng, typ, rows*cols)
				o := newOperand(b, typ, rows, cols, src)
				_, block := activationsFor(typ)
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
					together := timeCalls(4, func() { o.GEMM(dst, x, &s) })
					apart := timeCalls(4, func() {
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

// BenchmarkPool measures how many times as fast a pool of all processors is as one of them.
func BenchmarkPool(b *testing.B) {
	rival := ggmltest.ForTest(b)
	k := newNative(b, rival, gguf.Q4_K, trit.PT5Striped, 4096, 4096, 0)
	pool := fabric.NewPool(0)
	defer pool.Close()
	var ratio []float64
	for b.Loop() {
		one := timeCalls(4, k.ours)
		all := timeCalls(4, func() { pool.GEMV(k.operands[0], k.dst, k.x) })
		ratio = append(ratio, one/all)
	}
	b.ReportMetric(stats.Median(ratio), "x-one")
}

// BenchmarkQuantize measures the quantising of activations.
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
