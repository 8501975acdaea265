package kernel

// This file quantises vectors as ggml does, and adds up their elements in fours.

import (
	"math"

	"tensorcast/gguf/half"
)

// Quantize writes x as signed bytes to q, and a factor for each block of 32 or 256 values to scale,
// as fabric.Activations describes.
func (l Level) Quantize(q []int8, scale []float32, x []float32, block int) {
	q = q[:len(x)]
	if whole := len(x) / block * block; whole > 0 && l.quantizeAsm(q[:whole], scale, x[:whole], block) {
		q, scale, x = q[whole:], scale[whole/block:], x[whole:]
	}
	for b := 0; len(x) > 0; b++ {
		n := min(block, len(x))
		if block == 32 {
			scale[b] = quantize32(q[:n], x[:n])
		} else {
			scale[b] = quantize256(q[:n], x[:n])
		}
		q, x = q[n:], x[n:]
	}
}

func quantize32(q []int8, x []float32) float32 {
	var largest float32
	for _, v := range x {
		largest = max(largest, abs(v))
	}
	var inverse float32
	if largest != 0 {
		inverse = 127 / largest
	}
	for i, v := range x {
		r := math.RoundToEven(float64(float32(v * inverse)))
		switch {
		case r >= 127 && r < 1<<31:
			q[i] = 127
		case r >= -128 && r < 127:
			q[i] = int8(r)
		default: // what the processor's conversion gives for numbers out of range
			q[i] = -128
		}
	}
	return half.Float32(half.Round(largest / 127))
}

func quantize256(q []int8, x []float32) float32 {
	var largest, signed float32 // the largest magnitude, and its value with sign
	for _, v := range x {
		if a := abs(v); a > largest {
			largest, signed = a, v
		}
	}
	if largest == 0 {
		clear(q)
		return 0
	}
	inverse := -127 / signed
	for i, v := range x {
		// Adding 1.5 * 2^23 leaves the rounded number in the low bits.
		f := float32(v*inverse) + 12582912
		q[i] = int8(min(127, int32(math.Float32bits(f)&0x7fffff)-0x400000))
	}
	return 1 / inverse
}

func abs(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }

// SumFours writes the sum of each four neighbouring elements of q to dst. q has whole stripes.
func (l Level) SumFours(dst []int32, q []int8) {
	if len(q) == 0 || l.sumFoursAsm(dst, q) {
		return
	}
	for i := range dst[:len(q)/4] {
		v := q[4*i : 4*i+4]
		dst[i] = int32(v[0]) + int32(v[1]) + int32(v[2]) + int32(v[3])
	}
}
