package kernel

// This file multiplies bands: five rows whose planes share bytes. A byte of PT-5 has room for five trits, and five weights of P trits are P such bytes: here they are those of one column in five
// rows. A weight of three planes has 27 values, and 27 * 9 = 243, so that most weights come out of a byte as they are multiplied.
//
// Columns are in blocks of 32, which share a factor. A stripe has four columns of each of 16 blocks, in a lane each, and eight stripes have all of them: a block's products add up in its lane, and
// are scaled once.

import (
	"encoding/binary"

	"tensorcast/gguf/half"
)

const (
	BandRows  = 5
	BandBlock = 32 // columns that share a factor
	// SuperBlocks is the number of blocks whose columns are in the same stripes: one for each lane.
	SuperBlocks = 16
	// SuperCols is the number of their columns.
	SuperCols = SuperBlocks * BandBlock
	// BandVectors is how many vectors can be multiplied at once.
	BandVectors = 4
	// halfSuper is what the last blocks of a row are padded to.
	halfSuper = SuperBlocks / 2
)

// Bands is a product of rows, five at a time, by one to four vectors, of which there are as many as Vectors says: 1, 2 or 4.
type Bands struct {
	Bytes   []byte // Count bands, see PackBand; of BandBytes each
	Planes  int    // 2 or 3
	Blocks  int    // of a row, a multiple of 8
	Count   int
	Pitch   int // BandBytes
	Vectors int
	// The vectors, one after the other, in whole supers of 512 columns; what is behind the last column is 0.
	X     []int8    // arranged
	Bias  []int32   // one for each block: the activations' sum times -BandOffset
	Scale []float32 // one for each block
	// The result of row r of band b and vector v is written to Dst[(b*Vectors+v)*8+r]: the sum over blocks of half * Scale * (weights * x), whose integers are exact.
	Dst []float32
}

// HasBands tells whether MultiplyBands is worth while, for weights of so many planes.
func (l Level) HasBands(planes int) bool { return l >= AVX2 && (planes == 2 || planes == 3) }

// BandBlocks is the number of blocks of a row of cols columns, with those that it is padded with.
func BandBlocks(cols int) int {
	return (cols + BandBlock*halfSuper - 1) / (BandBlock * halfSuper) * halfSuper
}

// BandSupers is the number of supers that a vector of as many blocks fills.
func BandSupers(blocks int) int { return (blocks + SuperBlocks - 1) / SuperBlocks }

// BandBytes is how many bytes five rows of cols columns take: whole cache lines.
func BandBytes(cols, planes int) int {
	return (BandBlocks(cols)*(BandBlock*planes+BandRows*2) + 63) &^ 63
}

// BandOffset is what the kernels add to a weight of so many planes.
func BandOffset(planes int) int32 {
	if planes == 3 {
		return Offset(planes) + bandLow
	}
	return Offset(planes)
}

// A byte of a band has a q of 27 values and an r of 9. Where r is below 8, q + bandLow is its upper five bits and r the lower three; these bytes are bandLow*8 and above. Where r is 8, the byte
// is q + bandLow: less. So both are found by one comparison.
const bandLow = 5

func bandByte(q, r byte) byte {
	if r == 8 {
		return q + bandLow
	}
	return (q+bandLow)<<3 | r
}

func splitBand(b byte) (q, r byte) {
	if b < bandLow<<3 {
		return (b - bandLow) % 27, 8 // no valid byte is below bandLow
	}
	return b>>3 - bandLow, b & 7
}

