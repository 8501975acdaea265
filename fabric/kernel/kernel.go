// Package kernel multiplies planes of trits with int8 activations: the inner loops, in assembly beside Go that gives the same integers.
//
// A product has two steps. Decode rebuilds the weights of some rows from all their planes at once, in registers, and leaves them as
// bytes in the first-level cache; Dot multiplies such rows with one vector. Several vectors share the bytes. For one vector, Multiply has
// loops that do both without storing weights.
//
// The functions check nothing: arguments that do not fit each other lead to reads and writes out of bounds. Package fabric checks.
// They allocate nothing and may be called concurrently.
package kernel

// This file holds what all implementations share: the levels and the form of decoded weights.

import "tensorcast/fabric/trit"

// Level is an implementation: the instruction set that it needs.
type Level uint8

const (
	Go     Level = iota // no assembly
	AVX2                // and FMA, F16C
	AVX512              // F, BW, DQ, VL, VBMI, VNNI and GFNI: Intel since Ice Lake, AMD since Zen 4
)

// String is the level's name.
func (l Level) String() string { return [...]string{"go", "avx2", "avx512"}[l] }

// Levels are those that this processor has, the fastest last.
func Levels() []Level {
	all := []Level{Go}
	if hasAVX2 {
		all = append(all, AVX2)
	}
	if hasAVX512 {
		all = append(all, AVX512)
	}
	return all
}

// Best is the fastest level that this processor has.
func Best() Level {
	switch {
	case hasAVX512:
		return AVX512
	case hasAVX2:
		return AVX2
	}
	return Go
}

// MaxPlanes is the number of planes that Decode puts together: a weight must fit a byte.
const MaxPlanes = 6

// SmallPlanes is the number of planes up to which weights are below 128 as Decode writes them.
const SmallPlanes = 4

// Stripe is the number of columns that the loops take at a time. Rows of decoded weights, activations and sums have whole stripes.
const Stripe = 64

// Offset is what Decode adds to a weight of the given number of planes, so that its byte is not negative: all digits' 1, that is
// (3^planes - 1) / 2, for up to 5 planes; 128 for 6, whose weight must be in -128..127.
func Offset(planes int) int32 {
	if planes == MaxPlanes {
		return 128
	}
	n := int32(1)
	for range planes {
		n *= 3
	}
	return (n - 1) / 2
}

// tables are what Decode's assembly looks up, for the plane of the digit 3^p: what a byte adds to the bytes of its trits.
type tables struct {
	// Of a PT-5 byte b with q = b/9 and r = b%9: by r trits 0 and 1, by q trits 2, 3 and 4.
	pt5 [MaxPlanes][5][64]byte
	// Of half a two-bit byte: its lower trit, its upper; four times, for lookups in 16 bytes.
	twoBit [MaxPlanes][2][64]byte
	nine   [64]byte // 9q by q
}

var lookup = newTables()

func newTables() *tables {
	t := new(tables)
	power := 1
	for p := range MaxPlanes {
		base := 0
		if p == MaxPlanes-1 {
			base = sixthBase
		}
		for i := range 64 {
			for d, digit := range [5]int{i % 3, i / 3, i % 3, i / 3 % 3, i / 9} {
				t.pt5[p][d][i] = byte(base + power*digit)
			}
			t.twoBit[p][0][i] = byte(base + power*(i&3))
			t.twoBit[p][1][i] = byte(base + power*(i>>2&3))
			t.nine[i] = byte(9 * i)
		}
		power *= 3
	}
	return t
}

// The digits of six planes, 0 to 2 each, make weight + 364; with this the byte is weight + 128 (mod 256).
const sixthBase = 128 - 364 + 256

// Decode writes the weights of whole groups, planes[p][0:n] of layout l (PT5Striped or TwoBit) with the digit 3^p, to dst: a byte
// each, the weight plus Offset(len(planes)), in the order of columns. There are 1 to MaxPlanes planes. dst has n/64 groups of trits.
//
// Bytes that hold no trits give weights that are none of theirs, and may spoil their neighbours'.
func (l Level) Decode(layout trit.Layout, dst []byte, planes [][]byte, n int) {
	if n > 0 && !l.decodeAssembly(layout, dst, planes, n) {
		decode(layout, dst, planes, n)
	}
}

func decode(layout trit.Layout, dst []byte, planes [][]byte, n int) {
	dst = dst[:n/64*groupTrits(layout)]
	clear(dst)
	base, power := byte(0), byte(1)
	for p, plane := range planes {
		if p == MaxPlanes-1 {
			base = sixthBase
		}
		d := dst
		for g := plane[:n]; len(g) > 0; g = g[64:] {
			if layout == trit.TwoBit {
				for j, b := range g[:64] {
					d[j] += base + b&3*power
					d[j+64] += base + b>>2&3*power
					d[j+128] += base + b>>4&3*power
					d[j+192] += base + b>>6*power
				}
				d = d[256:]
				continue
			}
			for j, b := range g[:64] {
				d[j] += base + b%3*power
				d[j+64] += base + b/3%3*power
				d[j+128] += base + b/9%3*power
				d[j+192] += base + b/27%3*power
				d[j+256] += base + b/81*power
			}
			d = d[320:]
		}
		power *= 3
	}
}

