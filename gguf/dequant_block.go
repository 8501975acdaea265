package gguf

// This file decodes the types whose blocks have 32 to 128 elements, and one, two or four scales
// each: Q4_0 to Q8_0, Q1_0, Q2_0, IQ4_NL and the FP4 types. Where a byte holds two elements, its
// low nibble belongs to the block's first half and its high nibble to the second.

import (
	"encoding/binary"
	"math"
)

// fp4 holds twice the values of E2M1, so the scales are halved. Code 8 is +0, not -0, because ggml
// keeps the values as integers.
var fp4 = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// iq4 is the code book of IQ4_NL and IQ4_XS.
var iq4 = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// decodeNibbles decodes 32 elements from 16 bytes: x = values[code] d.
func decodeNibbles(y *[32]float32, q *[16]byte, values *[16]float32, d float32) {
	for j, q := range q {
		y[j] = values[q&15] * d
		y[j+16] = values[q>>4] * d
	}
}

// decodeQ4_0: half d, 16 bytes of codes; x = (code - 8) d.
func decodeQ4_0(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 18 {
		b, y := (*[18]byte)(src), (*[32]float32)(dst)
		d := halfAt(b[0], b[1])
		for j, q := range b[2:] {
			y[j] = float32(int32(q&15)-8) * d
			y[j+16] = float32(int32(q>>4)-8) * d
		}
		dst, src = dst[32:], src[18:]
	}
}

// decodeQ4_1: half d, half m, 16 bytes of codes; x = code d + m.
func decodeQ4_1(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 20 {
		b, y := (*[20]byte)(src), (*[32]float32)(dst)
		d, m := halfAt(b[0], b[1]), halfAt(b[2], b[3])
		for j, q := range b[4:] {
			y[j] = float32(float32(int32(q&15))*d) + m
			y[j+16] = float32(float32(int32(q>>4))*d) + m
		}
		dst, src = dst[32:], src[20:]
	}
}

// decodeQ5_0: half d, 4 bytes of the codes' fifth bits in the order of the elements, 16 bytes of
// low bits; x = (code - 16) d.
func decodeQ5_0(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 22 {
		b, y := (*[22]byte)(src), (*[32]float32)(dst)
		d := halfAt(b[0], b[1])
		high := binary.LittleEndian.Uint32(b[2:])
		for j, q := range b[6:] {
			y[j] = float32(int32(uint32(q&15)|high<<4&16)-16) * d
			y[j+16] = float32(int32(uint32(q>>4)|high>>12&16)-16) * d
			high >>= 1
		}
		dst, src = dst[32:], src[22:]
	}
}

// decodeQ5_1: half d, half m, then as Q5_0; x = code d + m.
func decodeQ5_1(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 24 {
		b, y := (*[24]byte)(src), (*[32]float32)(dst)
		d, m := halfAt(b[0], b[1]), halfAt(b[2], b[3])
		high := binary.LittleEndian.Uint32(b[4:])
		for j, q := range b[8:] {
			y[j] = float32(float32(int32(uint32(q&15)|high<<4&16))*d) + m
			y[j+16] = float32(float32(int32(uint32(q>>4)|high>>12&16))*d) + m
			high >>= 1
		}
		dst, src = dst[32:], src[24:]
	}
}

// decodeQ8_0: half d, 32 signed bytes; x = code d.
func decodeQ8_0(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 34 {
		b, y := (*[34]byte)(src), (*[32]float32)(dst)
		d := halfAt(b[0], b[1])
		for j, q := range b[2:] {
			y[j] = float32(int8(q)) * d
		}
		dst, src = dst[32:], src[34:]
	}
}

// decodeQ1_0: half d, 128 bits; x = d or -d.
func decodeQ1_0(dst []float32, src []byte) {
	for len(dst) >= 128 && len(src) >= 18 {
		b, y := (*[18]byte)(src), (*[128]float32)(dst)
		d := halfAt(b[0], b[1])
		table := [2]float32{-d, d}
		for j, q := range b[2:] {
			y := (*[8]float32)(y[j*8:])
			for i := range y {
				y[i] = table[q>>i&1]
			}
		}
		dst, src = dst[128:], src[18:]
	}
}

// decodeQ2_0: half d, 16 bytes of four codes each, in order from the low bits; x = (code - 1) d.
func decodeQ2_0(dst []float32, src []byte) {
	for len(dst) >= 64 && len(src) >= 18 {
		b, y := (*[18]byte)(src), (*[64]float32)(dst)
		table := scaleTrits(halfAt(b[0], b[1]))
		for j, q := range b[2:] {
			y := (*[4]float32)(y[j*4:])
			y[0] = table[q&3]
			y[1] = table[q>>2&3]
			y[2] = table[q>>4&3]
			y[3] = table[q>>6]
		}
		dst, src = dst[64:], src[18:]
	}
}

// trits holds the values of the ternary types' two-bit codes.
//
// It is a variable, because a compiler may turn a product with the constant -1 into a change of
// sign, which differs for NaN.
var trits = [4]float32{-1, 0, 1, 2}

// scaleTrits returns the products of trits and d. The product with 0 has the sign of d, and is NaN
// if d is not finite.
func scaleTrits(d float32) (table [4]float32) {
	for i := range table {
		table[i] = trits[i] * d
	}
	return table
}

// decodeIQ4NL: half d, 16 bytes of codes; x = d iq4[code].
func decodeIQ4NL(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 18 {
		b := (*[18]byte)(src)
		decodeNibbles((*[32]float32)(dst), (*[16]byte)(b[2:]), &iq4, halfAt(b[0], b[1]))
		dst, src = dst[32:], src[18:]
	}
}

// decodeMXFP4: an exponent byte (E8M0), 16 bytes of codes; x = fp4[code] 2^(e-128).
func decodeMXFP4(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 17 {
		b := (*[17]byte)(src)
		decodeNibbles((*[32]float32)(dst), (*[16]byte)(b[1:]), &fp4, halfE8M0(b[0]))
		dst, src = dst[32:], src[17:]
	}
}

// halfE8M0 is 2^(e-128), half of the E8M0 value. As in ggml, 255 is not NaN.
func halfE8M0(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(1 << 21 << e) // subnormal
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

// decodeNVFP4: four scales (UE4M3), then 8 bytes of codes for each; x = fp4[code] d. Low nibbles
// hold the first 8 of a scale's 16 elements.
func decodeNVFP4(dst []float32, src []byte) {
	for len(dst) >= 64 && len(src) >= 36 {
		b, y := (*[36]byte)(src), (*[64]float32)(dst)
		for s := range 4 {
			d := halfUE4M3(b[s])
			q, y := (*[8]byte)(b[4+8*s:]), (*[16]float32)(y[16*s:])
			for j, q := range q {
				y[j] = fp4[q&15] * d
				y[j+8] = fp4[q>>4] * d
			}
		}
		dst, src = dst[64:], src[36:]
	}
}

// halfUE4M3 is half of the UE4M3 value (unsigned, 4 exponent bits, 3 mantissa bits). The top bit is
// ignored. As in ggml, 0x7f (NaN) gives 0, but 0xff gives a number.
func halfUE4M3(e byte) float32 {
	exponent, mantissa := uint32(e>>3&15), uint32(e&7)
	switch {
	case e == 0x7f:
		return 0
	case exponent == 0:
		return float32(mantissa) * 0x1p-10
	}
	return math.Float32frombits((exponent+127-8)<<23 | mantissa<<20)
}
