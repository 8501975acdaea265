package fabric_test

// This file makes the conformance vectors. All choices come from a generator of its own, so that
// the vectors are always the same.

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"strings"
)

// source is a random number generator that no release of Go changes (Knuth's MMIX).
type source uint64

func (s *source) intN(n int) int {
	*s = *s*6364136223846793005 + 1442695040888963407
	return int(uint64(*s) >> 33 % uint64(n))
}

func (s *source) trits(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "-0+"[s.intN(3)]
	}
	return string(b)
}

// randomHalf returns a finite half: mostly one of magnitude 2^-12 to 8, sometimes one of the smallest.
func (s *source) randomHalf() uint16 {
	if s.intN(16) == 0 {
		return uint16(s.intN(1024))
	}
	return uint16((3+s.intN(15))<<10 | s.intN(1024) | s.intN(2)<<15)
}

// uniform returns a float from -4 to 4.
func (s *source) uniform() float32 { return float32(s.intN(1<<24)-1<<23) * 0x1p-21 }

func bitsOf(x []float32) (bits []uint32) {
	for _, v := range x {
		bits = append(bits, math.Float32bits(v))
	}
	return bits
}

func floats(bits []uint32) []float32 {
	x := make([]float32, len(bits))
	for i, b := range bits {
		x[i] = math.Float32frombits(b)
	}
	return x
}

// scales returns scales of rows x cols in blocks. They are integers and halves if sub is true,
// otherwise halves. It returns nil if block is 0.
func (s *source) scales(rows, cols, block int, sub bool) *scales {
	if block == 0 {
		return nil
	}
	v := &scales{Block: block}
	for range rows * ((cols + block - 1) / block) {
		if sub {
			v.Sub = append(v.Sub, int8(s.intN(256)-128))
		} else {
			v.Half = append(v.Half, s.randomHalf())
		}
	}
	if sub {
		for range rows * ((cols + 255) / 256) {
			v.Super = append(v.Super, s.randomHalf())
		}
	}
	return v
}

// term returns a term with random planes. Six planes are the digits of integers from -128 to 127.
func (s *source) term(rows, cols, planes int, center int32, scales *scales) term {
	t := term{Center: center, Scales: scales}
	for range planes {
		plane := make([]string, rows)
		for r := range plane {
			plane[r] = s.trits(cols)
		}
		t.Planes = append(t.Planes, plane)
	}
	for r := 0; r < rows && planes == 6; r++ {
		digits := [6][]byte{}
		for range cols {
			for p, d := range balancedDigits(s.intN(256) - 128) {
				digits[p] = append(digits[p], d)
			}
		}
		for p := range digits {
			t.Planes[p][r] = string(digits[p])
		}
	}
	return t
}

// balancedDigits returns the six digits of n, least significant first.
func balancedDigits(n int) (digits [6]byte) {
	n += 364 // now all digits are 0 to 2
	for p := range digits {
		digits[p] = "-0+"[n%3]
		n /= 3
	}
	return digits
}

func ptr(n int) *int { return &n }

// makeVectors returns all vectors.
func makeVectors() (all []*vector) {
	s := source(6)
	for b := range 256 {
		v := &vector{Kind: "code", Byte: ptr(b), Error: "invalid-trit"}
		if b < 243 {
			v.Error = ""
			for d, i := b, 0; i < 5; d, i = d/3, i+1 {
				v.Trits += string("-0+"[d%3])
			}
		}
		all = append(all, v)
	}
	for _, n := range []int{0, 1, 2, 3, 4, 5, 6, 40, 63, 64, 65, 127, 255, 256, 257, 319, 320, 321, 511, 577, 641} {
		v := &vector{Kind: "row", N: ptr(n), Trits: s.trits(n), Layouts: map[string]string{}}
		for _, l := range layoutNames {
			v.Layouts[l] = hex.EncodeToString(packRow(l, v.Trits))
		}
		all = append(all, v)
	}
	for _, c := range []struct {
		layout string
		n      int
		at     int // the byte that is changed and reported: in the sliced layout, the first of the two of a trit
		value  byte
	}{
		{"pt5", 15, 0, 243}, {"pt5", 15, 2, 255}, {"pt5", 11, 2, 121 + 3}, {"pt5", 14, 2, 121 - 81},
		{"pt5-striped", 320, 63, 243},
		{"pt5-striped", 70, 6, 121 - 3}, {"pt5-striped", 400, 64 + 20, 121 + 81}, {"two-bit", 256, 9, 0x57},
		{"two-bit", 256, 63, 0xd5},
		{"two-bit", 255, 63, 0x95}, {"two-bit", 1, 1, 0x54}, {"sliced", 64, 3, 0xff}, {"sliced", 60, 7, 0x10},
		{"sliced", 130, 32, 0x04},
	} {
		b := packRow(c.layout, strings.Repeat("0", c.n))
		b[c.at] = c.value
		if c.layout == "sliced" && c.value == 0xff {
			b[c.at+8] = 0x80
		}
		all = append(all, &vector{
			Kind: "bad-row", Layout: c.layout, N: ptr(c.n), Byte: ptr(c.at), Hex: hex.EncodeToString(b),
			Error: "invalid-trit",
		})
	}
	all = append(all, quantiseVectors(&s)...)
	all = append(all, gemvVectors(&s)...)
	return append(all, frameVectors(&s)...)
}

