package gguf_test

// This file compares Dequantize with ggml's own functions in the real libggml-base, bit for bit,
// and tests what it refuses. cgo is not allowed in tests, so a small C program calls the library.

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/gguf"
	"tensorcast/internal/testenv"
)

// decoded has the types that Dequantize decodes, and where in a block of each the scales and minima
// of the block lie.
var decoded = []struct {
	typ   gguf.Type
	halfs []int
}{
	{gguf.F32, nil}, {gguf.F16, []int{0}}, {gguf.BF16, nil},
	{gguf.Q4_0, []int{0}}, {gguf.Q4_1, []int{0, 2}}, {gguf.Q5_0, []int{0}}, {gguf.Q5_1, []int{0, 2}},
	{gguf.Q8_0, []int{0}},
	{gguf.Q1_0, []int{0}}, {gguf.Q2_0, []int{0}},
	{gguf.Q2_K, []int{80, 82}}, {gguf.Q3_K, []int{108}}, {gguf.Q4_K, []int{0, 2}}, {gguf.Q5_K, []int{0, 2}},
	{gguf.Q6_K, []int{208}},
	{gguf.Q8_K, nil}, {gguf.TQ1_0, []int{52}}, {gguf.TQ2_0, []int{64}}, {gguf.IQ4NL, []int{0}}, {gguf.IQ4XS, []int{0}},
	{gguf.MXFP4, nil}, {gguf.NVFP4, nil},
}

// dequantize decodes with Dequantize.
func dequantize(t testing.TB, typ gguf.Type, src []byte) []float32 {
	t.Helper()
	dst := make([]float32, int64(len(src))/typ.BlockBytes()*typ.BlockElems())
	if err := gguf.Dequantize(dst, typ, src); err != nil {
		t.Fatal(err)
	}
	return dst
}

// dequantProbe is the running C program, for one goroutine.
type dequantProbe struct {
	in  io.Writer
	out *bufio.Reader
}

// startDequantProbe starts the program for a test, which is skipped where it cannot be.
func startDequantProbe(t testing.TB) *dequantProbe {
	t.Helper()
	p, err := newDequantProbe(t, llamatest.ForTest(t).Dir)
	if errors.Is(err, exec.ErrNotFound) {
		t.Skipf("the program that calls libggml-base cannot be built: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newDequantProbe compiles and starts the program with the library in dir. It ends with the test.
func newDequantProbe(t testing.TB, dir string) (*dequantProbe, error) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(t.TempDir(), "dequantprobe")
	if out, err := exec.Command(gcc, "-O1", "-Wall", "-Werror", "-o", path, "testdata/dequantprobe.c",
		"-ldl").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile dequantprobe: %w\n%s", err, out)
	}
	cmd := exec.Command(path, filepath.Join(dir, "libggml-base.so"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("dequantprobe: %v", err)
		}
	})
	return &dequantProbe{in, bufio.NewReader(out)}, nil
}

// decode lets ggml decode src so many times. It returns the floats (nil if this ggml has no decoder
// for the type) and the nanoseconds that it took.
func (p *dequantProbe) decode(t testing.TB, typ gguf.Type, src []byte, times int) (floats []float32, ns uint64) {
	t.Helper()
	elems := int64(len(src)) / typ.BlockBytes() * typ.BlockElems()
	var request []byte
	request = binary.NativeEndian.AppendUint32(request, uint32(typ))
	request = binary.NativeEndian.AppendUint32(request, uint32(times))
	request = binary.NativeEndian.AppendUint64(request, uint64(len(src)))
	request = binary.NativeEndian.AppendUint64(request, uint64(elems))
	for _, b := range [][]byte{request, src} {
		if _, err := p.in.Write(b); err != nil {
			t.Fatalf("ask dequantprobe: %v", err)
		}
	}
	var reply [2]uint64
	if err := binary.Read(p.out, binary.NativeEndian, &reply); err != nil {
		t.Fatalf("dequantprobe: %v", err)
	}
	if reply[0] == 0 {
		return nil, 0
	}
	floats = make([]float32, max(elems, 1)) // the address of the first is taken
	if _, err := io.ReadFull(p.out, unsafe.Slice((*byte)(unsafe.Pointer(&floats[0])), 4*elems)); err != nil {
		t.Fatalf("dequantprobe: %v", err)
	}
	return floats[:elems], reply[1]
}

