package kernel

// This file multiplies bands. A band is five rows whose planes share bytes.
//
// A byte of PT-5 has room for five trits, so five weights of P trits fill P such bytes. In a band
// these are the weights of one column in five rows. A weight of three planes has 27
// values, and 27 times 9 is 243. A byte can therefore hold one whole weight and two trits of others,
// so that most weights come out of a byte in the form in which they are multiplied.
//
// 32 columns that share a factor are a block. A stripe has four columns of each of 16 blocks: one
// block in each lane of a vector register. Eight stripes have all columns of these blocks. So the
// products of a block add up in its lane and are scaled only once.

import (
	"encoding/binary"

	"tensorcast/gguf/half"
)

const (
	// BandRows is the number of rows of a band.
	BandRows = 5
	// BandBlock is the number of columns that share a factor.
	BandBlock = 32
	// SuperBlocks is the number of blocks of a super: the blocks whose columns are in the same
	// stripes, one in each lane.
	SuperBlocks = 16
	// SuperCols is the number of columns of a super.
	SuperCols = SuperBlocks * BandBlock
	// BandVectors is the largest number of vectors that can be multiplied at once.
	BandVectors = 4
	// halfSuper is half a super. The blocks of a row are padded to a multiple of it.
	halfSuper = SuperBlocks / 2
)

// Bands is a product of bands by some vectors.
type Bands struct {
	Bytes   []byte // Count bands as PackBand writes them, Pitch bytes apart
	Planes  int    // 2 or 3
	Blocks  int    // blocks of a row: a multiple of 8
	Count   int    // number of bands
	Pitch   int    // BandBytes of a row's columns
	Vectors int    // number of vectors: 1, 2 or 4
	// The vectors, one after the other, each in whole supers of 512 columns. Everything after the
	// last column is 0.
	X     []int8    // in the order of ArrangeBlocks
	Bias  []int32   // one for each block: the sum of its activations times -BandOffset
	Scale []float32 // one for each block
	// Dst[(b*Vectors+v)*8+r] gets the result of row r of band b and vector v. It is the sum over
	// blocks of half * Scale * (weights * x). The integers weights * x are exact.
	Dst []float32
}

// HasBands reports whether MultiplyBands is faster than other products, for weights of the given
// number of planes.
func (l Level) HasBands(planes int) bool { return l >= AVX2 && (planes == 2 || planes == 3) }

// BandBlocks is the number of blocks of a row of cols columns, padding included.
func BandBlocks(cols int) int {
	return (cols + BandBlock*halfSuper - 1) / (BandBlock * halfSuper) * halfSuper
}

// BandSupers is the number of supers that a vector of the given number of blocks fills.
func BandSupers(blocks int) int { return (blocks + SuperBlocks - 1) / SuperBlocks }

// BandBytes is the size in bytes of a band of cols columns: whole cache lines.
func BandBytes(cols, planes int) int {
	return (BandBlocks(cols)*(BandBlock*planes+BandRows*2) + 63) &^ 63
}

// BandOffset is what the kernels add to a weight of the given number of planes, to make it not
// negative.
func BandOffset(planes int) int32 {
	if planes == 3 {
		return Offset(planes) + bandLow
	}
	return Offset(planes)
}

// bandLow is what bandByte adds to q.
const bandLow = 5

// bandByte returns the byte of a band that holds q, from 0 to 26, and r, from 0 to 8. If r is below
// 8, the upper five bits are q + bandLow and the lower three are r. Such bytes are bandLow*8 and
// above. If r is 8, the byte is q + bandLow, which is less. So one comparison tells the two cases
// apart.
func bandByte(q, r byte) byte {
	if r == 8 {
		return q + bandLow
	}
	return (q+bandLow)<<3 | r
}

// splitBand is the inverse of bandByte.
func splitBand(b byte) (q, r byte) {
	if b < bandLow<<3 {
		return (b - bandLow) % 27, 8 // no valid byte is below bandLow
	}
	return b>>3 - bandLow, b & 7
}