func quantiseVectors(s *source) (all []*vector) {
	for _, c := range []struct {
		what     string
		block, n int
		x        func(i int) float32
	}{
		{"random", 32, 96, func(int) float32 { return s.uniform() }},
		{"a short last block", 32, 45, func(int) float32 { return s.uniform() }},
		{"ties", 32, 64, func(i int) float32 { return float32(i*4-127) / 2 }},
		{"ties of scale 1", 32, 32, func(i int) float32 {
			return []float32{127, 0.5, -0.5, 1.5, 2.5, -2.5, -3.5, 126.5}[i%8]
		}},
		{"zeros", 32, 32, func(int) float32 { return 0 }},
		{"a scale below the halves", 32, 32, func(i int) float32 { return float32(i) * 0x1p-30 }},
		{"random", 256, 256, func(int) float32 { return s.uniform() }},
		{"a short last block, the largest negative", 256, 300, func(i int) float32 {
			return s.uniform() - float32(i)*0x1p-10
		}},
		{"two of the largest magnitude", 256, 256, func(i int) float32 { return []float32{1, -4, 4, 0.25}[i%4] }},
		{"ties", 256, 256, func(i int) float32 { return float32(i*4-127) / 2 }},
		{"zeros", 256, 256, func(int) float32 { return 0 }},
	} {
		x := make([]float32, c.n)
		for i := range x {
			x[i] = c.x(i)
		}
		all = append(all, &vector{Kind: "quantise", What: c.what, X: bitsOf(x), Activations: quantise(c.block, x)})
	}
	return all
}

func gemvVectors(s *source) (all []*vector) {
	for _, c := range []struct {
		what               string
		rows, cols         int
		planes             []int // for each term their number
		center             int32
		block              int
		sub                bool
		minBlock, actBlock int
	}{
		{"a plane", 2, 64, []int{1}, 0, 32, false, 0, 32},
		{"a plane without scales, short tail", 3, 65, []int{1}, 0, 0, false, 0, 32},
		{"as of TQ2_0", 2, 512, []int{1}, 0, 256, false, 0, 256},
		{"two planes, short tail", 3, 70, []int{2}, 0, 16, false, 0, 32},
		{"as of Q4_K", 2, 256, []int{3}, 8, 32, true, 32, 256},
		{"as of Q6_K", 2, 256, []int{4}, 0, 16, true, 0, 256},
		{"five planes, blocks that hold several of the activations', minima", 1, 300, []int{5}, -3, 64, false, 128, 32},
		{"as of Q8_0", 2, 96, []int{6}, 0, 32, false, 0, 32},
		{"three terms of a plane", 2, 100, []int{1, 1, 1}, 0, 32, false, 0, 32},
		{"terms of several planes", 2, 80, []int{2, 3}, 1, 16, false, 32, 32},
		{"one scale a row", 2, 320, []int{2}, 0, 1 << 20, false, 0, 256},
	} {
		v := &vector{Kind: "gemv", What: c.what, Matrix: &matrix{Rows: c.rows, Cols: c.cols}}
		for _, planes := range c.planes {
			scales := s.scales(c.rows, c.cols, c.block, c.sub)
			v.Matrix.Terms = append(v.Matrix.Terms, s.term(c.rows, c.cols, planes, c.center, scales))
		}
		v.Matrix.Min = s.scales(c.rows, c.cols, c.minBlock, c.sub)
		x := make([]float32, c.cols)
		for i := range x {
			x[i] = s.uniform()
		}
		v.X, v.Activations = bitsOf(x), quantise(c.actBlock, x)
		setProduct(v)
		all = append(all, v)
	}
	largest := &vector{
		Kind: "gemv", What: "the largest integers of six planes and the activations",
		Matrix: &matrix{Rows: 2, Cols: 256},
	}
	plus, minus := balancedDigits(127), balancedDigits(-128)
	largest.Matrix.Terms = []term{{}}
	for p := range plus {
		rows := []string{strings.Repeat(string(plus[p]), 256), strings.Repeat(string(minus[p]), 256)}
		largest.Matrix.Terms[0].Planes = append(largest.Matrix.Terms[0].Planes, rows)
	}
	x := slices.Repeat([]float32{-2}, 256)
	largest.X, largest.Activations = bitsOf(x), quantise(256, x)
	setProduct(largest)
	return append(all, largest)
}