func groupTrits(l trit.Layout) int {
	n, _ := l.Group()
	return n
}

// Rows is a product of decoded rows with one vector. Column c belongs to lane c%64/4 of stripe c/64.
type Rows struct {
	Weights []byte // Count rows, Pitch bytes apart
	Small   bool   // no weight is above 127: they are of up to SmallPlanes
	Pitch   int
	Count   int
	Stripes int // of a row
	// X is the vector, Stripes*64 values.
	X []int8
	// Block is the number of columns that share a factor: 16, 32 or a multiple of 64.
	Block int
	// Bias is added to the integers: 16 lanes per stripe; if Block is above 64, per block.
	Bias []int32
	// Factors are a row's, one a block, the last block may be short; then the next row's, FactorPitch later. The assembly
	// reads, but does not use, up to 15 beyond the last.
	Factors     []float32
	FactorPitch int
	// Dst gets, added to what is there, a row's sum over blocks of factor * (bias + weights * x).
	Dst []float32
}

// Dot multiplies. The integers of a block are exact; they are summed in 32 bits, which Block up to 65,536 keeps. Factor times integer is
// summed in float32, in an order that differs between levels.
func (l Level) Dot(r *Rows) {
	if r.Count > 0 && r.Stripes > 0 && !l.dotAssembly(r) {
		dot(r)
	}
}

func dot(r *Rows) {
	for i := range r.Count {
		w, f := r.Weights[i*r.Pitch:][:r.Stripes*Stripe], r.Factors[i*r.FactorPitch:]
		var sum float32
		for b := 0; b*r.Block < len(w); b++ {
			begin, end := b*r.Block, min((b+1)*r.Block, len(w))
			var s int32
			if r.Block < Stripe {
				for _, v := range r.Bias[begin/4 : end/4] {
					s += v
				}
			} else {
				for _, v := range r.Bias[16*b : 16*b+16] {
					s += v
				}
			}
			x := r.X[begin:end]
			for c, v := range w[begin:end] {
				s += int32(v) * int32(x[c])
			}
			sum += float32(f[b] * float32(s))
		}
		r.Dst[i] += sum
	}
}

// Product is a product of rows of planes with one vector.
type Product struct {
	Layout trit.Layout
	// Planes are what Decode takes: Count rows of Groups groups each, one after the other.
	Planes [][]byte
	Groups int
	Count  int
	// Skip may be nil. Else a group of a row, of Groups to a row, whose byte is not 0 adds up to 0, with Bias, whatever X is: it need not be read.
	Skip []byte
	// X, Block, Bias, Factors and Dst are as in Rows. X, Bias and a row's factors go on until all columns of its groups have theirs,
	// and those of the rest of a block; where there is no column they are finite numbers, and X is 0.
	X           []int8
	Block       int
	Bias        []int32
	Factors     []float32
	FactorPitch int
	Dst         []float32
	// Weights has room for a row at least: Groups times a group's trits. What it holds afterwards is not defined.
	Weights []byte
}

// OneLoop reports whether Multiply has one loop for so many planes and such blocks.
func (l Level) OneLoop(layout trit.Layout, planes, block int) bool {
	return l.hasProduct(layout, planes, block)
}

// Multiply does Decode and Dot, in one loop where there is one for the case.
func (l Level) Multiply(p *Product) {
	if p.Count == 0 || p.Groups == 0 {
		return
	}
	if l.OneLoop(p.Layout, len(p.Planes), p.Block) {
		l.productAssembly(p)
		return
	}
	trits := groupTrits(p.Layout)
	row := 64 * p.Groups
	r := Rows{
		Weights: p.Weights, Pitch: p.Groups * trits, Stripes: p.Groups * trits / Stripe,
		X: p.X, Block: p.Block, Bias: p.Bias, FactorPitch: p.FactorPitch, Small: len(p.Planes) <= SmallPlanes,
	}
	var planes [MaxPlanes][]byte
	n := copy(planes[:], p.Planes)
	for i := 0; i < p.Count; i += r.Count {
		r.Count = min(max(1, len(p.Weights)/r.Pitch), p.Count-i)
		for j := range n {
			planes[j] = p.Planes[j][i*row:]
		}
		l.Decode(p.Layout, p.Weights, planes[:n], r.Count*row)
		r.Factors, r.Dst = p.Factors[i*p.FactorPitch:], p.Dst[i:]
		l.Dot(&r)
	}
}