// compare fails the test unless Dequantize and ggml decode src to the same bits.
func (p *dequantProbe) compare(t *testing.T, what string, typ gguf.Type, src []byte) {
	t.Helper()
	got := dequantize(t, typ, src)
	var want []float32
	if typ == gguf.F32 {
		// ggml has no function for types that need no decoding.
		for b := src; len(b) > 0; b = b[4:] {
			want = append(want, math.Float32frombits(binary.LittleEndian.Uint32(b)))
		}
	} else if want, _ = p.decode(t, typ, src, 1); want == nil {
		t.Skipf("this ggml has no decoder for %v", typ)
	}
	elems, size := int(typ.BlockElems()), int(typ.BlockBytes())
	bad := 0
	for i := range want {
		block := src[i/elems*size:][:size]
		if math.Float32bits(got[i]) == math.Float32bits(want[i]) ||
			got[i] != got[i] && want[i] != want[i] && anyNaN(typ, block) {
			continue
		}
		if bad++; bad <= 5 {
			t.Errorf("%s: element %d of block %x is %v (%#x); ggml says %v (%#x)", what, i%elems, block,
				got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
	if bad > 5 {
		t.Errorf("%s: %d of %d elements differ", what, bad, len(want))
	}
}

// anyNaN reports whether NaN elements of the block may have any sign and payload. Only on x86-64 do
// operations on NaN, and operations without a result, give the same bits with every compiler. There
// is one exception: the sum of two NaNs is one of them, namely the one that the compiler (Go's, or
// that of this ggml) made the first operand. (The operands of a difference have an order, so it is
// the first of them.)
func anyNaN(typ gguf.Type, block []byte) bool {
	if runtime.GOARCH != "amd64" {
		return true
	}
	if typ != gguf.Q4_1 && typ != gguf.Q5_1 {
		return false
	}
	d, m := binary.LittleEndian.Uint16(block)&0x7fff, binary.LittleEndian.Uint16(block[2:])&0x7fff
	return d >= 0x7c00 && m > 0x7c00 // infinity times code 0 is NaN, too
}

// specials are halves at the edges of the format: zeros, subnormals, one, the largest, infinities,
// quiet and signalling NaN.
var specials = []uint16{
	0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x8400, 0x3c00, 0xbc00, 0x3555, 0xb555, 0x7bff, 0xfbff,
	0x7c00, 0xfc00, 0x7e00, 0xfe00, 0x7c01, 0xfc01, 0x7dff, 0x7fff, 0xffff,
}

func randomBytes(rng *rand.Rand, n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func TestDequantizeAgainstGGML(t *testing.T) {
	testenv.SkipWithRace(t)
	probe := startDequantProbe(t)
	for _, d := range decoded {
		t.Run(d.typ.String(), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(4, uint64(d.typ)))
			size := int(d.typ.BlockBytes())
			// Random bytes have every code and every small scale at every position.
			probe.compare(t, "random blocks", d.typ, randomBytes(rng, max(4096*int64(size), 1<<16)))

			// Each byte value at all positions at once, with each special half as scale and minimum.
			var src []byte
			for v := range 256 {
				uniform := bytes.Repeat([]byte{byte(v)}, size)
				src = append(src, uniform...)
				for _, scale := range specials {
					for _, at := range d.halfs {
						block := bytes.Clone(uniform)
						for _, other := range d.halfs {
							binary.LittleEndian.PutUint16(block[other:], specials[rng.IntN(len(specials))])
						}
						binary.LittleEndian.PutUint16(block[at:], scale)
						src = append(src, block...)
					}
				}
			}
			probe.compare(t, "special blocks", d.typ, src)

			// Every half (and bfloat) as the scale of random codes; for large blocks one in five.
			src = src[:0]
			step := 1
			if d.typ.BlockElems() == 256 {
				step = 5
			}
			for h := 0; h < 1<<16; h += step {
				block := randomBytes(rng, int64(size))
				at := 0
				if d.halfs != nil {
					at = d.halfs[0]
				}
				binary.LittleEndian.PutUint16(block[at:], uint16(h))
				src = append(src, block...)
			}
			probe.compare(t, "all halves", d.typ, src)
		})
	}
}

func TestDequantizeModels(t *testing.T) {
	testenv.SkipWithRace(t)
	paths := models(t)
	probe := startDequantProbe(t)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f, err := gguf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := range f.Tensors {
				x := &f.Tensors[i]
				probe.compare(t, x.Name, x.Type, data[x.Offset:x.End()])
			}
		})
	}
}

