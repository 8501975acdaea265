// Package kernel has the inner loops of package fabric. It multiplies planes of trits by int8
// activations, in assembly and in equivalent Go that gives the same integers.
//
// A product has two steps. [Level.Decode] computes the weights of some rows from all their planes
// at once, in registers. It stores them as bytes, which stay in the first-level cache. [Level.Dot]
// multiplies these rows by a vector. Several vectors share the decoded bytes.
//
// For a single vector, [Level.Multiply] has loops that do both steps in one pass and do not store
// weights. Without assembly, some of these look up in a table what a byte of a plane adds to a sum.
// Two formats have loops of their own: blocks of Q2_0 ([Level.MultiplyCodes]), and bands, in which
// planes share bytes ([Level.MultiplyBands]).
//
// The functions do not check their arguments: inconsistent ones lead to reads and writes out of
// bounds. Package fabric does the checking. The functions may be called concurrently. They do not
// allocate, except for MultiplyBands without assembly.
package kernel

// This file defines what all implementations share: the levels and the form of decoded weights. It
// also has the general products Dot and Multiply.

import "tensorcast/fabric/trit"

// Level is an implementation, named by the instruction set that it needs.
type Level uint8

const (
	Go     Level = iota // no assembly
	AVX2                // with FMA and F16C
	AVX512              // with F, BW, DQ, VL, VBMI, VNNI and GFNI: Intel since Ice Lake, AMD since Zen 4
)

// String is the level's name.
func (l Level) String() string { return [...]string{"go", "avx2", "avx512"}[l] }

// Levels lists the levels that this processor supports, the fastest last.
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

// Best is the fastest level that this processor supports.
func Best() Level {
	switch {
	case hasAVX512:
		return AVX512
	case hasAVX2:
		return AVX2
	}
	return Go
}

// MaxPlanes is the largest number of planes that Decode combines: a weight must fit into a byte.
const MaxPlanes = 6

// SmallPlanes is the largest number of planes for which decoded weights are below 128.
const SmallPlanes = 4

// Stripe is the number of columns that the loops process at a time. Rows of decoded weights,
// activations and sums consist of whole stripes.
const Stripe = 64

// Offset is what Decode adds to a weight of the given number of planes so that its byte is not
// negative. It is (3^planes - 1) / 2 for up to 5 planes, i.e. each digit plus 1. It is 128 for 6
// planes, whose weights must be in -128..127.
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

// tables are the lookup tables of the assembly of Decode. They say, for each plane (digit 3^p),
// what a byte of the plane contributes to the weights of its trits.
type tables struct {
	// For a PT-5 byte b with q = b/9 and r = b%9: trits 0 and 1 by r, and trits 2, 3 and 4 by q.
	pt5 [MaxPlanes][5][64]byte
	// For half of a two-bit byte: its lower and its upper trit. There are four copies, as some
	// lookups are in 16 bytes.
	twoBit [MaxPlanes][2][64]byte
	// 9q by q
	nine [64]byte
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

// sixthBase is added for the sixth plane. The digits of six planes, from 0 to 2 each, add up to
// weight + 364. With this constant the byte is weight + 128, modulo 256.
const sixthBase = 128 - 364 + 256

// Decode writes the weights of whole groups to dst. planes[p][0:n] holds the digits of 3^p, in
// layout PT5Striped or TwoBit. There are 1 to MaxPlanes planes. Weights are in the order of
// columns, one byte each, increased by Offset(len(planes)). dst has room for n/64 groups of trits.
//
// Bytes that are not valid codes give meaningless weights, also for neighbouring bytes.
func (l Level) Decode(layout trit.Layout, dst []byte, planes [][]byte, n int) {
	if n > 0 && !l.decodeAsm(layout, dst, planes, n) {
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

// Rows is a product of decoded rows by one vector. Column c belongs to lane c%64/4 of stripe c/64.
type Rows struct {
	Weights []byte // Count rows, Pitch bytes apart
	Small   bool   // no weight is above 127, i.e. there are at most SmallPlanes planes
	Pitch   int
	Count   int
	Stripes int // stripes per row
	// X is the vector, of Stripes*64 values.
	X []int8
	// Block is the number of columns that share a factor: 16, 32 or a multiple of 64.
	Block int
	// Bias is added to the integers: 16 lanes per stripe, or if Block is above 64, per block.
	Bias []int32
	// Factors has one factor for each block of a row; the last block may be short. The factors of
	// the next row are FactorPitch elements later. The assembly reads up to 15 elements beyond the
	// last one, but does not use them.
	Factors     []float32
	FactorPitch int
	// Each row's result is added to its element of Dst: the sum over blocks of factor * (bias +
	// weights * x).
	Dst []float32
}

// Dot computes the product. The integer of a block is exact. It is summed in 32 bits, which
// suffices for Block up to 65,536. The products of factor and integer are summed in float32, in an
// order that depends on the level.
func (l Level) Dot(r *Rows) {
	if r.Count > 0 && r.Stripes > 0 && !l.dotAsm(r) {
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

// Product is a product of rows of planes by one vector.
type Product struct {
	Layout trit.Layout
	// Planes are as for Decode: Count rows of Groups groups each, one after the other.
	Planes [][]byte
	Groups int
	Count  int
	// Skip, if not nil, has a byte per group, Groups per row. A byte other than 0 says that the
	// group's products and its Bias add up to 0, so that the group need not be read.
	Skip []byte
	// X, Block, Bias, Factors and Dst are as in Rows. X, Bias and a row's factors cover all columns
	// of the groups and the rest of the last block. Beyond the last column, X is 0 and the others
	// are finite.
	X           []int8
	Block       int
	Bias        []int32
	Factors     []float32
	FactorPitch int
	Dst         []float32
	// Weights is scratch with room for at least one row: Groups times a group's trits.
	Weights []byte
}

// HasSinglePass reports whether Multiply has a loop that decodes and multiplies in one pass, for
// this number of planes and this block.
func (l Level) HasSinglePass(planes, block int) bool {
	return l.hasSinglePassAsm(planes, block) || l == Go && hasTableLoop(planes, block)
}

// Multiply computes what Decode and Dot do together, in one pass if there is a loop for the case.
func (l Level) Multiply(p *Product) {
	if p.Count == 0 || p.Groups == 0 {
		return
	}
	if l.hasSinglePassAsm(len(p.Planes), p.Block) {
		l.multiplyAsm(p)
		return
	}
	if l == Go && hasTableLoop(len(p.Planes), p.Block) && p.Count >= minTableRows {
		multiplyByTables(p)
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
