package decompose

// This file tests exact planes: that blocks and weights can be restored from them, and which ones
// are refused.

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tensorcast/fabric"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

// exactTypes says, for each type, where a block has its scales and how many values a code has. All
// other bytes of a block are codes.
var exactTypes = map[gguf.Type]struct {
	halfs []int // bytes at which a half begins
	small []int // first and end of the bytes of small scales
	codes int
}{
	gguf.Q4_0:  {halfs: []int{0}, codes: 16},
	gguf.Q4_1:  {halfs: []int{0, 2}, codes: 16},
	gguf.Q5_0:  {halfs: []int{0}, codes: 32},
	gguf.Q5_1:  {halfs: []int{0, 2}, codes: 32},
	gguf.Q8_0:  {halfs: []int{0}, codes: 256},
	gguf.Q1_0:  {halfs: []int{0}, codes: 2},
	gguf.Q2_0:  {halfs: []int{0}, codes: 4},
	gguf.Q2_K:  {halfs: []int{80, 82}, small: []int{0, 16}, codes: 4},
	gguf.Q3_K:  {halfs: []int{108}, small: []int{96, 108}, codes: 8},
	gguf.Q4_K:  {halfs: []int{0, 2}, small: []int{4, 16}, codes: 16},
	gguf.Q5_K:  {halfs: []int{0, 2}, small: []int{4, 16}, codes: 32},
	gguf.Q6_K:  {halfs: []int{208}, small: []int{192, 208}, codes: 64},
	gguf.TQ1_0: {halfs: []int{52}, codes: 3},
	gguf.TQ2_0: {halfs: []int{64}, codes: 3},
}

var allLayouts = []trit.Layout{trit.PT5, trit.PT5Striped, trit.TwoBit, trit.Sliced}

// makeCanonical changes the codes of a block to some that the type's quantiser writes.
func makeCanonical(t gguf.Type, block []byte) {
	switch t {
	case gguf.TQ1_0:
		for i := range 52 {
			v := int(block[i]) % 243
			if i >= 48 {
				v = v / 3 * 3
			}
			block[i] = byte((v*256 + 242) / 243)
		}
	case gguf.TQ2_0:
		for i := range 64 {
			for n := 0; n < 8; n += 2 {
				if block[i]>>n&3 == 3 {
					block[i] ^= 1 << n
				}
			}
		}
	}
}

// blocks returns n blocks. In the first 256, each byte has each of its values once. The others are
// random.
func blocks(t gguf.Type, n int, rng *rand.Rand) []byte {
	size := int(t.BlockBytes())
	b := make([]byte, n*size)
	for i := range n {
		block := b[i*size : (i+1)*size]
		for j := range block {
			if block[j] = byte(rng.Uint32()); i < 256 {
				block[j] = byte(i + 37*j)
			}
		}
		makeCanonical(t, block)
	}
	return b
}

// setHalfs sets all halfs of a block to h.
func setHalfs(t gguf.Type, block []byte, h uint16) {
	for _, at := range exactTypes[t].halfs {
		putHalf(block[at:], h)
	}
}

func mustExact(tb testing.TB, t gguf.Type, rows, cols int, src []byte, o Options) *fabric.Matrix {
	tb.Helper()
	m, err := Exact(tb.Context(), t, rows, cols, src, o)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// checkExact compares the blocks that Bytes restores with src, and the weights with those of
// package gguf.
func checkExact(t *testing.T, m *fabric.Matrix, src []byte) {
	t.Helper()
	if !m.Exact {
		t.Error("Matrix.Exact is false, want true")
	}
	got := make([]byte, len(src))
	if err := RestoreBlocks(got, m); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, src) {
		at := 0
		for got[at] == src[at] {
			at++
		}
		t.Fatalf("%v, %d x %d, %v: byte %d (%d of its block) is %#x, want %#x", m.Origin, m.Rows, m.Cols, m.Layout, at,
			at%int(m.Origin.BlockBytes()), got[at], src[at])
	}
	want, row := make([]float32, m.Rows*m.Cols), make([]float32, m.Cols)
	if err := gguf.Dequantize(want, m.Origin, src); err != nil {
		t.Fatal(err)
	}
	for r := range m.Rows {
		if err := Dequantize(row, m, r); err != nil {
			t.Fatal(err)
		}
		for c, w := range row {
			o := want[r*m.Cols+c]
			if math.Float32bits(w) != math.Float32bits(o) && (w == w || o == o) {
				t.Fatalf("%v, %d x %d, %v: weight (%d, %d) is %v, want %v",
					m.Origin, m.Rows, m.Cols, m.Layout, r, c, w, o)
			}
		}
	}
}