func TestDequantizeErrors(t *testing.T) {
	decodes := map[gguf.Type]bool{}
	for _, d := range decoded {
		decodes[d.typ] = true
		elems, size := d.typ.BlockElems(), d.typ.BlockBytes()
		for _, c := range []struct{ elems, bytes int64 }{
			{elems, 2 * size}, {2 * elems, size}, {0, size}, {elems, 0}, {elems - 1, size}, {elems + 1, size},
			{elems, size - 1}, {elems, size + 1},
		} {
			dst := bytes.Repeat([]byte{0xa5}, int(4*(c.elems+1)))
			floats := unsafe.Slice((*float32)(unsafe.Pointer(&dst[0])), c.elems)
			err := gguf.Dequantize(floats, d.typ, make([]byte, c.bytes))
			if err == nil || errors.Is(err, gguf.ErrNoDecoder) {
				t.Errorf("%v: %d bytes to %d elements: %v", d.typ, c.bytes, c.elems, err)
			}
			if !bytes.Equal(dst, bytes.Repeat([]byte{0xa5}, len(dst))) {
				t.Errorf("%v: %d bytes to %d elements: an error, but elements are written", d.typ, c.bytes, c.elems)
			}
		}
		if err := gguf.Dequantize(nil, d.typ, nil); err != nil {
			t.Errorf("%v: nothing to nothing: %v", d.typ, err)
		}
	}
	for _, typ := range append([]gguf.Type{4, 5, 31, 33, 36, 38, 43, 1 << 31, math.MaxUint32}, allTypes()...) {
		if decodes[typ] {
			continue
		}
		dst := make([]float32, max(typ.BlockElems(), 1))
		if err := gguf.Dequantize(dst, typ, make([]byte, typ.BlockBytes())); !errors.Is(err, gguf.ErrNoDecoder) {
			t.Errorf("%v: %v", typ, err)
		}
	}
}

func allTypes() (all []gguf.Type) {
	for typ := gguf.Type(0); typ < 64; typ++ {
		if typ.Valid() {
			all = append(all, typ)
		}
	}
	return all
}