// PackBand writes five rows of blocks, a number that BandBlocks returns, to dst, of BandBytes: weights[r] has a byte from 0 to 3^planes-1 for each column, halfs[r] a factor for each block.
//
// With two planes, w0 to w4 being the weights of a column, the bytes are (w1 + 9 t, w0) and (w3 + 9 u, w2), with w4 = t + 3u; with three (w0, w1 % 9), (w2, w3 % 9) and (w4, w1/9 + 3 (w3/9)).
// Bytes of a stripe follow each other, then come the stripes, then the supers; then the factors, of five rows for each super.
func PackBand(dst []byte, weights *[BandRows][]byte, halfs *[BandRows][]uint16, blocks, planes int) {
	to := dst
	for b := 0; b < blocks; b += SuperBlocks {
		lanes := min(SuperBlocks, blocks-b)
		for s := range 8 {
			for l := range lanes {
				first := (b+l)*BandBlock + 4*s
				w0, w1, w2, w3, w4 := weights[0][first:][:4], weights[1][first:][:4], weights[2][first:][:4], weights[3][first:][:4], weights[4][first:][:4]
				p, q := to[4*l:][:4], to[4*(l+lanes):][:4]
				if planes == 2 {
					for i := range p {
						p[i] = pairBytes[w0[i]&15][w1[i]&15][lowDigit[w4[i]&15]&3]
						q[i] = pairBytes[w2[i]&15][w3[i]&15][highDigit[w4[i]&15]&3]
					}
					continue
				}
				r := to[4*(l+2*lanes):][:4]
				for i := range p {
					p[i] = lowBytes[w0[i]&31][w1[i]&31]
					q[i] = lowBytes[w2[i]&31][w3[i]&31]
					r[i] = highBytes[w4[i]&31][ninths[w1[i]&31]&3][ninths[w3[i]&31]&3]
				}
			}
			to = to[4*lanes*planes:]
		}
	}
	for b := 0; b < blocks; b += SuperBlocks {
		lanes := min(SuperBlocks, blocks-b)
		for r := range halfs {
			for l, h := range halfs[r][b : b+lanes] {
				binary.LittleEndian.PutUint16(to[2*l:], h)
			}
			to = to[2*lanes:]
		}
	}
	clear(to)
}

// pairBytes is by two weights of two planes and a trit; lowBytes by two of three planes, of which the second's highest trit is left out; highBytes by one, and the highest trits of two others.
var pairBytes, lowBytes, highBytes = func() (pair [16][16][4]byte, low [32][32]byte, high [32][4][4]byte) {
	for v := range byte(9) {
		for w := range byte(9) {
			for t := range byte(3) {
				pair[v][w][t] = bandByte(w+9*t, v)
			}
		}
	}
	for v := range byte(27) {
		for w := range byte(27) {
			low[v][w] = bandByte(v, w%9)
		}
		for t := range byte(9) {
			high[v][t%3][t/3] = bandByte(v, t)
		}
	}
	return pair, low, high
}()

// lowDigit and highDigit are those of a weight of two planes, ninths the highest one of three.
var lowDigit, highDigit, ninths = func() (low, high [16]byte, nine [32]byte) {
	for v := range byte(9) {
		low[v], high[v] = v%3, v/3
	}
	for v := range byte(27) {
		nine[v] = v / 9
	}
	return low, high, nine
}()

// unpackBand is PackBand back, with the factors as floats.
func unpackBand(weights *[BandRows][]byte, factors *[BandRows][]float32, src []byte, blocks, planes int) {
	from := src
	for b := 0; b < blocks; b += SuperBlocks {
		lanes := min(SuperBlocks, blocks-b)
		for s := range 8 {
			for at := range 4 * lanes {
				c := (b+at/4)*BandBlock + 4*s + at%4
				var w [BandRows]byte
				q, r := splitBand(from[at])
				u, v := splitBand(from[at+4*lanes])
				if planes == 2 {
					w = [BandRows]byte{r, q % 9, v, u % 9, q/9 + 3*(u/9)}
				} else {
					x, y := splitBand(from[at+8*lanes])
					w = [BandRows]byte{q, r + 9*(y%3), u, v + 9*(y/3), x}
				}
				for r := range w {
					weights[r][c] = w[r]
				}
			}
			from = from[4*lanes*planes:]
		}
	}
	for b := 0; b < blocks; b += SuperBlocks {
		lanes := min(SuperBlocks, blocks-b)
		for r := range factors {
			for l := range lanes {
				factors[r][b+l] = half.Float32(binary.LittleEndian.Uint16(from[2*l:]))
			}
			from = from[2*lanes:]
		}
	}
}

// MostCoarse is the largest factor, in half precision, that CoarsenBand can multiply by three.
const MostCoarse = 0x7554

