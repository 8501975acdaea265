package fabric_test

// This file tests products of planes, with one vector and with several, and the quantising of
// vectors. It has matrices and vectors for other tests.

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

var layouts = []trit.Layout{trit.PT5Striped, trit.TwoBit}

// halfValues are some halfs and their values. They are exact, and so are their products with small
// integers.
var halfValues = map[uint16]float64{0x3c00: 1, 0xc000: -2, 0x3800: 0.5, 0x0000: 0, 0x4200: 3}

func anyHalf(rng *rand.Rand) uint16 {
	for h := range halfValues { // the order of a map is random, too
		if rng.IntN(2) == 0 {
			return h
		}
	}
	return 0x3c00
}

// randomScales makes scales of a random form.
func randomScales(rng *rand.Rand, rows, cols int) fabric.Scales {
	var s fabric.Scales
	switch rng.IntN(4) {
	case 0:
		s.Block = []int{16, 32, 64, 128, 256}[rng.IntN(5)]
		s.Sub, s.Super = make([]int8, rows*ceil(cols, s.Block)), make([]uint16, rows*ceil(cols, 256))
		for i := range s.Sub {
			s.Sub[i] = int8(rng.IntN(7) - 3)
		}
		for i := range s.Super {
			s.Super[i] = anyHalf(rng)
		}
	case 1, 2:
		s.Block = []int{16, 32, 64, 128, 192, 256, 320, 512, cols}[rng.IntN(9)]
		s.Half = make([]uint16, rows*ceil(cols, s.Block))
		for i := range s.Half {
			s.Half[i] = anyHalf(rng)
		}
	}
	return s
}

func ceil(a, b int) int { return (a + b - 1) / b }

// scale returns the scale of row r, column c.
func scale(s *fabric.Scales, cols, r, c int) float64 {
	switch {
	case s.Half != nil:
		return halfValues[s.Half[r*ceil(cols, s.Block)+c/s.Block]]
	case s.Sub != nil:
		return halfValues[s.Super[r*ceil(cols, 256)+c/256]] * float64(s.Sub[r*ceil(cols, s.Block)+c/s.Block])
	}
	return 1
}

// randomMatrix returns a matrix and its weights.
func randomMatrix(t testing.TB, rng *rand.Rand, layout trit.Layout, rows, cols, terms int,
	planes func() int) (*fabric.Matrix, []float64) {
	m := &fabric.Matrix{Rows: rows, Cols: cols, Layout: layout}
	w := make([]float64, rows*cols)
	for range terms {
		term := fabric.Term{Center: int32(rng.IntN(2) * (rng.IntN(41) - 20)), Scales: randomScales(rng, rows, cols)}
		ints := make([]int, rows*cols)
		power := 1
		n := planes()
		density := rng.IntN(4)
		zeros := make([]int, rows) // how many of a row's first trits are 0 in all planes
		for r := range zeros {
			zeros[r] = rng.IntN(2) * rng.IntN(cols+1)
		}
		for p := range n {
			bytes := make([]byte, rows*layout.RowBytes(cols))
			row := make([]int8, cols)
			for r := range rows {
				for c := range row {
					row[c] = 0
					if c >= zeros[r] && rng.IntN(4) >= density {
						row[c] = int8(rng.IntN(3) - 1)
					}
					if v := ints[r*cols+c]; p == 5 { // the sum of six planes must fit into a byte
						row[c] = 0
						if v <= -116 && rng.IntN(2) == 0 {
							row[c] = 1
						} else if v >= 115 && rng.IntN(2) == 0 {
							row[c] = -1
						}
					}
					ints[r*cols+c] += power * int(row[c])
				}
				layout.Pack(bytes[r*layout.RowBytes(cols):], row)
			}
			term.Planes = append(term.Planes, bytes)
			power *= 3
		}
		m.Terms = append(m.Terms, term)
		for i, v := range ints {
			w[i] += scale(&term.Scales, cols, i/cols, i%cols) * float64(v+int(term.Center))
		}
	}
	m.Min = randomScales(rng, rows, cols)
	if m.Min.Block != 0 {
		for i := range w {
			w[i] -= scale(&m.Min, cols, i/cols, i%cols)
		}
	}
	return m, w
}