// PackBand writes a band, five rows of blocks, to the BandBytes bytes of dst. The number of blocks
// is one that BandBlocks returns. weights[r] has a byte from 0 to 3^planes-1 for each column of row
// r, and halfs[r] has a factor for each of its blocks.
//
// Let w0 to w4 be the weights of a column, and (q, r) the byte that bandByte makes of q and r. With
// two planes the column's bytes are (w1 + 9t, w0) and (w3 + 9u, w2), where w4 = t + 3u. With three
// planes they are (w0, w1 % 9), (w2, w3 % 9) and (w4, w1/9 + 3(w3/9)).
//
// A stripe has the first bytes of all its columns, then their second bytes and so on. The stripes
// of a super follow each other, and the supers of the band do. Behind all supers are the factors,
// for each super those of five rows, little-endian.
func PackBand(dst []byte, weights *[BandRows][]byte, halfs *[BandRows][]uint16, blocks, planes int) {
	to := dst
	for b := 0; b < blocks; b += SuperBlocks {
		lanes := min(SuperBlocks, blocks-b)
		for s := range 8 {
			for l := range lanes {
				first := (b+l)*BandBlock + 4*s
				w0, w1, w2 := weights[0][first:][:4], weights[1][first:][:4], weights[2][first:][:4]
				w3, w4 := weights[3][first:][:4], weights[4][first:][:4]
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

// The bytes of a band, by what they hold:
//   - pairBytes, for two planes: by two weights, the one in r and the one in q, and one trit of a third weight
//   - lowBytes, for three planes: by two weights; the highest trit of the second is left out
//   - highBytes, for three planes: by one weight and the highest trits of two others
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

// lowDigit and highDigit are the two digits of a weight of two planes. ninths is the highest digit
// of a weight of three.
var lowDigit, highDigit, ninths = func() (low, high [16]byte, nine [32]byte) {
	for v := range byte(9) {
		low[v], high[v] = v%3, v/3
	}
	for v := range byte(27) {
		nine[v] = v / 9
	}
	return low, high, nine
}()

// unpackBand is the inverse of PackBand, but returns the factors as float32.
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

// MaxCoarsenFactor is the largest factor, as the bits of a half, that CoarsenBand can multiply by
// three.
const MaxCoarsenFactor = 0x7554

// CoarsenBand writes src, a band of three planes, to dst as a band of two: it drops the lowest
// plane. The weights are rounded to multiples of three, and the factors are three times as large.
// No factor in src may be negative or above MaxCoarsenFactor. dst may begin where src begins, or
// before it.
func CoarsenBand(dst, src []byte, blocks int) {
	to, from := dst, src
	for b := 0; b < blocks; b += SuperBlocks {
		n := 4 * min(SuperBlocks, blocks-b)
		for range 8 {
			first, second, third := from[:n], from[n:][:n], from[2*n:][:n]
			p, q := to[:n], to[n:][:n]
			// dst may be src. So all bytes of a column are read before one is written. Bytes of q
			// are written last, as q overlaps with bytes of columns that are still to be read.
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

// Tables of CoarsenBand. coarseFirst is by a band's first or second byte, with the digits of two
// weights. It drops the lowest digits and gives 9 times the rest. coarseThird is by the third byte,
// with one weight and the highest digits of the two others. It gives what is to be added for each
// of these two. coarsePair is by the sum, and gives the byte of a band of two planes.
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

// ArrangeBlocks writes src, whole blocks of columns in order, to dst in the order of stripes, in
// whole supers. Column 32l + 4s + i of a super goes to byte 4l + i of its stripe s.
func ArrangeBlocks(dst, src []int8) {
	for b := 0; b < len(src)/BandBlock; b++ {
		s := src[b*BandBlock:][:BandBlock]
		d := dst[b/SuperBlocks*SuperCols+b%SuperBlocks*4:]
		for i := range 8 {
			*(*[4]int8)(d[i*Stripe:]) = *(*[4]int8)(s[4*i:])
		}
	}
}

// MultiplyBands computes the product. Integers are exact. Floats are summed in an order that
// depends on the level.
func (l Level) MultiplyBands(b *Bands) {
	if b.Count > 0 && b.Blocks > 0 && !l.multiplyBandsAsm(b) {
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
	extra := BandOffset(p.Planes) - Offset(p.Planes)
	for n := range p.Count {
		unpackBand(&weights, &factors, p.Bytes[n*p.Pitch:][:p.Pitch], p.Blocks, p.Planes)
		for v := range p.Vectors {
			x, scale := p.X[v*supers*SuperCols:][:supers*SuperCols], p.Scale[v*supers*SuperBlocks:]
			for r := range weights {
				var sum float32
				for b := range p.Blocks {
					s := p.Bias[v*supers*SuperBlocks+b]
					for i, w := range weights[r][b*BandBlock:][:BandBlock] {
						at := b/SuperBlocks*SuperCols + i/4*Stripe + b%SuperBlocks*4 + i%4
						s += (int32(w) + extra) * int32(x[at])
					}
					sum += float32(factors[r][b]*scale[b]) * float32(s)
				}
				p.Dst[(n*p.Vectors+v)*8+r] = sum
			}
		}
	}
}
