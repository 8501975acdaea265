package kernel

// This file multiplies ggml's Q2_0 blocks as they lie in a file: raw codes of two bits. The code 3 (a weight of +2) needs nothing of its own,
// as all codes are multiplied as numbers from 0 to 3, and the 1 that each is too much is taken off with the activations' sums.
//
// A byte of a block holds four neighbouring weights. Taking the same two bits of each byte thus gives every fourth weight, and the vector
// is arranged to match ([Level.Arrange]). Then a lane of the sums has 16 neighbouring columns, and four blocks fill a quad of 16 lanes.
//
// Floats are summed in the order of ggml's ggml_vec_dot_q2_0_q8_0, as its builds for processors with fused multiply-adds have it: a block's integers of
// 32 columns each, times their scales, are added; that times the block's half is added to the row's sum in one rounding, block after block. An integer
// (14 bits with sign) times a scale that is a half (11 bits) is exact in float32, so that it may be taken in two lanes of 16 columns, and added
// in any order: rows are vectors' lanes, and results ggml's bit for bit.

import (
	"encoding/binary"
	"math"
	"math/bits"

	"tensorcast/gguf/half"
)

const (
	CodeBlock = 18  // bytes of a Q2_0 block: a half, then 64 codes of two bits, in order from the low bits
	CodeCols  = 64  // its weights
	Quad      = 256 // columns of four blocks, in which arranged vectors are counted
	QuadLanes = 16  // lanes of their sums
)

// Codes is a product of rows of Q2_0 blocks by one vector. A weight is its block's half times (code - 1).
type Codes struct {
	Blocks []byte // Count rows of Width blocks each, without gaps
	Width  int
	Count  int
	// The vector, in whole quads; beyond the last column X and Bias are 0 and Scale is finite.
	X     []int8    // arranged
	Bias  []int32   // a lane's activations summed, negated
	Scale []float32 // what a lane's integer is multiplied by, besides the block's half
	// A row's result is written to Dst: the sum over blocks of half * (the sum over the block's lanes of Scale * (codes * x + Bias), whose integers are exact).
	Dst []float32
}

// MultiplyCodes computes the product, in ggml's order. If each two lanes share a scale of at most 11 bits, as Q8_0's are, the result is the same at all levels.
func (l Level) MultiplyCodes(c *Codes) {
	if c.Count > 0 && c.Width > 0 && !l.codesAssembly(c) {
		multiplyCodes(c)
	}
}

// Arrange writes whole quads of src to dst, in the order of a block's bytes: byte 16b+i of stripe f of a quad is column 64b + 4i + f of it.
func (l Level) Arrange(dst, src []int8) {
	if len(src) > 0 && !l.arrangeAssembly(dst, src) {
		arrange(dst, src)
	}
}

func arrange(dst, src []int8) {
	for ; len(src) >= Quad; dst, src = dst[Quad:], src[Quad:] {
		d, s := dst[:Quad], src[:Quad]
		for b := range 4 {
			for i := range 16 {
				for f := range 4 {
					d[64*f+16*b+i] = s[64*b+4*i+f]
				}
			}
		}
	}
}

// multiplyCodes takes eight bytes of codes at a time, which have 32 neighbouring columns. Activations are increased by 128, so that their bytes
// can be masked by a code's bits and added up in fields of 16 bits.
func multiplyCodes(c *Codes) {
	for r := range c.Count {
		row := c.Blocks[r*c.Width*CodeBlock:][:c.Width*CodeBlock]
		var sum float32
		for b := range c.Width {
			block := row[b*CodeBlock:][:CodeBlock]
			d := half.Float32(binary.LittleEndian.Uint16(block))
			var scaled [2]float32
			for part := range 2 {
				lane := 4*b + 2*part
				x := c.X[b/4*Quad+b%4*16+8*part:]
				w := binary.LittleEndian.Uint64(block[2+8*part:])
				s := dotCodes(w, load8(x), load8(x[64:]), load8(x[128:]), load8(x[192:]))
				scaled[part] = c.Scale[lane] * float32(s+c.Bias[lane]+c.Bias[lane+1])
			}
			sum = fma(d, scaled[0]+scaled[1], sum)
		}
		c.Dst[r] = sum
	}
}

// fma is x*y + z, rounded once: the product of two float32 is exact in float64. The sum is rounded there to an odd last bit if it is not exact, so that it
// does not come to lie in the middle of two float32.
func fma(x, y, z float32) float32 {
	p, c := float64(x)*float64(y), float64(z)
	s := p + c
	b := s - p
	e := (p - (s - b)) + (c - b) // s + e is the sum
	if bits := math.Float64bits(s); (e < 0 || e > 0) && bits&1 == 0 {
		if e > 0 == (s > 0) {
			bits++
		} else {
			bits--
		}
		s = math.Float64frombits(bits)
	}
	return float32(s)
}

