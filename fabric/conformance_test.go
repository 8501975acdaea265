package fabric_test

// This file generates the conformance vectors (testdata/conformance.jsonl, described in TFMBS_DEVICE_SPEC.md) and checks this package
// against them. The generator follows the specification trit by trit and bit by bit, with exact numbers, and uses none of the code under
// test.

//go:generate go test -run ^TestConformance$ . -update

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama/ggmltest"
	"tensorcast/fabric"
	"tensorcast/fabric/frametest"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

var update = flag.Bool("update", false, "write testdata/conformance.jsonl anew")

const vectorFile = "testdata/conformance.jsonl"

// vector is a line of the file. Which fields it has follows from Kind.
type vector struct {
	Kind string `json:"kind"` // "code", "row", "bad-row", "quantise", "gemv", "frame" or "bad-frame"
	What string `json:"what,omitempty"`

	Byte  *int   `json:"byte,omitempty"`  // code: the code; bad-row, bad-frame: the place
	Trits string `json:"trits,omitempty"` // code, row
	N     *int   `json:"n,omitempty"`     // row, bad-row: number of trits

	Layouts map[string]string `json:"layouts,omitempty"` // row: the bytes, in hex, of each layout
	Layout  string            `json:"layout,omitempty"`  // bad-row
	Hex     string            `json:"hex,omitempty"`     // bad-row, frame, bad-frame: the bytes
	Error   string            `json:"error,omitempty"`   // code, bad-row, bad-frame
	Term    *int              `json:"term,omitempty"`    // bad-frame: the place, with byte
	Plane   *int              `json:"plane,omitempty"`
	Row     *int              `json:"row,omitempty"`

	X           []uint32     `json:"x,omitempty"` // quantise, gemv: float32 bits
	Activations *activations `json:"activations,omitempty"`
	Matrix      *matrix      `json:"matrix,omitempty"`   // gemv, frame
	Integers    [][][]int64  `json:"integers,omitempty"` // gemv: of each term, row and piece
	Sums        []int64      `json:"sums,omitempty"`     // gemv: of each piece of the minima
	Y           []float64    `json:"y,omitempty"`        // gemv: of each row
	Bound       []float64    `json:"bound,omitempty"`    // gemv: of the error of y

	Name string `json:"name,omitempty"` // frame
}

type activations struct {
	Block int      `json:"block"`
	Q     []int8   `json:"q"`
	Scale []uint32 `json:"scale"` // float32 bits, of each block
}

type matrix struct {
	Rows   int     `json:"rows"`
	Cols   int     `json:"cols"`
	Layout string  `json:"layout,omitempty"` // frame
	Origin uint32  `json:"origin,omitempty"` // frame
	Exact  bool    `json:"exact,omitempty"`  // frame
	Terms  []term  `json:"terms"`
	Min    *scales `json:"min,omitempty"`
}

type term struct {
	Center int32      `json:"center"`
	Planes [][]string `json:"planes"` // a string of trits for each row
	Scales *scales    `json:"scales,omitempty"`
}

type scales struct {
	Block int      `json:"block"`
	Half  []uint16 `json:"half,omitempty"`
	Sub   []int8   `json:"sub,omitempty"`
	Super []uint16 `json:"super,omitempty"`
}

// The specification, naively.

var layoutNames = []string{"pt5", "pt5-striped", "two-bit", "sliced"}

func digit(c byte) int { return strings.IndexByte("-0+", c) }

// pack is a row in a layout.
func pack(layout, trits string) []byte {
	var group, size int
	var zero byte
	switch layout {
	case "pt5":
		group, size, zero = 5, 1, 121
	case "pt5-striped":
		group, size, zero = 320, 64, 121
	case "two-bit":
		group, size, zero = 256, 64, 0x55
	case "sliced":
		group, size, zero = 64, 16, 0
	}
	b := bytes.Repeat([]byte{zero}, (len(trits)+group-1)/group*size)
	powers := []int{1, 3, 9, 27, 81}
	for i := range trits {
		t, g, k := digit(trits[i])-1, i/group*size, i%group
		switch layout {
		case "pt5":
			b[g] = byte(int(b[g]) + t*powers[k])
		case "pt5-striped":
			b[g+k%64] = byte(int(b[g+k%64]) + t*powers[k/64])
		case "two-bit":
			b[g+k%64] = byte(int(b[g+k%64]) + t<<(2*(k/64)))
		case "sliced":
			if t > 0 {
				b[g+k/8] |= 1 << (k % 8)
			}
			if t < 0 {
				b[g+8+k/8] |= 1 << (k % 8)
			}
		}
	}
	return b
}