// smallActivations makes activations that are integers times a power of two, so that products are
// exact in float32. It also returns their values.
func smallActivations(t testing.TB, rng *rand.Rand, cols, block int) (*fabric.Activations, []float64) {
	t.Helper()
	a, err := fabric.NewActivations(cols, block)
	if err != nil {
		t.Fatal(err)
	}
	x, want := make([]float32, cols), make([]float64, cols)
	for b := 0; b < cols; b += block {
		// There is a value of 127 times the power, so that the scale is the power.
		power := math.Ldexp(1, rng.IntN(3))
		for i := b; i < min(b+block, cols); i++ {
			v := float64(rng.IntN(5)-2) * power
			if i == b+rng.IntN(min(block, cols-b)) || i == min(b+block, cols)-1 {
				v = -127 * power
			}
			x[i] = float32(v)
		}
	}
	a.Quantize(x)
	for i := range want {
		want[i] = float64(a.Q[i]) * float64(a.Scale[i/block])
		if math.Abs(want[i]-float64(x[i])) > 1e-6*math.Abs(float64(x[i])) {
			t.Fatalf("%v was quantised to %v", x[i], want[i])
		}
	}
	return a, want
}

// TestGEMV compares products to those in float64, for matrices of every form, at all levels.
func TestGEMV(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	var s fabric.Scratch
	for range 150 {
		layout := layouts[rng.IntN(2)]
		rows, cols, block := 1+rng.IntN(7), 1+rng.IntN(1500), 32<<(3*rng.IntN(2))
		m, w := randomMatrix(t, rng, layout, rows, cols, 1+rng.IntN(2), func() int { return 1 + rng.IntN(6) })
		a, x := smallActivations(t, rng, cols, block)
		// Nothing, much, or everything may be skipped.
		o, err := fabric.NewOperandSkipping(m, []float64{-1, 0.3, 1}[rng.IntN(3)], []float64{2, 0, 0.2}[rng.IntN(3)])
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float32, rows)
		for _, level := range kernel.Levels() {
			o.SetLevel(level)
			o.GEMV(got, a, &s)
			for r, v := range got {
				want, size := 0.0, 0.0
				for c := range cols {
					want += w[r*cols+c] * x[c]
					size += math.Abs(w[r*cols+c] * x[c])
				}
				if math.Abs(float64(v)-want) > 1e-6*size {
					t.Fatalf("%v, %v, %d x %d, activations in blocks of %d, scales %+v, min %+v, row %d: %v, want %v",
						level, layout, rows, cols, block, m.Terms[0].Scales, m.Min, r, v, want)
				}
			}
		}
	}
}

// codes returns the integers of a type's blocks as package gguf describes them, without what is
// added to all of them.
func codes(t gguf.Type, src []byte) []int {
	var all []int
	for ; len(src) > 0; src = src[t.BlockBytes():] {
		q := make([]int, t.BlockElems())
		for i := range q {
			switch t {
			case gguf.Q8_0:
				q[i] = int(int8(src[2+i]))
			case gguf.Q4_K:
				q[i] = int(src[16+i/64*32+i%32] >> (i / 32 % 2 * 4) & 15)
			case gguf.Q6_K:
				low := src[i/128*64+i%64] >> (i / 64 % 2 * 4) & 15
				high := src[128+i/128*32+i%32] >> (i / 32 % 4 * 2) & 3
				q[i] = int(low|high<<4) - 32
			}
		}
		all = append(all, q...)
	}
	return all
}

