package fabric_test

// This file compares products with bands to those with the planes that the bands were made of.

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tensorcast/fabric"
	"tensorcast/fabric/decompose"
	"tensorcast/fabric/kernel"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
	ieee "tensorcast/gguf/half"
)

// fitted makes planes that are fitted to random weights, with one factor for each 32 columns.
func fitted(t testing.TB, rng *rand.Rand, layout trit.Layout, rows, cols, planes int) *fabric.Matrix {
	t.Helper()
	fit := decompose.Fit{Planes: planes, Block: 32, Shared: true}
	src := blocks(rng, gguf.Q8_0, rows*cols)
	m, _, err := decompose.Lossy(t.Context(), gguf.Q8_0, rows, cols, src, fit, decompose.Options{Layout: layout})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// bandsOf returns an operand of the bands of m.
func bandsOf(t testing.TB, m *fabric.Matrix) *fabric.Operand {
	t.Helper()
	planes := len(m.Terms[0].Planes)
	b := make([]byte, fabric.BandsBytes(m.Rows, m.Cols, planes))
	fabric.PackBands(b, m, 2)
	o, err := fabric.NewBands(m.Rows, m.Cols, planes, b)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestBands(t *testing.T) {
	rng := rand.New(rand.NewPCG(111, 112))
	var s fabric.Scratch
	for range 40 {
		rows, cols, planes := 1+rng.IntN(23), 32*(1+rng.IntN(50)), 2+rng.IntN(2)
		block, n := 32<<(3*rng.IntN(2)), 1+rng.IntN(9)
		layout := layouts[rng.IntN(len(layouts))]
		m := fitted(t, rng, layout, rows, cols, planes)
		of, err := fabric.NewOperand(m)
		if err != nil {
			t.Fatal(err)
		}
		o := bandsOf(t, m)
		x, want, got := make([]*fabric.Activations, n), make([][]float32, n), make([][]float32, n)
		for i := range x {
			x[i], _ = smallActivations(t, rng, cols, block)
			want[i], got[i] = make([]float32, rows), make([]float32, rows)
		}
		of.GEMM(want, x, &s)
		near := func(a, b float32) bool { return math.Abs(float64(a-b)) <= 2e-5*math.Abs(float64(b))+1e-2 }
		for _, level := range kernel.Levels() {
			o.SetLevel(level)
			for i := range got {
				for r := range got[i] {
					got[i][r] = 1e30 // old results do not matter
				}
			}
			o.GEMM(got, x, &s)
			one := make([]float32, rows)
			o.GEMV(one, x[n-1], &s)
			for i := range x {
				if !slices.EqualFunc(got[i], want[i], near) || i == n-1 && !slices.EqualFunc(one, want[i], near) {
					t.Fatalf("%v, %d rows of %d, %d planes, blocks of %d, vector %d of %d: %v and alone %v, want %v",
						level, rows, cols, planes, block, i, n, got[i], one, want[i])
				}
			}
		}
	}
}

// TestCoarsenBands compares products with bands that lost their lowest plane to those with planes
// without it.
func TestCoarsenBands(t *testing.T) {
	rng := rand.New(rand.NewPCG(119, 120))
	var s fabric.Scratch
	for range 10 {
		rows, cols := 1+rng.IntN(23), 32*(1+rng.IntN(50))
		m := fitted(t, rng, trit.PT5Striped, rows, cols, 3)
		b := make([]byte, fabric.BandsBytes(rows, cols, 3))
		fabric.PackBands(b, m, 1)
		if !fabric.CanCoarsenBands(m) {
			t.Fatal("CanCoarsenBands = false, want true")
		}
		less := *m
		less.Terms = []fabric.Term{{Planes: m.Terms[0].Planes[1:], Scales: fabric.Scales{Block: 32}}}
		for _, h := range m.Terms[0].Scales.Half {
			less.Terms[0].Scales.Half = append(less.Terms[0].Scales.Half, ieee.Round(3*ieee.Float32(h)))
		}
		of, err := fabric.NewOperand(&less)
		if err != nil {
			t.Fatal(err)
		}
		o, err := fabric.NewBands(rows, cols, 2, fabric.CoarsenBands(b, rows, cols))
		if err != nil {
			t.Fatal(err)
		}
		x, _ := smallActivations(t, rng, cols, 32)
		want, got := make([]float32, rows), make([]float32, rows)
		of.GEMV(want, x, &s)
		o.GEMV(got, x, &s)
		near := func(a, b float32) bool { return math.Abs(float64(a-b)) <= 2e-5*math.Abs(float64(b))+1e-2 }
		if !slices.EqualFunc(got, want, near) {
			t.Fatalf("%d rows of %d: %v, want %v", rows, cols, got, want)
		}
		m.Terms[0].Scales.Half[0] = kernel.MaxCoarsenFactor + 1
		if fabric.CanCoarsenBands(m) {
			t.Error("CanCoarsenBands = true with a factor that would become infinite, want false")
		}
	}
}

// TestBandsPool compares the results of a pool to those of one goroutine, and checks that nothing
// is allocated.
func TestBandsPool(t *testing.T) {
	rng := rand.New(rand.NewPCG(113, 114))
	const rows, cols = 703, 544
	o := bandsOf(t, fitted(t, rng, trit.PT5Striped, rows, cols, 3))
	pool := fabric.NewPool(3)
	defer pool.Close()
	var s fabric.Scratch
	for _, n := range []int{1, 5, 70} {
		x, want, got := make([]*fabric.Activations, n), make([][]float32, n), make([][]float32, n)
		for i := range x {
			x[i], _ = smallActivations(t, rng, cols, 32)
			want[i], got[i] = make([]float32, rows), make([]float32, rows)
		}
		o.GEMM(want, x, &s)
		pool.GEMM(o, got, x)
		for i := range x {
			if !slices.Equal(got[i], want[i]) {
				t.Errorf("%d vectors, vector %d: the pool's result is %v, want %v", n, i, got[i], want[i])
			}
		}
		if a := testing.AllocsPerRun(3, func() { o.GEMM(want, x, &s) }); kernel.Best().HasBands(3) && a > 0 {
			t.Errorf("%d vectors: %v allocations, want 0", n, a)
		}
	}
}

func TestBandsRefused(t *testing.T) {
	n := fabric.BandsBytes(7, 64, 3)
	if _, err := fabric.NewBands(7, 64, 3, make([]byte, n)); err != nil {
		t.Error(err)
	}
	for _, bad := range []struct{ rows, cols, planes, bytes int }{
		{7, 64, 3, n - 1}, {11, 64, 3, n}, {5, 64, 3, n}, {7, 64, 4, n},
		{7, 64, 1, n}, {0, 64, 3, 0}, {7, 0, 3, n}, {-1, 64, 3, 0},
	} {
		_, err := fabric.NewBands(bad.rows, bad.cols, bad.planes, make([]byte, bad.bytes))
		if !errors.Is(err, fabric.ErrOperand) {
			t.Errorf("%+v: error %v, want ErrOperand", bad, err)
		}
	}
	rng := rand.New(rand.NewPCG(115, 116))
	for planes := 1; planes <= 4; planes++ {
		m := fitted(t, rng, trit.PT5Striped, 3, 64, planes)
		if got, want := fabric.CanPackBands(m), kernel.Best().HasBands(planes); got != want {
			t.Errorf("%d planes: CanPackBands = %v, want %v", planes, got, want)
		}
	}
	src := blocks(rng, gguf.Q4_K, 512)
	exact, err := decompose.Exact(t.Context(), gguf.Q4_K, 2, 256, src, decompose.Options{Layout: trit.PT5Striped})
	if err != nil || fabric.CanPackBands(exact) {
		t.Errorf("planes with minima: error %v, or CanPackBands = true, want false", err)
	}
}