// TestExactCodes tries every code at every position of a block, and checks that it has done so.
func TestExactCodes(t *testing.T) {
	for typ, at := range exactTypes {
		t.Run(typ.String(), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, uint64(typ)))
			size, elems := int(typ.BlockBytes()), int(typ.BlockElems())
			n := 256 + 16*at.codes // the random blocks combine bits of different bytes
			src := blocks(typ, n, rng)
			for i := range n {
				setHalfs(typ, src[i*size:], 0x3c00)
			}
			for _, layout := range allLayouts {
				part := src[:256*size] // each byte has all values
				checkExact(t, mustExact(t, typ, 4, 64*elems, part, Options{Layout: layout}), part)
			}
			// With small scales of 1 and minima of 0, the weights show the codes.
			for i := range n {
				block := src[i*size : (i+1)*size]
				if s := at.small; s != nil {
					copy(block[s[0]:s[1]], map[gguf.Type]string{
						gguf.Q2_K: "\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01",
						gguf.Q3_K: "\x11\x11\x11\x11\x11\x11\x11\x11\xaa\xaa\xaa\xaa", // 33
						gguf.Q4_K: "\x01\x01\x01\x01\x00\x00\x00\x00\x01\x01\x01\x01",
						gguf.Q5_K: "\x01\x01\x01\x01\x00\x00\x00\x00\x01\x01\x01\x01",
						gguf.Q6_K: "\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01",
					}[typ])
				}
			}
			checkExact(t, mustExact(t, typ, 4, n/4*elems, src, Options{}), src)
			w := make([]float32, n*elems)
			if err := gguf.Dequantize(w, typ, src); err != nil {
				t.Fatal(err)
			}
			seen := map[[2]int]bool{}
			for i, v := range w {
				seen[[2]int{i % elems, int(v)}] = true
			}
			if len(seen) != elems*at.codes {
				t.Errorf("the test tried %d pairs of position and code, want %d positions times %d codes",
					len(seen), elems, at.codes)
			}
		})
	}
}

// TestExactHalfs tries halfs of all kinds as scales: zeros, small ones, infinities and NaNs.
func TestExactHalfs(t *testing.T) {
	for typ := range exactTypes {
		t.Run(typ.String(), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(2, uint64(typ)))
			size, elems := int(typ.BlockBytes()), int(typ.BlockElems())
			halfs := make([]uint16, 0, 1<<16)
			for h := range 1 << 16 {
				if h%128 == 3 || h&0x7fff > 0x7bff && h%16 == 1 || h&0x3ff == 0 || h&0x7fff < 8 {
					halfs = append(halfs, uint16(h))
				}
			}
			n := len(halfs) &^ 15
			src := blocks(typ, n, rng)
			for i := range n {
				setHalfs(typ, src[i*size:], halfs[i])
				if halfs := exactTypes[typ].halfs; len(halfs) > 1 && i%2 == 0 {
					putHalf(src[i*size+halfs[1]:], uint16(rng.Uint32()))
				}
			}
			checkExact(t, mustExact(t, typ, 16, n/16*elems, src, Options{}), src)
		})
	}
}

// TestExactShapes tries rows that end anywhere in a tile and in a group.
func TestExactShapes(t *testing.T) {
	for typ := range exactTypes {
		rng := rand.New(rand.NewPCG(3, uint64(typ)))
		elems := int(typ.BlockElems())
		for n := 1; n <= 2*tileElems/elems+3; n += 1 + n/2 {
			for _, layout := range allLayouts {
				src := blocks(typ, 3*n, rng)
				checkExact(t, mustExact(t, typ, 3, n*elems, src, Options{Layout: layout, Workers: 2}), src)
			}
		}
	}
}