// crc32c is the checksum, a bit at a time.
func crc32c(b []byte) uint32 {
	crc := ^uint32(0)
	for _, v := range b {
		crc ^= uint32(v)
		for range 8 {
			if crc&1 != 0 {
				crc = crc>>1 ^ 0x82f63b78
			} else {
				crc >>= 1
			}
		}
	}
	return ^crc
}

// frame is the frame of v, and where its payload begins.
func frame(name string, v *matrix) (b []byte, payload int) {
	le := binary.LittleEndian
	pad := func(b []byte) []byte {
		for len(b)%64 != 0 {
			b = append(b, 0)
		}
		return b
	}
	var body []byte
	record := func(b []byte, planes int, center int32, s *scales) []byte {
		form, block := 0, 0
		if s != nil {
			form, block = 1, s.Block
			if s.Half == nil {
				form = 2
			}
			for _, h := range s.Half {
				body = le.AppendUint16(body, h)
			}
			for _, q := range s.Sub {
				body = append(body, byte(q))
			}
			body = pad(body)
			for _, h := range s.Super {
				body = le.AppendUint16(body, h)
			}
			body = pad(body)
		}
		b = le.AppendUint32(b, uint32(planes))
		b = le.AppendUint32(b, uint32(center))
		b = le.AppendUint64(b, uint64(form))
		return le.AppendUint64(b, uint64(block))
	}
	var records []byte
	for _, t := range v.Terms {
		records = record(records, len(t.Planes), t.Center, t.Scales)
	}
	records = record(records, 0, 0, v.Min)
	for _, t := range v.Terms {
		for _, plane := range t.Planes {
			for _, row := range plane {
				body = append(body, pack("pt5", row)...)
			}
			body = pad(body)
		}
	}
	body = append(body, make([]byte, 60)...)

	size := len(pad(make([]byte, 64+len(records)+len(name)+4)))
	flags := 0
	if v.Exact {
		flags = 1
	}
	b = append(b, 0x89, 'T', 'F', 'M', 'B', 'S', 0x0d, 0x0a, 0x0d, 0x0c, 0x0b, 0x0a, 1, 0, byte(flags), 0)
	b = le.AppendUint64(b, uint64(size))
	b = le.AppendUint64(b, uint64(len(body)))
	b = le.AppendUint64(b, uint64(v.Rows))
	b = le.AppendUint64(b, uint64(v.Cols))
	b = le.AppendUint32(b, v.Origin)
	b = append(b, byte(1+slices.Index(layoutNames, v.Layout)), 1, byte(len(v.Terms)), 0, byte(len(name)), byte(len(name)>>8), 0, 0, 0, 0, 0, 0)
	b = append(append(b, records...), name...)
	b = append(b, make([]byte, size-4-len(b))...)
	b = le.AppendUint32(b, crc32c(b))
	b = append(b, body...)
	return le.AppendUint32(b, crc32c(body)), size
}

// exact is a number without rounding: 300 bits hold any sum of products here.
func exact(f float64) *big.Float { return big.NewFloat(f).SetPrec(300) }

func product(f ...*big.Float) *big.Float {
	p := exact(1)
	for _, f := range f {
		p.Mul(p, f)
	}
	return p
}

// half is the value of an IEEE half, which must be finite.
func half(h uint16) float64 {
	f, e := float64(h&0x3ff), int(h>>10&31)
	if e == 0 {
		e = 1
	} else {
		f += 1024
	}
	return math.Ldexp(f, e-25) * float64(1-2*int(h>>15))
}

// toHalf is the half nearest to a finite f, of two the one with an even last bit. It goes through all of them.
func toHalf(f float32) uint16 {
	best := uint16(0)
	for h := range uint16(0x7c00) {
		d, b := math.Abs(half(h)-math.Abs(float64(f))), math.Abs(half(best)-math.Abs(float64(f)))
		if d < b || d == b && h%2 == 0 {
			best = h
		}
	}
	if math.Signbit(float64(f)) {
		best |= 0x8000
	}
	return best
}

