package gguf

// This file decodes the types with blocks of 256 elements: the K types, whose sub-blocks of 16 or
// 32 elements have a small integer scale (and minimum) relative to the block's; the ternary types;
// and IQ4_XS.
//
// Where a code has two bits or is a ternary digit, the value of each possible code is computed once
// and then looked up. With more possible codes, computing each element is faster.

import "encoding/binary"

// decodeQ2K: 16 bytes of scale | minimum<<4, 64 bytes of codes, half d, half dmin; x = d scale code
// - dmin minimum.
//
// 32 bytes hold 128 elements: the low two bits are the first 32, and so on. A sub-block has 16
// elements.
func decodeQ2K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 84 {
		b := (*[84]byte)(src)
		d, dmin := halfAt(b[80], b[81]), halfAt(b[82], b[83])
		for g := range 4 { // 16 bytes, four sub-blocks
			var table [4][4]float32
			for r := range table {
				s := b[g/2*8+2*r+g%2]
				dl, ml := d*float32(int32(s&15)), float32(dmin*float32(int32(s>>4)))
				for i := range table[r] {
					table[r][i] = float32(dl*float32(i)) - ml
				}
			}
			q := (*[16]byte)(b[16+16*g:])
			y := (*[112]float32)(dst[g/2*128+g%2*16:])
			for j, q := range q {
				y[j] = table[0][q&3]
				y[j+32] = table[1][q>>2&3]
				y[j+64] = table[2][q>>4&3]
				y[j+96] = table[3][q>>6]
			}
		}
		dst, src = dst[256:], src[84:]
	}
}

// decodeQ3K: 32 bytes of third bits, 64 bytes of low bits (as in Q2_K), 12 bytes of scales, half d;
// x = d (scale - 32) (code - 4).
//
// Bit i of third byte j belongs to element 32 i + j. The scales have 6 bits: the first 8 bytes have
// the low four of scales 0 to 7 in their low nibbles and of 8 to 15 in their high ones; the last 4
// bytes have the high two of scales j, j+4, j+8, j+12.
func decodeQ3K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 110 {
		b := (*[110]byte)(src)
		d := halfAt(b[108], b[109])
		for g := range 4 { // 16 bytes, four sub-blocks
			var dl [4]float32
			for r := range dl {
				s := g/2*8 + 2*r + g%2
				scale := b[96+s%8]>>(s/8*4&7)&15 | b[104+s%4]>>(s/4*2&7)&3<<4
				dl[r] = d * float32(int32(scale)-32)
			}
			d0, d1, d2, d3 := dl[0], dl[1], dl[2], dl[3]
			q, third := (*[16]byte)(b[32+16*g:]), (*[16]byte)(b[g%2*16:])
			y := (*[112]float32)(dst[g/2*128+g%2*16:])
			for j, q := range q {
				h := third[j] >> (g / 2 * 4 & 7)
				y[j] = d0 * float32(int32(q&3|h<<2&4)-4)
				y[j+32] = d1 * float32(int32(q>>2&3|h<<1&4)-4)
				y[j+64] = d2 * float32(int32(q>>4&3|h&4)-4)
				y[j+96] = d3 * float32(int32(q>>6|h>>1&4)-4)
			}
		}
		dst, src = dst[256:], src[110:]
	}
}

// unpackScaleMin unpacks the scale and minimum (6 bits each) of sub-block s (0 to 7) of Q4_K and
// Q5_K. Those of the first four sub-blocks are the low bits of bytes s and s+4. Those of the last
// four have their low bits in the nibbles of byte s+4, and their high bits in the high bits of the
// first eight bytes.
func unpackScaleMin(b *[12]byte, s int) (scale, minimum float32) {
	if s < 4 {
		return float32(int32(b[s] & 63)), float32(int32(b[s+4] & 63))
	}
	return float32(int32(b[s+4]&15 | b[s-4]>>6<<4)), float32(int32(b[s+4]>>4 | b[s]>>6<<4))
}

// decodeQ4K: half d, half dmin, 12 bytes of scales and minima, 128 bytes of codes; x = d scale code
// - dmin minimum.
//
// 32 bytes hold 64 elements: the low nibbles are the first 32. A sub-block has 32 elements.
func decodeQ4K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 144 {
		b := (*[144]byte)(src)
		d, dmin := halfAt(b[0], b[1]), halfAt(b[2], b[3])
		for g := range 4 { // 32 bytes, two sub-blocks
			scale, minimum := unpackScaleMin((*[12]byte)(b[4:]), 2*g)
			d0, m0 := d*scale, float32(dmin*minimum)
			scale, minimum = unpackScaleMin((*[12]byte)(b[4:]), 2*g+1)
			d1, m1 := d*scale, float32(dmin*minimum)
			q, y := (*[32]byte)(b[16+32*g:]), (*[64]float32)(dst[64*g:])
			for j, q := range q {
				y[j] = float32(d0*float32(int32(q&15))) - m0
				y[j+32] = float32(d1*float32(int32(q>>4))) - m1
			}
		}
		dst, src = dst[256:], src[144:]
	}
}