// These values were computed by hand, for machines without ggml.
func TestDequantize(t *testing.T) {
	inf, nan := float32(math.Inf(1)), math.Float32frombits(0x7fe02000)
	half := func(h ...uint16) (b []byte) {
		for _, h := range h {
			b = binary.LittleEndian.AppendUint16(b, h)
		}
		return b
	}
	zeros := func(n int) []byte { return make([]byte, n) }
	cat := func(b ...[]byte) []byte { return bytes.Join(b, nil) }
	negativeZero := float32(math.Copysign(0, -1))
	for _, c := range []struct {
		name string
		typ  gguf.Type
		src  []byte
		want map[int]float32 // by element
	}{
		{
			"F32", gguf.F32, []byte{0, 0, 0x80, 0x3f, 1, 0, 0x80, 0x7f},
			map[int]float32{0: 1, 1: math.Float32frombits(0x7f800001)},
		},
		{
			"F16", gguf.F16,
			half(0x3c00, 0xc000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0x8000, 0x7c00, 0xfc00, 0x7d01),
			map[int]float32{
				0: 1, 1: -2, 2: 0x1p-24, 3: -1023 * 0x1p-24, 4: 0x1p-14, 5: 65504, 6: negativeZero, 7: inf, 8: -inf,
				9: math.Float32frombits(0x7fe02000),
			},
		},
		{
			"BF16", gguf.BF16, half(0x3f80, 0x8000, 0x7f81),
			map[int]float32{0: 1, 1: negativeZero, 2: math.Float32frombits(0x7f810000)},
		},
		{"Q4_0", gguf.Q4_0, cat(half(0x4000), []byte{0x3c}, zeros(15)), map[int]float32{0: 8, 16: -10, 31: -16}},
		{"Q4_1", gguf.Q4_1, cat(half(0x4000, 0xbc00), zeros(15), []byte{0x3c}), map[int]float32{0: -1, 15: 23, 31: 5}},
		{
			"Q5_0", gguf.Q5_0, cat(half(0x4000), []byte{1, 0, 0, 0x80}, zeros(15), []byte{0x30}),
			map[int]float32{0: 0, 1: -32, 31: 6},
		},
		{
			"Q5_1", gguf.Q5_1, cat(half(0x4000, 0x3c00), []byte{1, 0, 0, 0x80}, zeros(15), []byte{0x30}),
			map[int]float32{0: 33, 1: 1, 31: 39},
		},
		{
			"Q8_0", gguf.Q8_0, cat(half(0xb800), []byte{0, 1, 0x80}, zeros(28), []byte{127}),
			map[int]float32{0: negativeZero, 1: -0.5, 2: 64, 31: -63.5},
		},
		{"Q8_0 NaN", gguf.Q8_0, cat(half(0x7d01), zeros(32)), map[int]float32{0: nan}},
		{
			"TQ2_0", gguf.TQ2_0, cat([]byte{0b11_00_01_10}, zeros(63), half(0xc000)),
			map[int]float32{0: -2, 32: negativeZero, 64: 2, 96: -4, 128: 2},
		},
		// 2 1 0 2 1 in base 3 is 196, and 196 * 256 / 243 rounds up to 207.
		{
			"TQ1_0", gguf.TQ1_0, cat([]byte{207}, zeros(51), half(0x3c00)),
			map[int]float32{0: 1, 32: 0, 64: -1, 96: 1, 128: 0, 255: -1},
		},
		{"MXFP4", gguf.MXFP4, cat([]byte{128, 0xf7}, zeros(15)), map[int]float32{0: 12, 16: -12, 1: 0}},
		{"MXFP4 tiny", gguf.MXFP4, cat([]byte{0, 0x91}, zeros(15)), map[int]float32{0: 0x1p-128, 16: -0x1p-128}},
		{
			"MXFP4 huge", gguf.MXFP4, cat([]byte{255, 0x91}, zeros(14), []byte{0xf0}),
			map[int]float32{0: 0x1p127, 16: -0x1p127, 31: -inf},
		},
		{
			"Q2_K", gguf.Q2_K, cat([]byte{0x35}, zeros(15), []byte{2}, zeros(63), half(0x3c00, 0x4000)),
			map[int]float32{0: 4, 1: -6, 16: 0},
		},
		{
			"Q3_K", gguf.Q3_K,
			cat(zeros(31), []byte{0x81}, zeros(63), []byte{0xc0}, zeros(7), []byte{0x10}, zeros(3), []byte{0x80},
				half(0x3c00)),
			map[int]float32{0: 128, 31: negativeZero, 254: -4, 255: 3},
		},
		{
			"Q4_K", gguf.Q4_K,
			cat(half(0x3c00, 0x3c00), []byte{0xc3, 0, 0, 0, 0x41, 0, 0, 0, 0x52}, zeros(3),
				[]byte{0x9c}, zeros(63), []byte{7}, zeros(63)),
			map[int]float32{0: 35, 1: -1, 32: 0, 128: 7*(2+48) - (5 + 16), 129: -21},
		},
		{
			"Q5_K", gguf.Q5_K,
			cat(half(0x3c00, 0x3c00), []byte{3, 0, 0, 0, 1}, zeros(7), []byte{1}, zeros(31), []byte{0x9c}, zeros(127)),
			map[int]float32{0: 28*3 - 1, 1: -1, 32: 0},
		},
		{
			"Q6_K", gguf.Q6_K,
			cat([]byte{0x1f}, zeros(127), []byte{0b11_10_01_00}, zeros(63), []byte{2, 0, 0, 0, 0xff}, zeros(11),
				half(0x3c00)),
			map[int]float32{0: -34, 1: -64, 64: -1 * (33 - 32), 65: 32},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := dequantize(t, c.typ, c.src)
			for i, want := range c.want {
				if math.Float32bits(got[i]) != math.Float32bits(want) {
					t.Errorf("element %d is %v (%#x), want %v (%#x)", i, got[i], math.Float32bits(got[i]), want,
						math.Float32bits(want))
				}
			}
		})
	}
}