// factor is the scale of column c in row r; 1 where there are no scales.
func (s *scales) factor(r, c, cols int) *big.Float {
	if s == nil {
		return exact(1)
	}
	at := r*((cols+s.Block-1)/s.Block) + c/s.Block
	if s.Half != nil {
		return exact(half(s.Half[at]))
	}
	return product(exact(float64(s.Sub[at])), exact(half(s.Super[r*((cols+255)/256)+c/256])))
}

// pieces are the first columns of the pieces that blocks of s and of the activations cut a row into, and the row's end.
func pieces(s *scales, a *activations, cols int) (cuts []int) {
	for c := range cols {
		if c%a.Block == 0 || s != nil && c%s.Block == 0 {
			cuts = append(cuts, c)
		}
	}
	return append(cuts, cols)
}

// multiply sets the results of a gemv.
func multiply(v *vector) {
	m, a := v.Matrix, v.Activations
	v.Integers = make([][][]int64, len(m.Terms))
	for r := range m.Rows {
		sum, absolute, addends := exact(0), exact(0), 0
		add := func(scale *big.Float, c int, integer, sign int64) {
			d := exact(float64(math.Float32frombits(a.Scale[c/a.Block])))
			x := product(scale, d, exact(float64(sign*integer)))
			sum.Add(sum, x)
			absolute.Add(absolute, x.Abs(x))
			addends++
		}
		for i, t := range m.Terms {
			cuts := pieces(t.Scales, a, m.Cols)
			row := []int64{}
			for k, first := range cuts[:len(cuts)-1] {
				integer := int64(0)
				for c := first; c < cuts[k+1]; c++ {
					w, power := int64(t.Center), int64(1)
					for _, plane := range t.Planes {
						w += power * int64(digit(plane[r][c])-1)
						power *= 3
					}
					integer += w * int64(a.Q[c])
				}
				row = append(row, integer)
				add(t.Scales.factor(r, first, m.Cols), first, integer, 1)
			}
			v.Integers[i] = append(v.Integers[i], row)
		}
		if m.Min != nil {
			v.Sums = nil
			cuts := pieces(m.Min, a, m.Cols)
			for k, first := range cuts[:len(cuts)-1] {
				integer := int64(0)
				for c := first; c < cuts[k+1]; c++ {
					integer += int64(a.Q[c])
				}
				v.Sums = append(v.Sums, integer)
				add(m.Min.factor(r, first, m.Cols), first, integer, -1)
			}
		}
		y, _ := sum.Float64()
		b, _ := product(absolute, exact(float64(addends+4)), exact(0x1p-24)).Float64()
		v.Y, v.Bound = append(v.Y, y), append(v.Bound, b)
	}
}

// quantise sets the activations of x, whose values are finite.
func quantise(block int, x []float32) *activations {
	a := &activations{Block: block, Q: make([]int8, len(x))}
	for first := 0; first < len(x); first += block {
		part := x[first:min(first+block, len(x))]
		most := float32(0) // the first of the largest magnitude
		for _, v := range part {
			if math.Abs(float64(v)) > math.Abs(float64(most)) {
				most = v
			}
		}
		inverse, scale := float32(0), float32(0)
		if most != 0 && block == 32 {
			most = float32(math.Abs(float64(most)))
			inverse, scale = 127/most, float32(half(toHalf(most/127)))
		} else if most != 0 {
			inverse = -127 / most
			scale = 1 / inverse
		}
		for i, v := range part {
			a.Q[first+i] = int8(min(127, math.RoundToEven(float64(float32(v*inverse)))))
		}
		a.Scale = append(a.Scale, math.Float32bits(scale))
	}
	return a
}

// The vectors.

// source is a generator that no release of Go changes (Knuth's MMIX).
type source uint64

func (s *source) upTo(n int) int {
	*s = *s*6364136223846793005 + 1442695040888963407
	return int(uint64(*s) >> 33 % uint64(n))
}

func (s *source) trits(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "-0+"[s.upTo(3)]
	}
	return string(b)
}