// TestExactIntegers sets all scales to 1, so that results are the integers. All sums are below
// 2^24, so that none is rounded.
func TestExactIntegers(t *testing.T) {
	rng := rand.New(rand.NewPCG(23, 24))
	var s fabric.Scratch
	for typ, want := range map[gguf.Type]int{gguf.Q8_0: 256, gguf.Q4_K: 16, gguf.Q6_K: 64} {
		for _, layout := range layouts {
			for cols := 256; cols <= 1024; cols += 256 {
				rows := 30 + rng.IntN(40)
				src := blocks(rng, typ, rows*cols)
				m, err := decompose.Exact(t.Context(), typ, rows, cols, src, decompose.Options{Layout: layout})
				if err != nil {
					t.Fatal(err)
				}
				scales := &m.Terms[0].Scales
				for i := range scales.Half {
					scales.Half[i] = 0x3c00
				}
				for i := range scales.Sub {
					scales.Sub[i] = 1
				}
				for i := range scales.Super {
					scales.Super[i] = 0x3c00
				}
				m.Min = fabric.Scales{}
				o, err := fabric.NewOperand(m)
				if err != nil {
					t.Fatal(err)
				}
				_, block := activationsFor(typ)
				a, err := fabric.NewActivations(cols, block)
				if err != nil {
					t.Fatal(err)
				}
				x := make([]float32, cols)
				for i := range x {
					x[i] = float32(rng.IntN(201) - 100)
					if i%block == 0 {
						x[i] = 127
					}
				}
				a.Quantize(x)
				q, seen := codes(typ, src), map[int]bool{}
				sums := make([]float32, rows)
				for i, v := range q {
					seen[v] = true
					sums[i/cols] += float32(v) * x[i%cols]
				}
				if len(seen) != want {
					t.Errorf("%v: the test has %d codes, want %d", typ, len(seen), want)
				}
				for _, level := range kernel.Levels() {
					o.SetLevel(level)
					got := make([]float32, rows)
					if o.GEMV(got, a, &s); !slices.Equal(got, sums) {
						t.Errorf("%v, %v, %v, %d x %d: %v, want %v", level, typ, layout, rows, cols, got, sums)
					}
				}
			}
		}
	}
}

func TestNewOperandErrors(t *testing.T) {
	good := func() *fabric.Matrix {
		m, _ := randomMatrix(t, rand.New(rand.NewPCG(1, 1)), trit.PT5Striped, 3, 400, 1, func() int { return 2 })
		m.Terms[0].Scales = fabric.Scales{Block: 32, Half: make([]uint16, 3*13)}
		m.Min = fabric.Scales{Block: 32, Sub: make([]int8, 3*13), Super: make([]uint16, 3*2)}
		return m
	}
	if _, err := fabric.NewOperand(good()); err != nil {
		t.Fatal(err)
	}
	for name, corrupt := range map[string]func(m *fabric.Matrix){
		"rows":   func(m *fabric.Matrix) { m.Rows = 0 },
		"more":   func(m *fabric.Matrix) { m.Rows++ },
		"cols":   func(m *fabric.Matrix) { m.Cols = 700 },
		"layout": func(m *fabric.Matrix) { m.Layout = trit.PT5 },
		"center": func(m *fabric.Matrix) { m.Terms[0].Center = 1 << 20 },
		"none":   func(m *fabric.Matrix) { m.Terms[0].Planes = nil },
		"seven":  func(m *fabric.Matrix) { m.Terms[0].Planes = make([][]byte, 7) },
		"plane":  func(m *fabric.Matrix) { m.Terms[0].Planes[1] = m.Terms[0].Planes[1][1:] },
		"half":   func(m *fabric.Matrix) { m.Terms[0].Scales.Half = m.Terms[0].Scales.Half[1:] },
		"block":  func(m *fabric.Matrix) { m.Terms[0].Scales.Block = 48 },
		"sub":    func(m *fabric.Matrix) { m.Min.Sub = m.Min.Sub[1:] },
		"super":  func(m *fabric.Matrix) { m.Min.Super = m.Min.Super[1:] },
		"byte": func(m *fabric.Matrix) {
			top := make([]byte, len(m.Terms[0].Planes[0]))
			zero := make([]byte, len(top))
			for i := range top {
				top[i], zero[i] = 122, 121
			}
			m.Terms[0].Planes = [][]byte{zero, zero, zero, zero, zero, top}
		},
	} {
		m := good()
		corrupt(m)
		if _, err := fabric.NewOperand(m); !errors.Is(err, fabric.ErrOperand) {
			t.Errorf("%s: error %v, want ErrOperand", name, err)
		}
	}
}