// On every machine, random blocks with finite scales decode to values with the same checksum as
// when all were compared with ggml.
func TestDequantizeChecksums(t *testing.T) {
	want := map[gguf.Type]uint32{
		gguf.F32: 0xc7436a68, gguf.F16: 0x27d948b7, gguf.BF16: 0xc8f444fb, gguf.Q4_0: 0x67793799, gguf.Q4_1: 0xe0c29de5,
		gguf.Q5_0: 0x10b11c90, gguf.Q5_1: 0xf8687460, gguf.Q8_0: 0xe9ac745c, gguf.Q1_0: 0x17e49a72,
		gguf.Q2_0: 0xbd630c01,
		gguf.Q2_K: 0x64dc7a04, gguf.Q3_K: 0x4d99b2af, gguf.Q4_K: 0x968ff932, gguf.Q5_K: 0xb6f40572,
		gguf.Q6_K: 0x07245434,
		gguf.Q8_K: 0x50cce062, gguf.TQ1_0: 0x6224cd87, gguf.TQ2_0: 0x8d0a4104, gguf.IQ4NL: 0x8e94a2ac,
		gguf.IQ4XS: 0xc77fb704,
		gguf.MXFP4: 0x1f34ba30, gguf.NVFP4: 0x20c4ccb7,
	}
	for _, d := range decoded {
		rng := rand.New(rand.NewPCG(9, uint64(d.typ)))
		size := int(d.typ.BlockBytes())
		src := randomBytes(rng, 256*int64(size))
		for block := src; len(block) > 0; block = block[size:] {
			for _, at := range d.halfs {
				block[at+1] &^= 0x40 // an exponent below that of infinity and NaN
			}
			if d.typ == gguf.Q8_K {
				block[3] &^= 0x40
			}
		}
		var decoded []byte
		for _, x := range dequantize(t, d.typ, src) {
			decoded = binary.LittleEndian.AppendUint32(decoded, math.Float32bits(x))
		}
		if got := crc32.ChecksumIEEE(decoded); got != want[d.typ] {
			t.Errorf("%v: %#08x, want %#08x", d.typ, got, want[d.typ])
		}
	}
}