func TestPlanesAreDigits(t *testing.T) {
	// One block of Q4_K: code 0 is -8 = -9 + 1, code 15 is 7 = 9 - 3 + 1.
	block := make([]byte, 144)
	block[16] = 0xf0
	m := mustExact(t, gguf.Q4_K, 1, 256, block, Options{Layout: trit.PT5})
	row := make([]int8, 256)
	for p, want := range [][2]int8{{1, 1}, {0, -1}, {-1, 1}} {
		if err := trit.PT5.Unpack(row, m.Terms[0].Planes[p]); err != nil {
			t.Fatal(err)
		}
		if row[0] != want[0] || row[32] != want[1] {
			t.Errorf("plane %d: trits %d and %d, want %d", p, row[0], row[32], want)
		}
	}
	if m.Terms[0].Center != 8 {
		t.Errorf("center %d, want 8", m.Terms[0].Center)
	}
}

func TestExactRefuses(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for typ, at := range map[gguf.Type]map[int][]byte{
		gguf.TQ2_0: {0: {3, 0x30, 0xff}, 63: {0xc0}, 31: {0x0c}},
	} {
		for i, values := range at {
			for _, v := range values {
				src := blocks(typ, 4, rng)
				src[2*66+i] = v
				if _, err := Exact(t.Context(), typ, 2, 512, src, Options{}); !errors.Is(err, ErrInexact) {
					t.Errorf("%v with byte %d of %#x: %v, want ErrInexact", typ, i, v, err)
				}
			}
		}
	}
	// All bytes of TQ1_0 are tried. Those that encode the same digits as another, canonical byte
	// must be refused.
	count := map[int]int{}
	for _, i := range []int{0, 31, 32, 47, 48, 51} {
		for v := range 256 {
			src := make([]byte, 54)
			makeCanonical(gguf.TQ1_0, src)
			src[i] = byte(v)
			m, err := Exact(t.Context(), gguf.TQ1_0, 1, 256, src, Options{})
			switch {
			case err == nil:
				count[i]++
				checkExact(t, m, src)
			case !errors.Is(err, ErrInexact):
				t.Fatal(err)
			}
		}
		want := 243
		if i >= 48 {
			want = 81
		}
		if count[i] != want {
			t.Errorf("byte %d of TQ1_0 has %d canonical values, want %d", i, count[i], want)
		}
	}
	for _, typ := range []gguf.Type{gguf.F16, gguf.F32, gguf.BF16, gguf.IQ4XS, gguf.Q8_K, gguf.Type(99)} {
		if _, err := Exact(t.Context(), typ, 1, 256, nil, Options{}); !errors.Is(err, ErrInexact) {
			t.Errorf("%v: %v, want ErrInexact", typ, err)
		}
	}
	for name, bad := range map[string]struct {
		rows, cols, bytes int
		layout            trit.Layout
	}{
		"short": {1, 32, 33, 0}, "long": {1, 32, 35, 0}, "part of a block": {1, 31, 34, 0}, "no columns": {1, 0, 0, 0},
		"no rows": {0, 32, 0, 0}, "negative": {-1, -32, 34, 0}, "layout": {1, 32, 34, 9},
	} {
		_, err := Exact(t.Context(), gguf.Q8_0, bad.rows, bad.cols, make([]byte, bad.bytes),
			Options{Layout: bad.layout})
		if err == nil || errors.Is(err, ErrInexact) {
			t.Errorf("%s: error %v, want one other than ErrInexact", name, err)
		}
	}
}