// decodeQ5K: as Q4_K with 32 bytes of fifth bits before the codes: bit i of byte j belongs to
// element 32 i + j.
func decodeQ5K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 176 {
		b := (*[176]byte)(src)
		d, dmin := halfAt(b[0], b[1]), halfAt(b[2], b[3])
		fifth := (*[32]byte)(b[16:])
		for g := range 4 { // 32 bytes, two sub-blocks
			scale, minimum := unpackScaleMin((*[12]byte)(b[4:]), 2*g)
			d0, m0 := d*scale, float32(dmin*minimum)
			scale, minimum = unpackScaleMin((*[12]byte)(b[4:]), 2*g+1)
			d1, m1 := d*scale, float32(dmin*minimum)
			q, y := (*[32]byte)(b[48+32*g:]), (*[64]float32)(dst[64*g:])
			for j, q := range q {
				h := fifth[j] >> (2 * g & 7)
				y[j] = float32(d0*float32(int32(q&15|h<<4&16))) - m0
				y[j+32] = float32(d1*float32(int32(q>>4|h<<3&16))) - m1
			}
		}
		dst, src = dst[256:], src[176:]
	}
}

// decodeQ6K: 128 bytes of low nibbles, 64 bytes of high bits, 16 signed scales, half d; x = d scale
// (code - 32).
//
// 64 bytes of nibbles and 32 of high bits hold 128 elements: in four runs of 32, the low nibbles of
// the first and of the second 32 bytes, then the high ones; their high bits follow each other in
// the bits of a byte. A sub-block has 16 elements.
func decodeQ6K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 210 {
		b := (*[210]byte)(src)
		d := halfAt(b[208], b[209])
		for g := range 4 { // 16 bytes of high bits, four sub-blocks
			n, r := g/2, g%2
			scale := (*[7]byte)(b[192+8*n+r:])
			d0, d1 := d*float32(int8(scale[0])), d*float32(int8(scale[2]))
			d2, d3 := d*float32(int8(scale[4])), d*float32(int8(scale[6]))
			q0, q1 := (*[16]byte)(b[64*n+16*r:]), (*[16]byte)(b[64*n+32+16*r:])
			y := (*[112]float32)(dst[128*n+16*r:])
			for j, h := range (*[16]byte)(b[128+16*g:]) {
				y[j] = d0 * float32(int32(q0[j]&15|h<<4&48)-32)
				y[j+32] = d1 * float32(int32(q1[j]&15|h<<2&48)-32)
				y[j+64] = d2 * float32(int32(q0[j]>>4|h&48)-32)
				y[j+96] = d3 * float32(int32(q1[j]>>4|h>>2&48)-32)
			}
		}
		dst, src = dst[256:], src[210:]
	}
}

// decodeQ8K: float d, 256 signed bytes, and 32 bytes of sums that only products need; x = d code.
func decodeQ8K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 292 {
		var d [1]float32
		decodeF32(d[:], src)
		q, y := (*[256]byte)(src[4:]), (*[256]float32)(dst)
		for j, q := range q {
			y[j] = d[0] * float32(int8(q))
		}
		dst, src = dst[256:], src[292:]
	}
}

// decodeTQ1_0: 32, then 16 bytes of five base-3 digits, then 4 bytes of four, half d; x = (digit -
// 1) d.
//
// A byte is a fraction of 256. Multiplying it by 3 moves the next digit into the overflow and
// leaves the fraction of the remaining digits. The first digits of a group of bytes are its first
// elements.
func decodeTQ1_0(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 54 {
		b, y := (*[54]byte)(src), (*[256]float32)(dst)
		table := scaleTrits(halfAt(b[52], b[53]))
		for j, q := range b[:32] {
			for n := range 5 {
				v := uint32(q) * 3
				y[32*n+j] = table[v>>8&3]
				q = byte(v)
			}
		}
		for j, q := range b[32:48] {
			for n := range 5 {
				v := uint32(q) * 3
				y[160+16*n+j] = table[v>>8&3]
				q = byte(v)
			}
		}
		for j, q := range b[48:52] {
			for n := range 4 {
				v := uint32(q) * 3
				y[240+4*n+j] = table[v>>8&3]
				q = byte(v)
			}
		}
		dst, src = dst[256:], src[54:]
	}
}

// decodeTQ2_0: 64 bytes of codes, half d; x = (code - 1) d. The codes lie as in Q2_K.
func decodeTQ2_0(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 66 {
		b, y := (*[66]byte)(src), (*[256]float32)(dst)
		table := scaleTrits(halfAt(b[64], b[65]))
		for g := range 2 {
			q, y := (*[32]byte)(b[32*g:]), (*[128]float32)(y[128*g:])
			for j, q := range q {
				y[j] = table[q&3]
				y[j+32] = table[q>>2&3]
				y[j+64] = table[q>>4&3]
				y[j+96] = table[q>>6]
			}
		}
		dst, src = dst[256:], src[66:]
	}
}

// decodeIQ4XS: half d, 2 bytes of the scales' high two bits, 4 bytes of their low four, 128 bytes
// of codes, which lie as in IQ4_NL; x = d (scale - 32) iq4[code]. A sub-block has 32 elements.
func decodeIQ4XS(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 136 {
		b := (*[136]byte)(src)
		d := halfAt(b[0], b[1])
		high := binary.LittleEndian.Uint16(b[2:])
		for s := range 8 {
			scale := int32(b[4+s/2]>>(s%2*4)&15) | int32(high>>(2*s)&3)<<4
			decodeNibbles((*[32]float32)(dst[32*s:]), (*[16]byte)(b[8+16*s:]), &iq4, d*float32(scale-32))
		}
		dst, src = dst[256:], src[136:]
	}
}