// blocks makes random blocks for n weights, with scales near those of a real tensor.
func blocks(rng *rand.Rand, t gguf.Type, n int) []byte {
	b := make([]byte, int64(n)/t.BlockElems()*t.BlockBytes())
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	halfs := map[gguf.Type][]int{
		gguf.Q4_0: {0}, gguf.Q8_0: {0}, gguf.Q4_K: {0, 2}, gguf.Q5_K: {0, 2}, gguf.Q6_K: {208},
		gguf.TQ1_0: {52}, gguf.TQ2_0: {64}, gguf.Q2_0: {0},
	}[t]
	for i := 0; i < len(b); i += int(t.BlockBytes()) {
		block := b[i:][:t.BlockBytes()]
		switch t {
		case gguf.TQ2_0:
			for j := range 64 {
				block[j] = byte(rng.IntN(3) | rng.IntN(3)<<2 | rng.IntN(3)<<4 | rng.IntN(3)<<6)
			}
		case gguf.TQ1_0:
			for j := range 52 {
				v := rng.IntN(243)
				if j >= 48 {
					v = rng.IntN(81) * 3
				}
				block[j] = byte((v*256 + 242) / 243)
			}
		}
		for _, h := range halfs { // 2^-7 to 2^-5
			block[h], block[h+1] = byte(rng.Uint32()), byte(0x20+rng.IntN(8))
		}
	}
	return b
}

// activationsFor returns the type to which ggml quantises activations, and its length of blocks.
func activationsFor(t gguf.Type) (gguf.Type, int) {
	if t == gguf.Q8_0 || t == gguf.Q4_0 || t == gguf.Q2_0 {
		return gguf.Q8_0, 32
	}
	return gguf.Q8_K, 256
}

var nativeTypes = []gguf.Type{gguf.Q4_0, gguf.Q8_0, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K, gguf.TQ1_0, gguf.TQ2_0}

func TestAgainstGGML(t *testing.T) {
	rival := ggmltest.ForTest(t)
	rng := rand.New(rand.NewPCG(31, 32))
	var s fabric.Scratch
	for _, typ := range nativeTypes {
		for _, layout := range layouts {
			for _, shape := range [][2]int{{64, 256}, {40, 1536}, {33, 4096}} {
				rows, cols := shape[0], shape[1]
				src := blocks(rng, typ, rows*cols)
				m, err := decompose.Exact(t.Context(), typ, rows, cols, src, decompose.Options{Layout: layout})
				if err != nil {
					t.Fatal(err)
				}
				o, err := fabric.NewOperand(m)
				if err != nil {
					t.Fatal(err)
				}
				x := make([]float32, cols)
				for i := range x {
					x[i] = float32(rng.NormFloat64())
				}
				quantised, block := activationsFor(typ)
				if _, err := rival.Quantize(quantised, x); err != nil {
					t.Fatal(err)
				}
				if err := rival.Load(typ, rows, cols, 1, src); err != nil {
					t.Fatal(err)
				}
				_, want, err := rival.Multiply(typ, 1)
				if err != nil {
					t.Fatal(err)
				}
				a, err := fabric.NewActivations(cols, block)
				if err != nil {
					t.Fatal(err)
				}
				a.Quantize(x)
				got := make([]float32, rows)
				o.GEMV(got, a, &s)
				var norm, diff float64
				for r := range got {
					norm += float64(want[r]) * float64(want[r])
					d := float64(got[r]) - float64(want[r])
					diff += d * d
				}
				t.Logf("%v, %v, %d x %d: %.2g", typ, layout, rows, cols, math.Sqrt(diff/norm))
				if !(math.Sqrt(diff) <= 1e-6*math.Sqrt(norm)) {
					t.Errorf("%v, %v, %d x %d: relative difference to ggml is %v, want at most 1e-6",
						typ, layout, rows, cols, math.Sqrt(diff/norm))
				}
			}
		}
	}
}

