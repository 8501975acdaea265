package fabric_test

// This file checks this package against the conformance vectors (testdata/conformance.jsonl,
// described in TFMBS_DEVICE_SPEC.md). It also has what the vectors are made with: an implementation
// of the specification that proceeds trit by trit and bit by bit, with exact numbers. It uses none
// of the code under test. conformance_vectors_test.go has the generator.

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

// vector is a line of the file. Kind determines which fields it has.
type vector struct {
	Kind string `json:"kind"` // "code", "row", "bad-row", "quantise", "gemv", "frame" or "bad-frame"
	What string `json:"what,omitempty"`

	Byte  *int   `json:"byte,omitempty"`  // code: the code; bad-row, bad-frame: index of the wrong byte
	Trits string `json:"trits,omitempty"` // code, row
	N     *int   `json:"n,omitempty"`     // row, bad-row: number of trits

	Layouts map[string]string `json:"layouts,omitempty"` // row: the bytes, in hex, of each layout
	Layout  string            `json:"layout,omitempty"`  // bad-row
	Hex     string            `json:"hex,omitempty"`     // bad-row, frame, bad-frame: the bytes
	Error   string            `json:"error,omitempty"`   // code, bad-row, bad-frame
	Term    *int              `json:"term,omitempty"`    // bad-frame: Term to Byte are the error's position
	Plane   *int              `json:"plane,omitempty"`
	Row     *int              `json:"row,omitempty"`

	X           []uint32     `json:"x,omitempty"` // quantise, gemv: float32 bits
	Activations *activations `json:"activations,omitempty"`
	Matrix      *matrix      `json:"matrix,omitempty"`   // gemv, frame
	Integers    [][][]int64  `json:"integers,omitempty"` // gemv: for each term, row and piece
	Sums        []int64      `json:"sums,omitempty"`     // gemv: for each piece of the minima
	Y           []float64    `json:"y,omitempty"`        // gemv: for each row
	Bound       []float64    `json:"bound,omitempty"`    // gemv: bound of the error of each y

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

// The following functions implement the specification naively.

var layoutNames = []string{"pt5", "pt5-striped", "two-bit", "sliced"}

func digitOf(c byte) int { return strings.IndexByte("-0+", c) }

// packRow returns a row in a layout.
func packRow(layout, trits string) []byte {
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
		t, g, k := digitOf(trits[i])-1, i/group*size, i%group
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

// crc32c returns the checksum, computed bit by bit.
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

// encodeFrame returns the frame of v, and the offset of its payload.
func encodeFrame(name string, v *matrix) (b []byte, payload int) {
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
				body = append(body, packRow("pt5", row)...)
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
	b = append(b, byte(1+slices.Index(layoutNames, v.Layout)), 1, byte(len(v.Terms)), 0, byte(len(name)),
		byte(len(name)>>8), 0, 0, 0, 0, 0, 0)
	b = append(append(b, records...), name...)
	b = append(b, make([]byte, size-4-len(b))...)
	b = le.AppendUint32(b, crc32c(b))
	b = append(b, body...)
	return le.AppendUint32(b, crc32c(body)), size
}

// exactFloat returns a number with 300 bits of precision, which hold any sum of products here.
func exactFloat(f float64) *big.Float { return big.NewFloat(f).SetPrec(300) }

func product(f ...*big.Float) *big.Float {
	p := exactFloat(1)
	for _, f := range f {
		p.Mul(p, f)
	}
	return p
}

// halfValue returns the value of an IEEE half, which must be finite.
func halfValue(h uint16) float64 {
	f, e := float64(h&0x3ff), int(h>>10&31)
	if e == 0 {
		e = 1
	} else {
		f += 1024
	}
	return math.Ldexp(f, e-25) * float64(1-2*int(h>>15))
}

// nearestHalf returns the half nearest to a finite f. Of two equally near ones it is the one with
// an even last bit. It tries all of them.
func nearestHalf(f float32) uint16 {
	best := uint16(0)
	for h := range uint16(0x7c00) {
		d, b := math.Abs(halfValue(h)-math.Abs(float64(f))), math.Abs(halfValue(best)-math.Abs(float64(f)))
		if d < b || d == b && h%2 == 0 {
			best = h
		}
	}
	if math.Signbit(float64(f)) {
		best |= 0x8000
	}
	return best
}

// factor returns the scale of column c in row r, or 1 if there are no scales.
func (s *scales) factor(r, c, cols int) *big.Float {
	if s == nil {
		return exactFloat(1)
	}
	at := r*((cols+s.Block-1)/s.Block) + c/s.Block
	if s.Half != nil {
		return exactFloat(halfValue(s.Half[at]))
	}
	return product(exactFloat(float64(s.Sub[at])), exactFloat(halfValue(s.Super[r*((cols+255)/256)+c/256])))
}

// cutPieces returns the first columns of all pieces of a row, and the row's end. A piece is in one
// block of s and one block of the activations.
func cutPieces(s *scales, a *activations, cols int) (cuts []int) {
	for c := range cols {
		if c%a.Block == 0 || s != nil && c%s.Block == 0 {
			cuts = append(cuts, c)
		}
	}
	return append(cuts, cols)
}

// setProduct computes the results of a gemv vector.
func setProduct(v *vector) {
	m, a := v.Matrix, v.Activations
	v.Integers = make([][][]int64, len(m.Terms))
	for r := range m.Rows {
		sum, absolute, addends := exactFloat(0), exactFloat(0), 0
		add := func(scale *big.Float, c int, integer, sign int64) {
			d := exactFloat(float64(math.Float32frombits(a.Scale[c/a.Block])))
			x := product(scale, d, exactFloat(float64(sign*integer)))
			sum.Add(sum, x)
			absolute.Add(absolute, x.Abs(x))
			addends++
		}
		for i, t := range m.Terms {
			cuts := cutPieces(t.Scales, a, m.Cols)
			row := []int64{}
			for k, first := range cuts[:len(cuts)-1] {
				integer := int64(0)
				for c := first; c < cuts[k+1]; c++ {
					w, power := int64(t.Center), int64(1)
					for _, plane := range t.Planes {
						w += power * int64(digitOf(plane[r][c])-1)
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
			cuts := cutPieces(m.Min, a, m.Cols)
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
		b, _ := product(absolute, exactFloat(float64(addends+4)), exactFloat(0x1p-24)).Float64()
		v.Y, v.Bound = append(v.Y, y), append(v.Bound, b)
	}
}

// quantise returns the activations of x, whose values must be finite.
func quantise(block int, x []float32) *activations {
	a := &activations{Block: block, Q: make([]int8, len(x))}
	for first := 0; first < len(x); first += block {
		part := x[first:min(first+block, len(x))]
		largest := float32(0) // the first value of the largest magnitude
		for _, v := range part {
			if math.Abs(float64(v)) > math.Abs(float64(largest)) {
				largest = v
			}
		}
		inverse, scale := float32(0), float32(0)
		if largest != 0 && block == 32 {
			largest = float32(math.Abs(float64(largest)))
			inverse, scale = 127/largest, float32(halfValue(nearestHalf(largest/127)))
		} else if largest != 0 {
			inverse = -127 / largest
			scale = 1 / inverse
		}
		for i, v := range part {
			a.Q[first+i] = int8(min(127, math.RoundToEven(float64(float32(v*inverse)))))
		}
		a.Scale = append(a.Scale, math.Float32bits(scale))
	}
	return a
}

// errorNames has the names of errors in the specification.
var errorNames = map[string]error{
	"not-a-frame": fabric.ErrNotFrame, "version": fabric.ErrVersion, "truncated": fabric.ErrTruncated,
	"checksum":  fabric.ErrChecksum,
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

// matrixOf returns the matrix that v describes, with planes packed naively.
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
				b = append(b, packRow(layout.String(), row)...)
			}
			to.Planes = append(to.Planes, b)
		}
		m.Terms = append(m.Terms, to)
	}
	return m
}

func decodeHex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func formatTrits(trits []int8) string {
	b := make([]byte, len(trits))
	for i, t := range trits {
		b[i] = "-0+"[t+1]
	}
	return string(b)
}

func parseTrits(s string) []int8 {
	t := make([]int8, len(s))
	for i := range t {
		t[i] = int8(digitOf(s[i]) - 1)
	}
	return t
}

func TestConformance(t *testing.T) {
	var want bytes.Buffer
	enc := json.NewEncoder(&want)
	enc.SetEscapeHTML(false)
	for _, v := range makeVectors() {
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
		t.Errorf("%s differs from what this test makes: run go generate if the specification has changed", vectorFile)
	}
	if len(file) > 200<<10 {
		t.Errorf("%s has %d KiB, want at most 200", vectorFile, len(file)>>10)
	}
	seen := map[string]int{}
	for i, v := range readVectors(t) {
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

// readVectors returns the vectors in the file.
func readVectors(t *testing.T) (all []*vector) {
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
	"code": checkCode, "row": checkRow, "bad-row": checkBadRow, "quantise": checkQuantise, "gemv": checkGEMV,
	"frame":     checkFrame,
	"bad-frame": checkBadFrame,
}

func checkCode(t *testing.T, v *vector) {
	var got [5]int8
	code := []byte{byte(*v.Byte)}
	err := trit.PT5.Unpack(got[:], code)
	if !errors.Is(err, errorNames[v.Error]) {
		t.Fatalf("code %d: error %v, want %q", code, err, v.Error)
	}
	if err != nil {
		return
	}
	back := []byte{0}
	trit.PT5.Pack(back, parseTrits(v.Trits))
	if formatTrits(got[:]) != v.Trits || !bytes.Equal(back, code) {
		t.Errorf("code %d was unpacked to %s and packed to %d, want %s", code, formatTrits(got[:]), back, v.Trits)
	}
}

func checkRow(t *testing.T, v *vector) {
	n := *v.N
	for name, code := range v.Layouts {
		from, src := layoutOf(t, name), decodeHex(t, code)
		row := make([]int8, n)
		if err := from.Unpack(row, src); err != nil || formatTrits(row) != v.Trits {
			t.Errorf("%s: unpacked %s (error %v), want %s", name, formatTrits(row), err, v.Trits)
		}
		packed := make([]byte, from.RowBytes(n))
		if from.Pack(packed, parseTrits(v.Trits)); !bytes.Equal(packed, src) {
			t.Errorf("%s: packed % x, want % x", name, packed, src)
		}
		for other, code := range v.Layouts {
			to := layoutOf(t, other)
			dst := make([]byte, to.RowBytes(n))
			if err := trit.Convert(dst, to, src, from, n); err != nil || !bytes.Equal(dst, decodeHex(t, code)) {
				t.Errorf("%s to %s: % x (error %v), want %s", name, other, dst, err, code)
			}
		}
	}
}

func checkBadRow(t *testing.T, v *vector) {
	err := layoutOf(t, v.Layout).Unpack(make([]int8, *v.N), decodeHex(t, v.Hex))
	if !errors.Is(err, errorNames[v.Error]) || !strings.Contains(err.Error(), fmt.Sprintf("byte %d", *v.Byte)) {
		t.Errorf("error %v, want %q about byte %d", err, v.Error, *v.Byte)
	}
}

func checkQuantise(t *testing.T, v *vector) { checkActivations(t, v) }

// checkActivations compares the result of the quantiser to the vector, and returns it.
func checkActivations(t *testing.T, v *vector) *fabric.Activations {
	t.Helper()
	want := v.Activations
	a, err := fabric.NewActivations(len(v.X), want.Block)
	if err != nil {
		t.Fatal(err)
	}
	a.Quantize(floats(v.X))
	if got := a.Q[:len(v.X)]; !slices.Equal(got, want.Q) {
		t.Errorf("values %d, want %d", got, want.Q)
	}
	if got := bitsOf(a.Scale); !slices.Equal(got, want.Scale) {
		t.Errorf("scales %#x, want %#x", got, want.Scale)
	}
	return a
}

// checkGEMV computes the product in each layout that has kernels.
func checkGEMV(t *testing.T, v *vector) {
	x := checkActivations(t, v)
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

// TestVectorsOfGGML compares the vectors of the quantisers to ggml's results, in whole blocks.
func TestVectorsOfGGML(t *testing.T) {
	rival := ggmltest.ForTest(t)
	for line, v := range readVectors(t) {
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
			scale, q := math.Float32bits(float32(halfValue(binary.LittleEndian.Uint16(b)))), b[2:]
			if of == gguf.Q8_K {
				scale, q = binary.LittleEndian.Uint32(b), b[4:]
			}
			if scale != a.Scale[i] {
				t.Errorf("line %d, block %d: scale %#x, want ggml's %#x", line+1, i, a.Scale[i], scale)
			}
			for k, want := range a.Q[i*a.Block:][:a.Block] {
				if int8(q[k]) != want {
					t.Errorf("line %d, block %d, element %d: %d, want ggml's %d", line+1, i, k, want, int8(q[k]))
				}
			}
			b = b[of.BlockBytes():]
		}
	}
}

func checkFrame(t *testing.T, v *vector) {
	want, b := matrixOf(v.Matrix, layoutOf(t, v.Matrix.Layout)), decodeHex(t, v.Hex)
	name, got, err := readFrame(bytes.NewReader(b))
	if err != nil || name != v.Name || !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, %+v (error %v), want %q, %+v", name, got, err, v.Name, want)
	}
	if written := frametest.Encode(t, v.Name, want); !bytes.Equal(written, b) {
		t.Errorf("package frametest writes % x, want % x", written, b)
	}
}

func checkBadFrame(t *testing.T, v *vector) {
	_, m, err := readFrame(bytes.NewReader(decodeHex(t, v.Hex)))
	if !errors.Is(err, errorNames[v.Error]) || m != nil || errors.Is(err, io.EOF) {
		t.Fatalf("error %v, want %s and no matrix", err, v.Error)
	}
	if v.Term != nil {
		plane := fmt.Sprintf("plane %d of term %d: row %d,", *v.Plane, *v.Term, *v.Row)
		for _, want := range []string{plane, fmt.Sprintf("byte %d", *v.Byte)} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		}
	}
}