const (
	bytesOf1   = 0x0101010101010101
	bytesOf128 = 0x8080808080808080
	evenBytes  = 0x00ff00ff00ff00ff
)

// load8 reads eight activations, each increased by 128.
func load8(x []int8) uint64 {
	x = x[:8]
	return bytesOf128 ^ (uint64(uint8(x[0])) | uint64(uint8(x[1]))<<8 | uint64(uint8(x[2]))<<16 | uint64(uint8(x[3]))<<24 |
		uint64(uint8(x[4]))<<32 | uint64(uint8(x[5]))<<40 | uint64(uint8(x[6]))<<48 | uint64(uint8(x[7]))<<56)
}

// dotCodes is the sum of products of the codes in w, the fields of eight bytes, with four times eight activations.
func dotCodes(w, x0, x1, x2, x3 uint64) int32 {
	low := masked(w, x0) + masked(w>>2, x1) + masked(w>>4, x2) + masked(w>>6, x3)
	high := masked(w>>1, x0) + masked(w>>3, x1) + masked(w>>5, x2) + masked(w>>7, x3)
	sum := (low + 2*high) * 0x0001000100010001 >> 48 // below 32 * 3 * 255
	count := bits.OnesCount64(w&0x5555555555555555) + 2*bits.OnesCount64(w&0xaaaaaaaaaaaaaaaa)
	return int32(sum) - 128*int32(count)
}

// masked adds up in fields of 16 bits the bytes of x whose byte of w has bit 0 set.
func masked(w, x uint64) uint64 {
	m := w & bytesOf1
	x &= m<<8 - m
	return x&evenBytes + x>>8&evenBytes
}

// TilesCodes tells whether MultiplyCodesTile is worth while.
func (l Level) TilesCodes() bool { return l == AVX512 }

// DecodeCodes writes the codes of up to TileRows rows of width Q2_0 blocks to weights, a byte each, in whole quads in the order of Arrange, and the halfs
// of their blocks to factors: 16 for each quad, lane 4b + r that of row r's block b. Behind the last column both are 0.
func (l Level) DecodeCodes(weights []byte, factors []float32, blocks []byte, width, rows int) {
	quads := (width + 3) / 4
	for r := range rows {
		w, f, b := weights[r*quads*Quad:][:quads*Quad], factors[:quads*QuadLanes], blocks[r*width*CodeBlock:][:width*CodeBlock]
		if !l.decodeCodesAssembly(w, f, b, r) {
			decodeCodes(w, f, b, r)
		}
	}
}

func decodeCodes(weights []byte, factors []float32, blocks []byte, row int) {
	clear(weights[len(weights)-Quad:])
	for b := range len(factors) / 4 {
		factors[4*b+row] = 0
	}
	for b := 0; b*CodeBlock < len(blocks); b++ {
		block := blocks[b*CodeBlock:][:CodeBlock]
		factors[4*b+row] = half.Float32(binary.LittleEndian.Uint16(block))
		to := weights[b/4*Quad+b%4*16:]
		for i := 0; i < 16; i += 8 {
			w := binary.LittleEndian.Uint64(block[2+i:])
			for f := range 4 {
				binary.LittleEndian.PutUint64(to[64*f+i:], w>>(2*f)&(3*bytesOf1))
			}
		}
	}
}

// MultiplyCodesTile computes the product of decoded codes, Factors as DecodeCodes has them for each TileRows rows, in the order of MultiplyCodes.
func (l Level) MultiplyCodesTile(t *Tile) {
	if t.Rows > 0 && t.Quads > 0 && t.Vectors > 0 && !l.codesTileAssembly(t) {
		multiplyCodesTile(t)
	}
}

func multiplyCodesTile(t *Tile) {
	cols, lanes := t.Quads*Quad, t.Quads*QuadLanes
	for r := range t.Rows {
		w, f := t.Weights[r*cols:][:cols], t.Factors[r/TileRows*lanes:][:lanes]
		for v := range t.Vectors {
			x, bias, scale := t.X[v*cols:][:cols], t.Bias[v*lanes:][:lanes], t.Scale[v*lanes:][:lanes]
			var sum float32
			for b := range lanes / 4 {
				var p [4]float32
				for i := range p {
					l := 4*b + i
					s := bias[l]
					for stripe := range 4 {
						at := l/QuadLanes*Quad + stripe*Stripe + l%QuadLanes*4
						for j := range 4 {
							s += int32(w[at+j]) * int32(x[at+j])
						}
					}
					p[i] = scale[l] * float32(s)
				}
				sum = fma(f[4*b+r%TileRows], float32(p[0]+p[1])+float32(p[2]+p[3]), sum)
			}
			t.Dst[(r/TileRows*t.Vectors+v)*TileRows+r%TileRows] = sum
		}
	}
}