// CoarsenBand writes src, a band of three planes, to dst without the lowest plane, as one of two: the same weights rounded to multiples of three, and three times the factors, of which none is
// negative or more than MostCoarse. dst may begin where src begins, or before it.
func CoarsenBand(dst, src []byte, blocks int) {
	to, from := dst, src
	for b := 0; b < blocks; b += SuperBlocks {
		n := 4 * min(SuperBlocks, blocks-b)
		for range 8 {
			first, second, third := from[:n], from[n:][:n], from[2*n:][:n]
			p, q := to[:n], to[n:][:n]
			// dst may be src: of each column all bytes are read before one is written, but for q, which is where the next columns' bytes are.
			var later [4 * SuperBlocks]byte
			for i, c := range third {
				o := &coarseThird[c]
				v, w := coarsePair[coarseFirst[first[i]]+o[0]], coarsePair[coarseFirst[second[i]]+o[1]]
				p[i], later[i] = v, w
			}
			copy(q, later[:])
			to, from = to[2*n:], from[3*n:]
		}
	}
	for range blocks * BandRows {
		h := binary.LittleEndian.Uint16(from)
		binary.LittleEndian.PutUint16(to, half.Round(3*half.Float32(h)))
		to, from = to[2:], from[2:]
	}
	clear(to[:BandBytes(blocks*BandBlock, 2)-blocks*(BandBlock*2+BandRows*2)])
}

// What CoarsenBand makes of bytes of three planes: of one with two weights' digits, the lowest left out, 9 times an index of coarsePair; of one with a weight and the highest digits of two others
// what is added for each of these two; and, by the sum, the byte of two planes.
var coarseFirst, coarseThird, coarsePair = func() (first [256]byte, third [256][2]byte, pair [256]byte) {
	for b := range 256 {
		q, r := splitBand(byte(b))
		first[b] = 9 * (q/3 + 9*(r/3))
		w := q / 3
		third[b] = [2]byte{r%3 + 3*(w%3), r/3 + 3*(w/3)}
	}
	for v := range byte(9) {
		for digit := range byte(3) {
			for other := range byte(9) {
				high, t := other%3, other/3
				pair[9*(v+9*digit)+other] = bandByte(digit+3*high+9*t, v)
			}
		}
	}
	return first, third, pair
}()

// ArrangeBlocks writes src, whole blocks in order, to dst, whole supers of stripes: column 32l + 4s + i of a super goes to byte 4l + i of its stripe s.
func ArrangeBlocks(dst, src []int8) {
	for b := 0; b < len(src)/BandBlock; b++ {
		s := src[b*BandBlock:][:BandBlock]
		d := dst[b/SuperBlocks*SuperCols+b%SuperBlocks*4:]
		for i := range 8 {
			*(*[4]int8)(d[i*Stripe:]) = *(*[4]int8)(s[4*i:])
		}
	}
}

// MultiplyBands computes the product. Integers are exact; floats are summed in an order that depends on the level.
func (l Level) MultiplyBands(b *Bands) {
	if b.Count > 0 && b.Blocks > 0 && !l.bandsAssembly(b) {
		multiplyBands(b)
	}
}

func multiplyBands(p *Bands) {
	cols, supers := p.Blocks*BandBlock, BandSupers(p.Blocks)
	var weights [BandRows][]byte
	var factors [BandRows][]float32
	for r := range weights {
		weights[r], factors[r] = make([]byte, cols), make([]float32, p.Blocks)
	}
	more := BandOffset(p.Planes) - Offset(p.Planes)
	for n := range p.Count {
		unpackBand(&weights, &factors, p.Bytes[n*p.Pitch:][:p.Pitch], p.Blocks, p.Planes)
		for v := range p.Vectors {
			x, scale := p.X[v*supers*SuperCols:][:supers*SuperCols], p.Scale[v*supers*SuperBlocks:]
			for r := range weights {
				var sum float32
				for b := range p.Blocks {
					s := p.Bias[v*supers*SuperBlocks+b]
					for i, w := range weights[r][b*BandBlock:][:BandBlock] {
						s += (int32(w) + more) * int32(x[b/SuperBlocks*SuperCols+i/4*Stripe+b%SuperBlocks*4+i%4])
					}
					sum += float32(factors[r][b]*scale[b]) * float32(s)
				}
				p.Dst[(n*p.Vectors+v)*8+r] = sum
			}
		}
	}
}