// TestBytesRefuses tries matrices that blocks cannot hold.
func TestBytesRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		typ     gguf.Type
		corrupt func(m *fabric.Matrix)
	}{
		"a code beyond 4 bits": {gguf.Q4_K, func(m *fabric.Matrix) {
			trit.PT5.Pack(m.Terms[0].Planes[2], slices.Repeat([]int8{1}, 256))
		}},
		"a code beyond a byte": {gguf.Q8_0, func(m *fabric.Matrix) {
			trit.PT5.Pack(m.Terms[0].Planes[5], slices.Repeat([]int8{1}, 256))
		}},
		"no trit":                 {gguf.Q4_0, func(m *fabric.Matrix) { m.Terms[0].Planes[1][7] = 250 }},
		"a scale beyond 6 bits":   {gguf.Q4_K, func(m *fabric.Matrix) { m.Terms[0].Scales.Sub[3] = 64 }},
		"a negative scale":        {gguf.Q5_K, func(m *fabric.Matrix) { m.Terms[0].Scales.Sub[7] = -1 }},
		"a minimum beyond 4 bits": {gguf.Q2_K, func(m *fabric.Matrix) { m.Min.Sub[1] = 16 }},
		"a scale of Q3_K":         {gguf.Q3_K, func(m *fabric.Matrix) { m.Terms[0].Scales.Sub[15] = 33 }},
		"no minimum":              {gguf.Q4_1, func(m *fabric.Matrix) { m.Min = fabric.Scales{} }},
		"a minimum too many":      {gguf.Q4_0, func(m *fabric.Matrix) { m.Min = m.Terms[0].Scales }},
		"another center":          {gguf.Q4_K, func(m *fabric.Matrix) { m.Terms[0].Center = 7 }},
		"a plane too few":         {gguf.Q6_K, func(m *fabric.Matrix) { m.Terms[0].Planes = m.Terms[0].Planes[:3] }},
		"a short plane": {gguf.Q6_K, func(m *fabric.Matrix) {
			m.Terms[0].Planes[0] = m.Terms[0].Planes[0][:3]
		}},
		"not exact":                 {gguf.Q8_0, func(m *fabric.Matrix) { m.Exact = false }},
		"a type without planes":     {gguf.Q8_0, func(m *fabric.Matrix) { m.Origin = gguf.F16 }},
		"columns of no whole block": {gguf.Q8_0, func(m *fabric.Matrix) { m.Cols = 250 }},
		"too few scales": {gguf.Q8_0, func(m *fabric.Matrix) {
			m.Terms[0].Scales.Half = m.Terms[0].Scales.Half[:7]
		}},
		"no terms": {gguf.Q8_0, func(m *fabric.Matrix) { m.Terms = nil }},
	} {
		size := int(256 / tt.typ.BlockElems() * tt.typ.BlockBytes())
		m := mustExact(t, tt.typ, 1, 256, make([]byte, size), Options{Layout: trit.PT5})
		if err := RestoreBlocks(make([]byte, size), m); err != nil {
			t.Fatalf("%s: Bytes failed before the change: %v", name, err)
		}
		tt.corrupt(m)
		if err := RestoreBlocks(make([]byte, size), m); err == nil {
			t.Errorf("%s: Bytes returned no error, want one", name)
		}
	}
}

func TestProgressAndCancel(t *testing.T) {
	const rows, cols = 300, 2560
	src := make([]byte, rows*cols/32*34)
	var seen []int
	mustExact(t, gguf.Q8_0, rows, cols, src, Options{Workers: 3, Progress: func(n int) { seen = append(seen, n) }})
	calls := ceilDiv(rows, chunkWeights/cols)
	if len(seen) != calls || !slices.IsSorted(seen) || seen[len(seen)-1] != rows {
		t.Errorf("Progress was called with %d, want %d ascending numbers up to %d", seen, calls, rows)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Exact(ctx, gguf.Q8_0, rows, cols, src, Options{Workers: 1, Progress: func(int) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Exact returned %v after a cancellation, want %v", err, context.Canceled)
	}
}

func TestScaleHalf(t *testing.T) {
	for _, x := range []float32{65504, 65519, 65520, 1e30, float32(math.Inf(1))} {
		if got := roundScale(x); got != 0x7bff {
			t.Errorf("roundScale(%v) = %#x, want 0x7bff", x, got)
		}
	}
	if got := roundScale(1); got != 0x3c00 {
		t.Errorf("roundScale(1) = %#x, want 0x3c00", got)
	}
}

// FuzzExact tries any bytes. They must either be refused or be restored.
func FuzzExact(f *testing.F) {
	for typ := range exactTypes {
		f.Add(uint8(typ), []byte("any bytes at all, of which blocks are filled"), uint8(typ))
	}
	f.Fuzz(func(t *testing.T, typ uint8, data []byte, form uint8) {
		of := gguf.Type(typ)
		if ExactPlanes(of) == 0 || len(data) == 0 {
			return
		}
		blocks := 1 + len(data)/int(of.BlockBytes())
		src := bytes.Repeat(data, 1+blocks*int(of.BlockBytes())/len(data))[:blocks*int(of.BlockBytes())]
		o := Options{Layout: allLayouts[int(form)%len(allLayouts)]}
		m, err := Exact(t.Context(), of, 1, blocks*int(of.BlockElems()), src, o)
		if err != nil {
			if !errors.Is(err, ErrInexact) || of != gguf.TQ1_0 && of != gguf.TQ2_0 {
				t.Fatal(err)
			}
			return
		}
		checkExact(t, m, src)
	})
}