// half is a finite one from 2^-12 to 8, or one of the smallest.
func (s *source) half() uint16 {
	if s.upTo(16) == 0 {
		return uint16(s.upTo(1024))
	}
	return uint16((3+s.upTo(15))<<10 | s.upTo(1024) | s.upTo(2)<<15)
}

// uniform is a float from -4 to 4.
func (s *source) uniform() float32 { return float32(s.upTo(1<<24)-1<<23) * 0x1p-21 }

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

// scales of rows x cols in blocks: as integers and halves if sub is true; nil if block is 0.
func (s *source) scales(rows, cols, block int, sub bool) *scales {
	if block == 0 {
		return nil
	}
	v := &scales{Block: block}
	for range rows * ((cols + block - 1) / block) {
		if sub {
			v.Sub = append(v.Sub, int8(s.upTo(256)-128))
		} else {
			v.Half = append(v.Half, s.half())
		}
	}
	if sub {
		for range rows * ((cols + 255) / 256) {
			v.Super = append(v.Super, s.half())
		}
	}
	return v
}

// term has random planes; those of six digits of integers from -128 to 127.
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
			for p, d := range balanced(s.upTo(256) - 128) {
				digits[p] = append(digits[p], d)
			}
		}
		for p := range digits {
			t.Planes[p][r] = string(digits[p])
		}
	}
	return t
}

// balanced is the six digits of n, least significant first.
func balanced(n int) (digits [6]byte) {
	n += 364 // all digits are 0 to 2 now
	for p := range digits {
		digits[p] = "-0+"[n%3]
		n /= 3
	}
	return digits
}

func ptr(n int) *int { return &n }

// vectors are all of them.
func vectors() (all []*vector) {
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
			v.Layouts[l] = hex.EncodeToString(pack(l, v.Trits))
		}
		all = append(all, v)
	}
	for _, c := range []struct {
		layout string
		n      int
		at     int // the byte to change, and the place: the first of a pair of words
		value  byte
	}{
		{"pt5", 15, 0, 243}, {"pt5", 15, 2, 255}, {"pt5", 11, 2, 121 + 3}, {"pt5", 14, 2, 121 - 81}, {"pt5-striped", 320, 63, 243},
		{"pt5-striped", 70, 6, 121 - 3}, {"pt5-striped", 400, 64 + 20, 121 + 81}, {"two-bit", 256, 9, 0x57}, {"two-bit", 256, 63, 0xd5},
		{"two-bit", 255, 63, 0x95}, {"two-bit", 1, 1, 0x54}, {"sliced", 64, 3, 0xff}, {"sliced", 60, 7, 0x10}, {"sliced", 130, 32, 0x04},
	} {
		b := pack(c.layout, strings.Repeat("0", c.n))
		b[c.at] = c.value
		if c.layout == "sliced" && c.value == 0xff {
			b[c.at+8] = 0x80
		}
		all = append(all, &vector{
			Kind: "bad-row", Layout: c.layout, N: ptr(c.n), Byte: ptr(c.at), Hex: hex.EncodeToString(b), Error: "invalid-trit",
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
		{"ties of scale 1", 32, 32, func(i int) float32 { return []float32{127, 0.5, -0.5, 1.5, 2.5, -2.5, -3.5, 126.5}[i%8] }},
		{"zeros", 32, 32, func(int) float32 { return 0 }},
		{"a scale below the halves", 32, 32, func(i int) float32 { return float32(i) * 0x1p-30 }},
		{"random", 256, 256, func(int) float32 { return s.uniform() }},
		{"a short last block, the largest negative", 256, 300, func(i int) float32 { return s.uniform() - float32(i)*0x1p-10 }},
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
		planes             []int // of each term
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
			v.Matrix.Terms = append(v.Matrix.Terms, s.term(c.rows, c.cols, planes, c.center, s.scales(c.rows, c.cols, c.block, c.sub)))
		}
		v.Matrix.Min = s.scales(c.rows, c.cols, c.minBlock, c.sub)
		x := make([]float32, c.cols)
		for i := range x {
			x[i] = s.uniform()
		}
		v.X, v.Activations = bitsOf(x), quantise(c.actBlock, x)
		multiply(v)
		all = append(all, v)
	}
	most := &vector{Kind: "gemv", What: "the largest integers of six planes and the activations", Matrix: &matrix{Rows: 2, Cols: 256}}
	plus, minus := balanced(127), balanced(-128)
	most.Matrix.Terms = []term{{}}
	for p := range plus {
		rows := []string{strings.Repeat(string(plus[p]), 256), strings.Repeat(string(minus[p]), 256)}
		most.Matrix.Terms[0].Planes = append(most.Matrix.Terms[0].Planes, rows)
	}
	x := slices.Repeat([]float32{-2}, 256)
	most.X, most.Activations = bitsOf(x), quantise(256, x)
	multiply(most)
	return append(all, most)
}

