package fabric_test

// This file tests products with blocks of Q2_0. It compares them to those of the weights that
// package gguf decodes, of the real ggml, and of planes.

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tensorcast/experiments/llama/ggmltest"
	"tensorcast/fabric"
	"tensorcast/fabric/decompose"
	"tensorcast/fabric/kernel"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

func newCodes(t testing.TB, rows, cols int, src []byte) *fabric.Operand {
	t.Helper()
	o, err := fabric.NewCodes(rows, cols, src)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// ternaryCodes replaces the code 3 by 0 in blocks of Q2_0.
func ternaryCodes(src []byte) {
	for i := range src {
		if i%18 >= 2 {
			src[i] &^= (src[i] >> 1 & src[i] & 0x55) * 3
		}
	}
}

// TestCodes compares products of one vector and of several to those in float64, at all levels.
func TestCodes(t *testing.T) {
	rng := rand.New(rand.NewPCG(101, 102))
	var s fabric.Scratch
	for range 60 {
		rows, cols, block, n := 1+rng.IntN(11), 64*(1+rng.IntN(20)), 32<<(3*rng.IntN(2)), 1+rng.IntN(9)
		src := blocks(rng, gguf.Q2_0, rows*cols)
		w := make([]float32, rows*cols)
		if err := gguf.Dequantize(w, gguf.Q2_0, src); err != nil {
			t.Fatal(err)
		}
		o := newCodes(t, rows, cols, src)
		x, values, got := make([]*fabric.Activations, n), make([][]float64, n), make([][]float32, n)
		for i := range x {
			x[i], values[i] = smallActivations(t, rng, cols, block)
			got[i] = make([]float32, rows)
		}
		one := make([]float32, rows)
		for _, level := range kernel.Levels() {
			o.SetLevel(level)
			for i := range got {
				clear(got[i])
			}
			o.GEMM(got, x, &s)
			o.GEMV(one, x[0], &s)
			for i := range x {
				for r := range rows {
					want, size := 0.0, 0.0
					for c := range cols {
						v := float64(w[r*cols+c]) * values[i][c]
						want, size = want+v, size+math.Abs(v)
					}
					near := func(v float32) bool { return math.Abs(float64(v)-want) <= 1e-6*size }
					if !near(got[i][r]) || i == 0 && !near(one[r]) {
						t.Fatalf("%v, %d x %d, blocks of %d, vector %d of %d, row %d: %v (alone %v), want %v",
							level, rows, cols, block, i, n, r, got[i][r], one[r], want)
					}
				}
			}
		}
	}
}

// TestCodesPool compares the results of a pool to those of one goroutine.
func TestCodesPool(t *testing.T) {
	rng := rand.New(rand.NewPCG(103, 104))
	const rows, cols = 700, 192
	o := newCodes(t, rows, cols, blocks(rng, gguf.Q2_0, rows*cols))
	pool := fabric.NewPool(3)
	defer pool.Close()
	var s fabric.Scratch
	for _, n := range []int{1, 5} {
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
	}
}

// TestCodesAgainstGGML compares results to those of the real ggml, bit for bit.
func TestCodesAgainstGGML(t *testing.T) {
	rival := ggmltest.ForTest(t)
	rng := rand.New(rand.NewPCG(105, 106))
	var s fabric.Scratch
	for _, shape := range [][2]int{{64, 64}, {3, 320}, {40, 1536}, {33, 4096}} {
		for _, ternary := range []bool{false, true} {
			rows, cols := shape[0], shape[1]
			src := blocks(rng, gguf.Q2_0, rows*cols)
			if ternary {
				ternaryCodes(src)
			}
			x := make([]float32, cols)
			for i := range x {
				x[i] = float32(rng.NormFloat64())
			}
			if _, err := rival.Quantize(gguf.Q8_0, x); err != nil {
				t.Fatal(err)
			}
			if err := rival.Load(gguf.Q2_0, rows, cols, 1, src); err != nil {
				t.Fatal(err)
			}
			_, want, err := rival.Multiply(gguf.Q2_0, 1)
			if err != nil {
				t.Fatal(err)
			}
			a, err := fabric.NewActivations(cols, 32)
			if err != nil {
				t.Fatal(err)
			}
			a.Quantize(x)
			o := newCodes(t, rows, cols, src)
			got := make([]float32, rows)
			for _, level := range kernel.Levels() {
				o.SetLevel(level)
				if o.GEMV(got, a, &s); !slices.Equal(got, want) {
					t.Errorf("%v, %d x %d: %v, want ggml's %v", level, rows, cols, got, want)
				}
				several, x := make([][]float32, 9), make([]*fabric.Activations, 9)
				for i := range several {
					several[i], x[i] = make([]float32, rows), a
				}
				o.GEMM(several, x, &s)
				for i := range several {
					if !slices.Equal(several[i], want) {
						t.Errorf("%v, %d x %d, vector %d: %v, want ggml's %v", level, rows, cols, i, several[i], want)
					}
				}
			}
		}
	}
}

// TestCodesAndPlanes compares products to those with exact planes of the same blocks. Scales are 1,
// so that both are the integer.
func TestCodesAndPlanes(t *testing.T) {
	rng := rand.New(rand.NewPCG(107, 108))
	const rows, cols = 9, 640
	var s fabric.Scratch
	for _, ternary := range []bool{false, true} {
		src := blocks(rng, gguf.Q2_0, rows*cols)
		if ternary {
			ternaryCodes(src)
		}
		for i := 0; i < len(src); i += 18 {
			binary.LittleEndian.PutUint16(src[i:], 0x3c00)
		}
		m, err := decompose.Exact(t.Context(), gguf.Q2_0, rows, cols, src, decompose.Options{Layout: trit.TwoBit})
		if err != nil {
			t.Fatal(err)
		}
		planes, err := fabric.NewOperand(m)
		if err != nil {
			t.Fatal(err)
		}
		a, err := fabric.NewActivations(cols, 32)
		if err != nil {
			t.Fatal(err)
		}
		x := make([]float32, cols)
		for i := range x {
			x[i] = float32(rng.IntN(255) - 127)
			if i%32 == 0 {
				x[i] = 127
			}
		}
		a.Quantize(x)
		want, got := make([]float32, rows), make([]float32, rows)
		planes.GEMV(want, a, &s)
		if newCodes(t, rows, cols, src).GEMV(got, a, &s); !slices.Equal(got, want) {
			t.Errorf("ternary %v: %v, want %v, as of planes", ternary, got, want)
		}
	}
}

func TestNewCodesErrors(t *testing.T) {
	for _, c := range []struct{ rows, cols, bytes int }{
		{0, 64, 0}, {-1, 64, -18}, {1, 0, 0}, {1, 32, 9}, {1, 96, 27}, {1, 64, 17}, {1, 64, 19}, {2, 64, 18},
		{1, 64, 36}, {1 << 62, 64, 0}, {1, 1 << 62, 0},
	} {
		if _, err := fabric.NewCodes(c.rows, c.cols, make([]byte, max(0, c.bytes))); !errors.Is(err,
			fabric.ErrOperand) {
			t.Errorf("%d bytes for %d rows of %d columns: error %v, want ErrOperand", c.bytes, c.rows, c.cols, err)
		}
	}
}