func TestDequantizeAllocatesNothing(t *testing.T) {
	for _, d := range decoded {
		src, dst := make([]byte, 8*d.typ.BlockBytes()), make([]float32, 8*d.typ.BlockElems())
		if n := testing.AllocsPerRun(10, func() {
			if err := gguf.Dequantize(dst, d.typ, src); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%v: %v allocations", d.typ, n)
		}
	}
}

// FuzzDequantize checks for any type, bytes and length that only what fits is decoded, that nothing
// beyond dst is written, and that a block decodes to the same values at every position.
func FuzzDequantize(f *testing.F) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, d := range decoded {
		f.Add(uint32(d.typ), uint16(2*d.typ.BlockElems()), randomBytes(rng, 2*d.typ.BlockBytes()))
		f.Add(uint32(d.typ), uint16(d.typ.BlockElems()+1), randomBytes(rng, 2*d.typ.BlockBytes()-1))
	}
	f.Add(uint32(gguf.IQ2XXS), uint16(256), make([]byte, 66))
	f.Add(uint32(4), uint16(0), []byte(nil))
	decodes := map[gguf.Type]bool{}
	for _, d := range decoded {
		decodes[d.typ] = true
	}
	f.Fuzz(func(t *testing.T, number uint32, n uint16, src []byte) {
		typ := gguf.Type(number)
		const canary = 12345
		buf := make([]float32, int(n)+1)
		for i := range buf {
			buf[i] = canary
		}
		dst := buf[:n]
		before := bytes.Clone(src)
		err := gguf.Dequantize(dst, typ, src)
		if !bytes.Equal(src, before) {
			t.Fatal("src is changed")
		}
		if buf[n] != canary {
			t.Fatal("the element after dst is changed")
		}
		if !decodes[typ] {
			if !errors.Is(err, gguf.ErrNoDecoder) {
				t.Fatal(err)
			}
			return
		}
		elems, size := int(typ.BlockElems()), int(typ.BlockBytes())
		blocks := len(src) / size
		if fits := len(src)%size == 0 && blocks*elems == len(dst); fits != (err == nil) {
			t.Fatalf("%d bytes of %v to %d elements: %v", len(src), typ, len(dst), err)
		}
		if err != nil {
			return
		}
		for i := range blocks {
			for j, x := range dequantize(t, typ, src[i*size:][:size]) {
				if math.Float32bits(x) != math.Float32bits(dst[i*elems+j]) {
					t.Fatalf("element %d of block %d of %v is %v, alone %v", j, i, typ, dst[i*elems+j], x)
				}
			}
		}
	})
}

// BenchmarkDequantize measures bytes of floats per second. Where there is a ggml, "x-ggml" is the
// speed relative to ggml's own function on the same blocks.
func BenchmarkDequantize(b *testing.B) {
	const elems = 1 << 20
	var probe *dequantProbe
	in, err := llama.Install(b.Context())
	if err == nil {
		probe, err = newDequantProbe(b, in.Dir)
	}
	if err != nil {
		b.Logf("not compared with ggml: %v", err)
	}
	for _, d := range decoded {
		b.Run(d.typ.String(), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(7, 8))
			src := randomBytes(rng, elems/d.typ.BlockElems()*d.typ.BlockBytes())
			size := int(d.typ.BlockBytes())
			for i := 0; i < len(src); i += size {
				for _, at := range d.halfs {
					// The scales are like those of trained weights, because ggml is slower on
					// subnormal floats.
					binary.LittleEndian.PutUint16(src[i+at:], 0x1c00|uint16(rng.IntN(1<<10)))
				}
			}
			dst := make([]float32, elems)
			b.SetBytes(4 * elems)
			b.ReportAllocs()
			for b.Loop() {
				if err := gguf.Dequantize(dst, d.typ, src); err != nil {
					b.Fatal(err)
				}
			}
			if probe == nil || d.typ == gguf.F32 { // for F32 ggml has no function
				return
			}
			ns := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			times := min(b.N, 1000)
			if floats, took := probe.decode(b, d.typ, src, times); floats != nil {
				b.ReportMetric(float64(took)/float64(times)/ns, "x-ggml")
			}
		})
	}
}