func frameVectors(s *source) (all []*vector) {
	addGood := func(what, name string, m *matrix) {
		b, _ := encodeFrame(name, m)
		all = append(all, &vector{Kind: "frame", What: what, Name: name, Matrix: m, Hex: hex.EncodeToString(b)})
	}
	addGood("the smallest", "w", &matrix{Rows: 1, Cols: 1, Layout: "pt5", Terms: []term{s.term(1, 1, 1, 0, nil)}})
	addGood("as of Q4_K", "blk.0.attn_q.weight", &matrix{
		Rows: 2, Cols: 256, Layout: "pt5-striped", Origin: 12, Exact: true,
		Terms: []term{s.term(2, 256, 3, 8, s.scales(2, 256, 32, true))}, Min: s.scales(2, 256, 32, true),
	})
	addGood("as of Q8_0", "output.weight", &matrix{
		Rows: 3, Cols: 64, Layout: "two-bit", Origin: 8, Exact: true,
		Terms: []term{s.term(3, 64, 6, 0, s.scales(3, 64, 32, false))},
	})
	addGood("terms of a plane, short tail, a name beyond ASCII", "größe", &matrix{
		Rows: 5, Cols: 33, Layout: "sliced", Origin: 1,
		Terms: []term{
			s.term(5, 33, 1, 0, s.scales(5, 33, 16, false)),
			s.term(5, 33, 1, -1, s.scales(5, 33, 16, false)),
		},
	})
	addGood("a scale for each row, minima without center", strings.Repeat("name", 20), &matrix{
		Rows: 4, Cols: 321, Layout: "pt5", Origin: 34,
		Terms: []term{s.term(4, 321, 2, 0, s.scales(4, 321, 1<<40, false))},
		Min:   s.scales(4, 321, 64, false),
	})

	base := &matrix{
		Rows: 3, Cols: 12, Layout: "pt5-striped", Origin: 35,
		Terms: []term{s.term(3, 12, 2, 0, s.scales(3, 12, 32, false))},
	}
	addBad := func(what, err string, sealed bool, change func(b []byte, payload int) []byte) *vector {
		b, payload := encodeFrame("bad", base)
		b = change(b, payload)
		if sealed {
			binary.LittleEndian.PutUint32(b[payload-4:], crc32c(b[:payload-4]))
			binary.LittleEndian.PutUint32(b[len(b)-4:], crc32c(b[payload:len(b)-4]))
		}
		v := &vector{Kind: "bad-frame", What: what, Error: err, Hex: hex.EncodeToString(b)}
		all = append(all, v)
		return v
	}
	// setByte changes a byte, counted from the frame's beginning, or, if at is negative, from its end.
	setByte := func(at int, value byte) func([]byte, int) []byte {
		return func(b []byte, _ int) []byte {
			if at < 0 {
				at += len(b)
			}
			b[at] = value
			return b
		}
	}
	cutAt := func(n int) func([]byte, int) []byte {
		return func(b []byte, _ int) []byte {
			if n < 0 {
				n += len(b)
			}
			return b[:n]
		}
	}
	addBad("another magic number", "not-a-frame", true, setByte(0, 'T'))
	addBad("line ends were converted", "not-a-frame", false,
		func(b []byte, _ int) []byte { return bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")) })
	addBad("big-endian", "version", true, func(b []byte, _ int) []byte { slices.Reverse(b[8:12]); return b })
	addBad("version 2", "version", true, setByte(12, 2))
	addBad("version 0", "version", true, setByte(12, 0))
	addBad("neither byte order", "malformed", true, setByte(8, 0))
	addBad("ends in the magic number", "truncated", false, cutAt(5))
	addBad("ends in the fixed fields", "truncated", false, cutAt(63))
	addBad("ends before the header's checksum", "truncated", false, cutAt(128))
	addBad("ends with the header", "truncated", false, func(b []byte, payload int) []byte { return b[:payload] })
	addBad("ends before the payload's checksum", "truncated", false, cutAt(-4))
	addBad("ends in the payload's checksum", "truncated", false, cutAt(-1))
	addBad("a bit of the header", "checksum", false, setByte(32, 2))
	addBad("the header's checksum", "checksum", false,
		func(b []byte, payload int) []byte { b[payload-1] ^= 1; return b })
	addBad("a bit of the payload, to a code of no trits", "checksum", false,
		func(b []byte, payload int) []byte { b[payload+64] = 255; return b })
	addBad("a bit of padding", "checksum", false, setByte(-5, 1))
	addBad("the payload's checksum", "checksum", false, func(b []byte, _ int) []byte { b[len(b)-1] ^= 1; return b })
	addBad("an unknown flag", "malformed", true, setByte(14, 2))
	addBad("the header's length is no multiple of 64", "malformed", true, setByte(16, 0xbf))
	addBad("the header's length is beyond the limit", "malformed", true, setByte(19, 1))
	addBad("the header is longer than its contents", "malformed", true, setByte(56, 60))
	addBad("a reserved field", "malformed", true, setByte(20, 1))
	addBad("another length of payload", "malformed", true, setByte(24, 0))
	addBad("no rows", "malformed", true, setByte(32, 0))
	addBad("2^56 rows", "malformed", true, setByte(39, 1))
	addBad("2^31 columns", "malformed", true, func(b []byte, _ int) []byte { b[40], b[43] = 0, 0x80; return b })
	addBad("a type that ggml removed", "malformed", true, setByte(48, 4))
	addBad("no layout", "malformed", true, setByte(52, 0))
	addBad("planes stored striped", "malformed", true, setByte(53, 2))
	addBad("no terms", "malformed", true, setByte(54, 0))
	addBad("no name", "malformed", true,
		func(b []byte, _ int) []byte { b[56] = 0; copy(b[112:], "\x00\x00\x00"); return b })
	addBad("a name that is not UTF-8", "malformed", true, setByte(112, 0xff))
	addBad("a term without planes", "malformed", true, setByte(64, 0))
	addBad("17 planes", "malformed", true, setByte(64, 17))
	addBad("a center beyond 2^30", "malformed", true, setByte(64+7, 0x41))
	addBad("an unknown form of scales", "malformed", true, setByte(64+8, 3))
	addBad("blocks of 48", "malformed", true,
		func(b []byte, _ int) []byte { b[32], b[40], b[64+16] = 3, 96, 48; return b })
	addBad("minima with planes", "malformed", true, setByte(64+24, 1))
	addBad("padding that is not zero", "malformed", true,
		func(b []byte, payload int) []byte { b[payload+63] = 1; return b })
	for _, c := range []struct {
		what             string
		plane, row, byte int
		value            byte
	}{
		{"code 243", 0, 0, 0, 243}, {"code 255", 1, 2, 1, 255}, {"a trit after the last", 1, 1, 2, 121 + 9},
		{"five -1 after the last", 0, 2, 2, 0},
	} {
		v := addBad(c.what, "invalid-trit", true, func(b []byte, payload int) []byte {
			b[payload+64+64*c.plane+3*c.row+c.byte] = c.value
			return b
		})
		v.Term, v.Plane, v.Row, v.Byte = ptr(0), ptr(c.plane), ptr(c.row), ptr(c.byte)
	}
	return all
}
