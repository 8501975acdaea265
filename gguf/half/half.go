// Package half converts between float32 and IEEE 754 binary16, the half-precision format of the
// scales in ggml's blocks.
package half

import "math"

// Float32 is the value of h. A signalling NaN becomes quiet, as it does in the processor's
// conversion and in ggml.
func Float32(h uint16) float32 {
	sign, exponent, mantissa := uint32(h&0x8000)<<16, uint32(h>>10&31), uint32(h&0x3ff)
	switch exponent {
	case 0:
		return math.Float32frombits(sign | math.Float32bits(float32(int32(mantissa))*0x1p-24))
	case 31:
		if mantissa != 0 {
			mantissa |= 0x200
		}
		return math.Float32frombits(sign | 0x7f800000 | mantissa<<13)
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | mantissa<<13)
}

// Round returns the half nearest to v. Ties go to the half whose last bit is 0. Values of 65520 and
// above become infinity, NaN a quiet NaN.
func Round(v float32) uint16 {
	bits := math.Float32bits(v)
	sign, abs := uint16(bits>>16&0x8000), bits&0x7fffffff
	switch {
	case abs >= 0x47800000: // 65536 and more, infinity, NaN
		if abs > 0x7f800000 {
			return sign | 0x7e00
		}
		return sign | 0x7c00
	case abs < 0x38800000:
		// Below the smallest normal half. Adding 0.5 leaves v, rounded to multiples of 2^-24, in
		// the low bits.
		sum := math.Float32frombits(abs) + 0.5
		return sign | uint16(math.Float32bits(sum)-math.Float32bits(0.5))
	}
	abs += 0xfff + abs>>13&1                // may carry into the exponent
	return sign | uint16((abs>>13)-112<<10) // change of exponent bias from 127 to 15
}