func TestQuantizeAgainstGGML(t *testing.T) {
	rival := ggmltest.ForTest(t)
	rng := rand.New(rand.NewPCG(41, 42))
	for _, typ := range []gguf.Type{gguf.Q8_0, gguf.Q8_K} {
		x := make([]float32, 1<<16)
		for i := range x {
			switch i >> 8 & 3 {
			case 0:
				x[i] = float32(rng.NormFloat64())
			case 1: // equal magnitudes, and values halfway between integers
				x[i] = float32(rng.IntN(255)-127) / 2
			case 2:
				x[i] = math.Float32frombits(rng.Uint32()&0x807fffff | uint32(80+rng.IntN(100))<<23)
			}
		}
		want, err := rival.Quantize(typ, x)
		if err != nil {
			t.Fatal(err)
		}
		a, err := fabric.NewActivations(len(x), int(typ.BlockElems()))
		if err != nil {
			t.Fatal(err)
		}
		a.Quantize(x)
		size := int(typ.BlockBytes())
		for b := range len(want) / size {
			block := want[b*size : (b+1)*size]
			var d [1]float32
			q := block[2:34]
			if typ == gguf.Q8_0 {
				d[0] = halfFloat(uint16(block[0]) | uint16(block[1])<<8)
			} else {
				d[0] = math.Float32frombits(binary.LittleEndian.Uint32(block))
				q = block[4:260]
			}
			if math.Float32bits(a.Scale[b]) != math.Float32bits(d[0]) {
				t.Fatalf("%v, block %d: scale %v, want ggml's %v", typ, b, a.Scale[b], d[0])
			}
			for i, v := range q {
				if a.Q[b*len(q)+i] != int8(v) {
					t.Fatalf("%v, block %d, value %d: %d, want ggml's %d", typ, b, i, a.Q[b*len(q)+i], int8(v))
				}
			}
		}
	}
}

func halfFloat(h uint16) float32 {
	v := math.Ldexp(float64(1024+int(h&0x3ff)), int(h>>10&31)-25)
	switch h >> 10 & 31 {
	case 31:
		v = math.Inf(1)
	case 0:
		v = math.Ldexp(float64(h&0x3ff), -24)
	}
	return float32(v)
}

