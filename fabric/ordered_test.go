package fabric_test

// This file compares products in ggml's order to those of the real ggml, bit for bit.

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"tensorcast/experiments/llama/ggmltest"
	"tensorcast/fabric"
	"tensorcast/fabric/decompose"
	"tensorcast/fabric/kernel"
	"tensorcast/gguf"
)

var orderedTypes = []gguf.Type{gguf.Q8_0, gguf.Q4_0, gguf.Q6_K, gguf.Q4_K}

func newOrdered(t testing.TB, typ gguf.Type, rows, cols int, src []byte, o decompose.Options) *fabric.Operand {
	t.Helper()
	m, err := decompose.Exact(t.Context(), typ, rows, cols, src, o)
	if err != nil {
		t.Fatal(err)
	}
	ordered, err := fabric.NewOrdered(m)
	if err != nil {
		t.Fatal(err)
	}
	return ordered
}

// TestOrdered compares results to ggml's at all levels, of one vector and of several, by one
// goroutine and by a pool.
func TestOrdered(t *testing.T) {
	rival := ggmltest.ForTest(t)
	rng := rand.New(rand.NewPCG(111, 112))
	pool := fabric.NewPool(2)
	defer pool.Close()
	var s fabric.Scratch
	for _, typ := range orderedTypes {
		quantised, block := activationsFor(typ)
		for _, shape := range [][2]int{{64, 256}, {7, 768}, {300, 512}, {33, 4096}, {5, 11008}} {
			rows, cols := shape[0], shape[1]
			if block == 32 {
				cols += 32 * rng.IntN(8)
			}
			src := blocks(rng, typ, rows*cols)
			if err := rival.Load(typ, rows, cols, 1, src); err != nil {
				t.Fatal(err)
			}
			const vectors = 3
			x, want, got := make([]*fabric.Activations, vectors), make([][]float32, vectors), make([][]float32, vectors)
			for i := range x {
				v := make([]float32, cols)
				for c := range v {
					v[c] = float32(rng.NormFloat64())
				}
				if _, err := rival.Quantize(quantised, v); err != nil {
					t.Fatal(err)
				}
				_, y, err := rival.Multiply(typ, 1)
				if err != nil {
					t.Fatal(err)
				}
				want[i], got[i] = slices.Clone(y), make([]float32, rows)
				if x[i], err = fabric.NewActivations(cols, block); err != nil {
					t.Fatal(err)
				}
				x[i].Quantize(v)
			}
			for _, layout := range layouts {
				o := newOrdered(t, typ, rows, cols, src, decompose.Options{Layout: layout})
				check := func(by string, multiply func()) {
					for i := range got {
						clear(got[i])
					}
					multiply()
					for i := range got {
						for r, v := range got[i] {
							if v != want[i][r] {
								t.Fatalf("%s, %v, %v, %d x %d, vector %d, row %d: %v, want ggml's %v",
									by, typ, layout, rows, cols, i, r, v, want[i][r])
							}
						}
					}
				}
				for _, level := range kernel.Levels() {
					o.SetLevel(level)
					check(level.String(), func() { o.GEMM(got, x, &s) })
				}
				check("one by one", func() {
					for i := range got {
						o.GEMV(got[i], x[i], &s)
					}
				})
				check("a pool", func() { pool.GEMM(o, got, x) })
			}
		}
	}
}

// TestOrderedBlocks has activations in other blocks than ggml's. Then the order is another, but the
// product is the same.
func TestOrderedBlocks(t *testing.T) {
	rng := rand.New(rand.NewPCG(113, 114))
	const rows, cols = 9, 512
	var s fabric.Scratch
	for _, typ := range orderedTypes {
		src := blocks(rng, typ, rows*cols)
		w := make([]float32, rows*cols)
		if err := gguf.Dequantize(w, typ, src); err != nil {
			t.Fatal(err)
		}
		o := newOrdered(t, typ, rows, cols, src, decompose.Options{Layout: layouts[1]})
		for _, block := range []int{32, 256} {
			a, x := smallActivations(t, rng, cols, block)
			got := make([]float32, rows)
			o.GEMV(got, a, &s)
			for r, v := range got {
				want, size := 0.0, 0.0
				for c := range cols {
					p := float64(w[r*cols+c]) * x[c]
					want, size = want+p, size+max(p, -p)
				}
				if d := float64(v) - want; max(d, -d) > 1e-6*size {
					t.Errorf("%v, activations in blocks of %d, row %d: %v, want %v", typ, block, r, v, want)
				}
			}
		}
	}
}

func TestNewOrderedErrors(t *testing.T) {
	rng := rand.New(rand.NewPCG(115, 116))
	for typ, corrupt := range map[gguf.Type]func(*fabric.Matrix){
		gguf.Q5_K: func(*fabric.Matrix) {}, // not a type with an order
		gguf.Q8_0: func(m *fabric.Matrix) { m.Exact = false },
		gguf.Q4_0: func(m *fabric.Matrix) { m.Terms[0].Scales = fabric.Scales{} },
		gguf.Q4_K: func(m *fabric.Matrix) { m.Min = fabric.Scales{} },
		gguf.Q6_K: func(m *fabric.Matrix) {
			m.Terms[0].Planes = append(m.Terms[0].Planes, m.Terms[0].Planes[0])
		},
	} {
		m, err := decompose.Exact(t.Context(), typ, 2, 256, blocks(rng, typ, 512),
			decompose.Options{Layout: layouts[0]})
		if err != nil {
			t.Fatal(err)
		}
		corrupt(m)
		if _, err := fabric.NewOrdered(m); !errors.Is(err, fabric.ErrOperand) {
			t.Errorf("%v: error %v, want ErrOperand", typ, err)
		}
	}
}