func frameVectors(s *source) (all []*vector) {
	good := func(what, name string, m *matrix) {
		b, _ := frame(name, m)
		all = append(all, &vector{Kind: "frame", What: what, Name: name, Matrix: m, Hex: hex.EncodeToString(b)})
	}
	good("the smallest", "w", &matrix{Rows: 1, Cols: 1, Layout: "pt5", Terms: []term{s.term(1, 1, 1, 0, nil)}})
	good("as of Q4_K", "blk.0.attn_q.weight", &matrix{
		Rows: 2, Cols: 256, Layout: "pt5-striped", Origin: 12, Exact: true,
		Terms: []term{s.term(2, 256, 3, 8, s.scales(2, 256, 32, true))}, Min: s.scales(2, 256, 32, true),
	})
	good("as of Q8_0", "output.weight", &matrix{
		Rows: 3, Cols: 64, Layout: "two-bit", Origin: 8, Exact: true, Terms: []term{s.term(3, 64, 6, 0, s.scales(3, 64, 32, false))},
	})
	good("terms of a plane, short tail, a name beyond ASCII", "größe", &matrix{
		Rows: 5, Cols: 33, Layout: "sliced", Origin: 1,
		Terms: []term{s.term(5, 33, 1, 0, s.scales(5, 33, 16, false)), s.term(5, 33, 1, -1, s.scales(5, 33, 16, false))},
	})
	good("a scale for each row, minima without center", strings.Repeat("name", 20), &matrix{
		Rows: 4, Cols: 321, Layout: "pt5", Origin: 34, Terms: []term{s.term(4, 321, 2, 0, s.scales(4, 321, 1<<40, false))},
		Min: s.scales(4, 321, 64, false),
	})

	base := &matrix{Rows: 3, Cols: 12, Layout: "pt5-striped", Origin: 35, Terms: []term{s.term(3, 12, 2, 0, s.scales(3, 12, 32, false))}}
	bad := func(what, err string, sealed bool, change func(b []byte, payload int) []byte) *vector {
		b, payload := frame("bad", base)
		b = change(b, payload)
		if sealed {
			binary.LittleEndian.PutUint32(b[payload-4:], crc32c(b[:payload-4]))
			binary.LittleEndian.PutUint32(b[len(b)-4:], crc32c(b[payload:len(b)-4]))
		}
		v := &vector{Kind: "bad-frame", What: what, Error: err, Hex: hex.EncodeToString(b)}
		all = append(all, v)
		return v
	}
	// set changes a byte, counted from the frame's begin, or if it is negative from its end.
	set := func(at int, value byte) func([]byte, int) []byte {
		return func(b []byte, _ int) []byte {
			if at < 0 {
				at += len(b)
			}
			b[at] = value
			return b
		}
	}
	cut := func(n int) func([]byte, int) []byte {
		return func(b []byte, _ int) []byte {
			if n < 0 {
				n += len(b)
			}
			return b[:n]
		}
	}
	bad("another magic number", "not-a-frame", true, set(0, 'T'))
	bad("line ends were converted", "not-a-frame", false, func(b []byte, _ int) []byte { return bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")) })
	bad("big-endian", "version", true, func(b []byte, _ int) []byte { slices.Reverse(b[8:12]); return b })
	bad("version 2", "version", true, set(12, 2))
	bad("version 0", "version", true, set(12, 0))
	bad("neither byte order", "malformed", true, set(8, 0))
	bad("ends in the magic number", "truncated", false, cut(5))
	bad("ends in the fixed fields", "truncated", false, cut(63))
	bad("ends before the header's checksum", "truncated", false, cut(128))
	bad("ends with the header", "truncated", false, func(b []byte, payload int) []byte { return b[:payload] })
	bad("ends before the payload's checksum", "truncated", false, cut(-4))
	bad("ends in the payload's checksum", "truncated", false, cut(-1))
	bad("a bit of the header", "checksum", false, set(32, 2))
	bad("the header's checksum", "checksum", false, func(b []byte, payload int) []byte { b[payload-1] ^= 1; return b })
	bad("a bit of the payload, to a code of no trits", "checksum", false, func(b []byte, payload int) []byte { b[payload+64] = 255; return b })
	bad("a bit of padding", "checksum", false, set(-5, 1))
	bad("the payload's checksum", "checksum", false, func(b []byte, _ int) []byte { b[len(b)-1] ^= 1; return b })
	bad("an unknown flag", "malformed", true, set(14, 2))
	bad("the header's length is no multiple of 64", "malformed", true, set(16, 0xbf))
	bad("the header's length is beyond the limit", "malformed", true, set(19, 1))
	bad("the header is longer than its contents", "malformed", true, set(56, 60))
	bad("a reserved field", "malformed", true, set(20, 1))
	bad("another length of payload", "malformed", true, set(24, 0))
	bad("no rows", "malformed", true, set(32, 0))
	bad("2^56 rows", "malformed", true, set(39, 1))
	bad("2^31 columns", "malformed", true, func(b []byte, _ int) []byte { b[40], b[43] = 0, 0x80; return b })
	bad("a type that ggml removed", "malformed", true, set(48, 4))
	bad("no layout", "malformed", true, set(52, 0))
	bad("planes stored striped", "malformed", true, set(53, 2))
	bad("no terms", "malformed", true, set(54, 0))
	bad("no name", "malformed", true, func(b []byte, _ int) []byte { b[56] = 0; copy(b[112:], "\x00\x00\x00"); return b })
	bad("a name that is not UTF-8", "malformed", true, set(112, 0xff))
	bad("a term without planes", "malformed", true, set(64, 0))
	bad("17 planes", "malformed", true, set(64, 17))
	bad("a center beyond 2^30", "malformed", true, set(64+7, 0x41))
	bad("an unknown form of scales", "malformed", true, set(64+8, 3))
	bad("blocks of 48", "malformed", true, func(b []byte, _ int) []byte { b[32], b[40], b[64+16] = 3, 96, 48; return b })
	bad("minima with planes", "malformed", true, set(64+24, 1))
	bad("padding that is not zero", "malformed", true, func(b []byte, payload int) []byte { b[payload+63] = 1; return b })
	for _, c := range []struct {
		what             string
		plane, row, byte int
		value            byte
	}{
		{"code 243", 0, 0, 0, 243}, {"code 255", 1, 2, 1, 255}, {"a trit after the last", 1, 1, 2, 121 + 9}, {"five -1 after the last", 0, 2, 2, 0},
	} {
		v := bad(c.what, "invalid-trit", true, func(b []byte, payload int) []byte {
			b[payload+64+64*c.plane+3*c.row+c.byte] = c.value
			return b
		})
		v.Term, v.Plane, v.Row, v.Byte = ptr(0), ptr(c.plane), ptr(c.row), ptr(c.byte)
	}
	return all
}

// The test.

// errorNames are the specification's.
var errorNames = map[string]error{
	"not-a-frame": fabric.ErrNotFrame, "version": fabric.ErrVersion, "truncated": fabric.ErrTruncated, "checksum": fabric.ErrChecksum,
	"malformed": fabric.ErrFrame, "invalid-trit": trit.ErrInvalid,
}

func layoutOf(t *testing.T, name string) trit.Layout {
	t.Helper()
	for l := trit.PT5; l.Valid(); l++ {
		if l.String() == name {
			return l
		}
	}
	t.Fatalf("no layout %q", name)
	return 0
}

// matrixOf is what v describes, with planes packed naively.
func matrixOf(v *matrix, layout trit.Layout) *fabric.Matrix {
	scalesOf := func(s *scales) fabric.Scales {
		if s == nil {
			return fabric.Scales{}
		}
		return fabric.Scales{Block: s.Block, Half: s.Half, Sub: s.Sub, Super: s.Super}
	}
	m := &fabric.Matrix{
		Rows: v.Rows, Cols: v.Cols, Layout: layout, Origin: gguf.Type(v.Origin), Exact: v.Exact, Min: scalesOf(v.Min),
	}
	for _, t := range v.Terms {
		to := fabric.Term{Center: t.Center, Scales: scalesOf(t.Scales)}
		for _, plane := range t.Planes {
			var b []byte
			for _, row := range plane {
				b = append(b, pack(layout.String(), row)...)
			}
			to.Planes = append(to.Planes, b)
		}
		m.Terms = append(m.Terms, to)
	}
	return m
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func text(trits []int8) string {
	b := make([]byte, len(trits))
	for i, t := range trits {
		b[i] = "-0+"[t+1]
	}
	return string(b)
}

func int8s(s string) []int8 {
	t := make([]int8, len(s))
	for i := range t {
		t[i] = int8(digit(s[i]) - 1)
	}
	return t
}

func TestConformance(t *testing.T) {
	var want bytes.Buffer
	enc := json.NewEncoder(&want)
	enc.SetEscapeHTML(false)
	for _, v := range vectors() {
		if err := enc.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	if *update {
		if err := os.MkdirAll(filepath.Dir(vectorFile), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(vectorFile, want.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(file, want.Bytes()) {
		t.Errorf("%s is not what this test makes: run go generate, if the specification has changed", vectorFile)
	}
	if len(file) > 200<<10 {
		t.Errorf("%s has grown to %d KiB", vectorFile, len(file)>>10)
	}
	seen := map[string]int{}
	for i, v := range read(t) {
		seen[v.Kind]++
		check, ok := checks[v.Kind]
		if !ok {
			t.Fatalf("line %d is of kind %q", i+1, v.Kind)
		}
		t.Run(fmt.Sprintf("line %d %s %s", i+1, v.Kind, v.What), func(t *testing.T) { check(t, v) })
	}
	for kind := range checks {
		if seen[kind] == 0 {
			t.Errorf("no vectors of kind %q", kind)
		}
	}
}

// read is the file.
func read(t *testing.T) (all []*vector) {
	t.Helper()
	file, err := os.Open(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dec := json.NewDecoder(file)
	dec.DisallowUnknownFields()
	for {
		v := &vector{}
		if err := dec.Decode(v); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatalf("vector %d: %v", len(all)+1, err)
		}
		all = append(all, v)
	}
}

var checks = map[string]func(t *testing.T, v *vector){
	"code": checkCode, "row": checkRow, "bad-row": checkBadRow, "quantise": checkQuantise, "gemv": checkGEMV, "frame": checkFrame,
	"bad-frame": checkBadFrame,
}

func checkCode(t *testing.T, v *vector) {
	var got [5]int8
	code := []byte{byte(*v.Byte)}
	err := trit.PT5.Unpack(got[:], code)
	if !errors.Is(err, errorNames[v.Error]) {
		t.Fatalf("code %d: %v", code, err)
	}
	if err != nil {
		return
	}
	back := []byte{0}
	trit.PT5.Pack(back, int8s(v.Trits))
	if text(got[:]) != v.Trits || !bytes.Equal(back, code) {
		t.Errorf("code %d: %s, %d", code, text(got[:]), back)
	}
}

func checkRow(t *testing.T, v *vector) {
	n := *v.N
	for name, code := range v.Layouts {
		from, src := layoutOf(t, name), unhex(t, code)
		row := make([]int8, n)
		if err := from.Unpack(row, src); err != nil || text(row) != v.Trits {
			t.Errorf("%s: %s, %v", name, text(row), err)
		}
		packed := make([]byte, from.RowBytes(n))
		if from.Pack(packed, int8s(v.Trits)); !bytes.Equal(packed, src) {
			t.Errorf("%s: packed % x", name, packed)
		}
		for other, code := range v.Layouts {
			to := layoutOf(t, other)
			dst := make([]byte, to.RowBytes(n))
			if err := trit.Convert(dst, to, src, from, n); err != nil || !bytes.Equal(dst, unhex(t, code)) {
				t.Errorf("%s to %s: % x, %v", name, other, dst, err)
			}
		}
	}
}

func checkBadRow(t *testing.T, v *vector) {
	err := layoutOf(t, v.Layout).Unpack(make([]int8, *v.N), unhex(t, v.Hex))
	if !errors.Is(err, errorNames[v.Error]) || !strings.Contains(err.Error(), fmt.Sprintf("byte %d", *v.Byte)) {
		t.Errorf("%v, want byte %d", err, *v.Byte)
	}
}

func checkQuantise(t *testing.T, v *vector) { quantised(t, v) }

// quantised holds the quantiser to the vector, and returns what it made.
func quantised(t *testing.T, v *vector) *fabric.Activations {
	t.Helper()
	want := v.Activations
	a, err := fabric.NewActivations(len(v.X), want.Block)
	if err != nil {
		t.Fatal(err)
	}
	a.Quantize(floats(v.X))
	if got := a.Q[:len(v.X)]; !slices.Equal(got, want.Q) {
		t.Errorf("%d, want %d", got, want.Q)
	}
	if got := bitsOf(a.Scale); !slices.Equal(got, want.Scale) {
		t.Errorf("scales %#x, want %#x", got, want.Scale)
	}
	return a
}

// checkGEMV multiplies in each layout that has kernels.
func checkGEMV(t *testing.T, v *vector) {
	x := quantised(t, v)
	for _, l := range []trit.Layout{trit.PT5Striped, trit.TwoBit} {
		o, err := fabric.NewOperand(matrixOf(v.Matrix, l))
		if err != nil {
			t.Fatal(err)
		}
		y := make([]float32, v.Matrix.Rows)
		o.GEMV(y, x, &fabric.Scratch{})
		for r, got := range y {
			if e := math.Abs(float64(got) - v.Y[r]); !(e <= v.Bound[r]) {
				t.Errorf("%v, row %d: %v, want %v within %v", l, r, got, v.Y[r], v.Bound[r])
			}
		}
	}
}

// TestVectorsOfGGML holds the quantisers' vectors to ggml's own, in whole blocks.
func TestVectorsOfGGML(t *testing.T) {
	rival := ggmltest.ForTest(t)
	for line, v := range read(t) {
		if v.Kind != "quantise" {
			continue
		}
		a := v.Activations
		x := floats(v.X[:len(v.X)/a.Block*a.Block])
		of := map[int]gguf.Type{32: gguf.Q8_0, 256: gguf.Q8_K}[a.Block]
		b, err := rival.Quantize(of, x)
		if err != nil || len(b) == 0 {
			t.Fatal(len(b), err)
		}
		for i := 0; len(b) > 0; i++ {
			scale, q := math.Float32bits(float32(half(binary.LittleEndian.Uint16(b)))), b[2:]
			if of == gguf.Q8_K {
				scale, q = binary.LittleEndian.Uint32(b), b[4:]
			}
			if scale != a.Scale[i] {
				t.Errorf("line %d, block %d: scale %#x, ggml's is %#x", line+1, i, a.Scale[i], scale)
			}
			for k, want := range a.Q[i*a.Block:][:a.Block] {
				if int8(q[k]) != want {
					t.Errorf("line %d, block %d, element %d: %d, ggml's is %d", line+1, i, k, want, int8(q[k]))
				}
			}
			b = b[of.BlockBytes():]
		}
	}
}

func checkFrame(t *testing.T, v *vector) {
	want, b := matrixOf(v.Matrix, layoutOf(t, v.Matrix.Layout)), unhex(t, v.Hex)
	name, got, err := readFrame(bytes.NewReader(b))
	if err != nil || name != v.Name || !reflect.DeepEqual(got, want) {
		t.Errorf("%q, %v: %+v, want %+v", name, err, got, want)
	}
	if written := frametest.Encode(t, v.Name, want); !bytes.Equal(written, b) {
		t.Errorf("package frametest writes % x, want % x", written, b)
	}
}

func checkBadFrame(t *testing.T, v *vector) {
	_, m, err := readFrame(bytes.NewReader(unhex(t, v.Hex)))
	if !errors.Is(err, errorNames[v.Error]) || m != nil || errors.Is(err, io.EOF) {
		t.Fatalf("%v, want %s", err, v.Error)
	}
	if v.Term != nil {
		for _, place := range []string{fmt.Sprintf("plane %d of term %d: row %d,", *v.Plane, *v.Term, *v.Row), fmt.Sprintf("byte %d", *v.Byte)} {
			if !strings.Contains(err.Error(), place) {
				t.Errorf("%v, want %s", err, place)
			}
		}
	}
}
