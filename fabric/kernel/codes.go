package kernel

// This file multiplies ggml's Q2_0 blocks in the form in which they are in a file: as raw codes of
// two bits. A weight is its code less 1. All codes are multiplied as numbers from 0 to 3, and the 1
// that each is too large by is subtracted with the sums of the activations. So the code 3, a weight
// of +2, is no special case.
//
// A byte of a block holds four neighbouring weights. The same two bits of all bytes are thus every
// fourth weight, and the vector is arranged to match (see [Level.Arrange]). Then a lane of the sums
// has 16 neighbouring columns, and four blocks fill a quad of 16 lanes.
//
// Floats are summed in the order of ggml_vec_dot_q2_0_q8_0 in builds of ggml for processors with
// fused multiply-adds. The integers of a block, one for each 32 columns, are multiplied by their
// scales and added. This sum times the block's half is added to the row's sum in one rounding,
// block after block. An integer (14 bits with sign) times a scale that is a half (11 bits) is exact
// in float32. It may therefore be computed in two lanes of 16 columns and added in any order. Here
// the lanes are the rows, and the results are those of ggml bit for bit.

import (
	"encoding/binary"
	"math"
	"math/bits"

	"tensorcast/gguf/half"
)

const (
	CodeBlock = 18  // bytes of a Q2_0 block: a half, then 64 codes of two bits, in order from the low bits
	CodeCols  = 64  // weights of a Q2_0 block
	Quad      = 256 // columns of a quad, i.e. of four blocks; arranged vectors have whole quads
	QuadLanes = 16  // lanes of the sums of a quad
)

// Codes is a product of rows of Q2_0 blocks by one vector. A weight is its code less 1, times the
// half of its block.
type Codes struct {
	Blocks []byte // Count rows of Width blocks each, without gaps
	Width  int
	Count  int
	// The vector, in whole quads. Beyond the last column X and Bias are 0 and Scale is finite.
	X     []int8    // in the order of Arrange
	Bias  []int32   // for each lane the sum of its activations, negated
	Scale []float32 // for each lane what its integer is multiplied by, besides the block's half
	// Dst gets the result of each row: the sum over blocks of half * s, where s is the sum over the
	// block's lanes of Scale * (codes * x + Bias). The integers codes * x + Bias are exact.
	Dst []float32
}

// MultiplyCodes computes the product, in ggml's order. The result is the same at all levels if each
// two lanes share a scale, and scales have at most 11 bits, as those of Q8_0 do.
func (l Level) MultiplyCodes(c *Codes) {
	if c.Count > 0 && c.Width > 0 && !l.multiplyCodesAsm(c) {
		multiplyCodes(c)
	}
}

// Arrange writes whole quads of src to dst, in the order of the codes in blocks. Byte 16b + i of
// stripe f of a quad is its column 64b + 4i + f.
func (l Level) Arrange(dst, src []int8) {
	if len(src) > 0 && !l.arrangeAsm(dst, src) {
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

// multiplyCodes processes eight bytes of codes at a time, which have 32 neighbouring columns.
// Activations are increased by 128, so that their bytes can be masked by the bits of a code and
// added up in fields of 16 bits.
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
				s := dotCodes(w, loadRaised(x), loadRaised(x[64:]), loadRaised(x[128:]), loadRaised(x[192:]))
				scaled[part] = c.Scale[lane] * float32(s+c.Bias[lane]+c.Bias[lane+1])
			}
			sum = fma(d, scaled[0]+scaled[1], sum)
		}
		c.Dst[r] = sum
	}
}

// fma returns x*y + z, rounded once. The product of two float32 is exact in float64. A sum that is
// not exact in float64 is rounded there to an odd last bit, so that it cannot become a value right
// in the middle between two float32.
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

// loadRaised reads eight activations, each increased by 128.
func loadRaised(x []int8) uint64 {
	x = x[:8]
	return bytesOf128 ^ (uint64(uint8(x[0])) | uint64(uint8(x[1]))<<8 |
		uint64(uint8(x[2]))<<16 | uint64(uint8(x[3]))<<24 | uint64(uint8(x[4]))<<32 |
		uint64(uint8(x[5]))<<40 | uint64(uint8(x[6]))<<48 | uint64(uint8(x[7]))<<56)
}

// dotCodes returns the sum of the products of the codes in w, which has eight bytes of four codes,
// with the activations: x0 for the lowest code of each byte, x1 for the next and so on.
func dotCodes(w, x0, x1, x2, x3 uint64) int32 {
	low := sumMasked(w, x0) + sumMasked(w>>2, x1) + sumMasked(w>>4, x2) + sumMasked(w>>6, x3)
	high := sumMasked(w>>1, x0) + sumMasked(w>>3, x1) + sumMasked(w>>5, x2) + sumMasked(w>>7, x3)
	sum := (low + 2*high) * 0x0001000100010001 >> 48 // below 32 * 3 * 255
	count := bits.OnesCount64(w&0x5555555555555555) + 2*bits.OnesCount64(w&0xaaaaaaaaaaaaaaaa)
	return int32(sum) - 128*int32(count)
}

// sumMasked adds up the bytes of x for which the byte of w has bit 0 set. The result has four
// partial sums, in fields of 16 bits.
func sumMasked(w, x uint64) uint64 {
	m := w & bytesOf1
	x &= m<<8 - m
	return x&evenBytes + x>>8&evenBytes
}

// HasCodeTiles reports whether MultiplyCodesTile is faster than MultiplyCodes for several vectors.
func (l Level) HasCodeTiles() bool { return l == AVX512 }

// DecodeCodes decodes up to TileRows rows of width Q2_0 blocks. It writes the codes to weights, a
// byte each, in whole quads in the order of Arrange. It writes the halfs of the blocks to factors,
// 16 for each quad: lane 4b + r has the one of row r's block b. Behind the last column both are 0.
func (l Level) DecodeCodes(weights []byte, factors []float32, blocks []byte, width, rows int) {
	quads := (width + 3) / 4
	for r := range rows {
		w, f := weights[r*quads*Quad:][:quads*Quad], factors[:quads*QuadLanes]
		b := blocks[r*width*CodeBlock:][:width*CodeBlock]
		if !l.decodeCodesAsm(w, f, b, r) {
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

// MultiplyCodesTile computes the product of decoded codes, in the order of MultiplyCodes. For each
// TileRows rows, t.Weights and t.Factors are as DecodeCodes writes them.
func (l Level) MultiplyCodesTile(t *Tile) {
	if t.Rows > 0 && t.Quads > 0 && t.Vectors > 0 && !l.multiplyCodesTileAsm(t) {
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