func TestGEMVAllocates(t *testing.T) {
	rng := rand.New(rand.NewPCG(51, 52))
	for _, layout := range layouts {
		m, _ := randomMatrix(t, rng, layout, 70, 1000, 2, func() int { return 1 + rng.IntN(5) })
		o, err := fabric.NewOperand(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range []int{32, 256} {
			a, _ := smallActivations(t, rng, 1000, block)
			dst, x := make([]float32, 70), make([]float32, 1000)
			var s fabric.Scratch
			if n := testing.AllocsPerRun(10, func() { a.Quantize(x); o.GEMV(dst, a, &s) }); n != 0 {
				t.Errorf("%v, blocks of %d: %v allocations, want 0", layout, block, n)
			}
		}
	}
}

// TestGEMM compares products of several vectors, by one goroutine and by several, to those of each
// vector.
func TestGEMM(t *testing.T) {
	rng := rand.New(rand.NewPCG(71, 72))
	var s fabric.Scratch
	pool := fabric.NewPool(3)
	defer pool.Close()
	const tiled = 128 // number of vectors from which on they are multiplied in tiles
	for i := range 24 {
		layout := layouts[i%2]
		rows, cols, block := 1+rng.IntN(200), 1+rng.IntN(700), 32<<(3*rng.IntN(2))
		m, _ := randomMatrix(t, rng, layout, rows, cols, 1+rng.IntN(2), func() int { return 1 + rng.IntN(6) })
		o, err := fabric.NewOperand(m)
		if err != nil {
			t.Fatal(err)
		}
		n := rng.IntN(9)
		if i%4 >= 2 {
			n, block = tiled+rng.IntN(3), 256
		}
		var x []*fabric.Activations
		var one, many, pooled [][]float32
		for i := range n {
			a, _ := smallActivations(t, rng, cols, block)
			x = append(x, a)
			one, many = append(one, make([]float32, rows)), append(many, make([]float32, rows))
			pooled = append(pooled, make([]float32, rows))
			o.GEMV(one[i], a, &s)
		}
		o.GEMM(many, x, &s)
		pool.GEMM(o, pooled, x)
		for i := range n {
			single := make([]float32, rows)
			pool.GEMV(o, single, x[i])
			if !slices.Equal(single, one[i]) {
				t.Fatalf("GEMV of a pool: %v, want %v", single, one[i])
			}
			for r := range rows {
				// Products of one vector may add in another order.
				d := math.Abs(float64(many[i][r] - one[i][r]))
				if d > 1e-3*math.Abs(float64(one[i][r]))+1 || pooled[i][r] != many[i][r] {
					t.Fatalf("%v, %d x %d, %d vectors: GEMM %v, GEMM of a pool %v, want about %v, as of GEMV",
						layout, rows, cols, n, many[i][r], pooled[i][r], one[i][r])
				}
			}
		}
	}
}

func TestPoolAllocates(t *testing.T) {
	m, _ := randomMatrix(t, rand.New(rand.NewPCG(1, 1)), trit.PT5Striped, 700, 1000, 1, func() int { return 3 })
	o, err := fabric.NewOperand(m)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := smallActivations(t, rand.New(rand.NewPCG(1, 1)), 1000, 32)
	pool := fabric.NewPool(3)
	defer pool.Close()
	dst := make([]float32, 700)
	if n := testing.AllocsPerRun(30, func() { pool.GEMV(o, dst, a) }); n != 0 {
		t.Errorf("GEMV of a pool: %v allocations, want 0", n)
	}
}

// planesMatrix makes planes of random trits with scales per 32 columns. density is the share of
// trits in the last plane that are not 0. zeroGroups is the share of groups that are zeros in all
// planes.
func planesMatrix(layout trit.Layout, rows, cols, planes int, density, zeroGroups float64) *fabric.Matrix {
	rng := rand.New(rand.NewPCG(81, 82))
	m := &fabric.Matrix{Rows: rows, Cols: cols, Layout: layout}
	t := fabric.Term{Scales: fabric.Scales{Block: 32, Half: make([]uint16, rows*cols/32)}}
	for i := range t.Scales.Half {
		t.Scales.Half[i] = 0x2400
	}
	trits, _ := layout.Group()
	row := make([]int8, cols)
	for p := range planes {
		plane := make([]byte, rows*layout.RowBytes(cols))
		zeros := rand.New(rand.NewPCG(85, 86)) // zeros are the same groups in each plane
		for r := range rows {
			for c := range row {
				if c%trits == 0 && zeros.Float64() < zeroGroups {
					clear(row[c:min(c+trits, cols)])
				} else if c%trits == 0 {
					for i := c; i < min(c+trits, cols); i++ {
						row[i] = int8(rng.IntN(3) - 1)
					}
				}
			}
			if p == planes-1 && density < 1 {
				for c := range row {
					row[c] = 0
					if rng.Float64() < density {
						row[c] = int8(2*rng.IntN(2) - 1)
					}
				}
			}
			layout.Pack(plane[r*layout.RowBytes(cols):], row)
		}
		t.Planes = append(t.Planes, plane)
	}
	m.Terms = []fabric.Term{t}
	return m
}

// TestSkips checks what is skipped, on both sides of the thresholds.
func TestSkips(t *testing.T) {
	for _, c := range []struct {
		planes         int
		density, zeros float64
		lists          int
		groups         bool
	}{
		{planes: 1, density: 0.02, lists: 1},
		{planes: 1, density: 0.1},
		{planes: 3, density: 0.005, lists: 1},
		{planes: 3, density: 0.02},
		{planes: 1, density: 1, zeros: 0.4},
		{planes: 1, density: 1, zeros: 0.9, groups: true},
		{planes: 3, density: 1, zeros: 0.1},
		{planes: 3, density: 1, zeros: 0.6, groups: true},
	} {
		for _, layout := range layouts {
			o, err := fabric.NewOperand(planesMatrix(layout, 64, 2560, c.planes, c.density, c.zeros))
			if err != nil {
				t.Fatal(err)
			}
			if lists, groups := o.Skips(); lists != c.lists || groups != c.groups {
				t.Errorf("%v, %+v: Skips() = %d, %v, want %d, %v", layout, c, lists, groups, c.lists, c.groups)
			}
		}
	}
}
