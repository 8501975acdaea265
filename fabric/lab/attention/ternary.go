package attention

// This file converts vectors to ternary digits, by the rotation and the quantiser.

import (
	"math"
	"math/bits"
	"math/rand/v2"

	"tensorcast/internal/vec"
)

// rotation is the map x -> H S x / sqrt(n), where S are random signs and H is the Hadamard matrix
// of size n. It is orthogonal, so products do not change. It spreads large elements of keys over
// all elements, so that one step size fits all of them.
type rotation struct {
	signs []float32 // +-1/sqrt(n)
}

// newRotation returns the rotation for vectors of d elements. The rotated vectors have the next
// power of two elements, at least 64, so that trits fill whole words.
func newRotation(d int) rotation {
	n := max(64, 1<<bits.Len(uint(d-1)))
	rng := rand.New(rand.NewPCG(0x7472697473, uint64(n)))
	r := rotation{signs: make([]float32, n)}
	for i := range r.signs {
		r.signs[i] = float32(1-2*rng.IntN(2)) / float32(math.Sqrt(float64(n)))
	}
	return r
}

// apply writes the rotated x to dst, which has len(r.signs) elements. x is padded with zeros.
func (r rotation) apply(dst, x []float32) {
	for i, v := range x {
		dst[i] = v * r.signs[i]
	}
	clear(dst[len(x):])
	hadamard(dst)
}

// hadamard multiplies x with the Hadamard matrix in Sylvester's order. The length of x must be a
// power of two, at least 8.
func hadamard(x []float32) {
	for i := 0; i+8 <= len(x); i += 8 {
		y := (*[8]float32)(x[i:])
		a0, a1, a2, a3 := y[0]+y[1], y[0]-y[1], y[2]+y[3], y[2]-y[3]
		a4, a5, a6, a7 := y[4]+y[5], y[4]-y[5], y[6]+y[7], y[6]-y[7]
		b0, b1, b2, b3 := a0+a2, a1+a3, a0-a2, a1-a3
		b4, b5, b6, b7 := a4+a6, a5+a7, a4-a6, a5-a7
		*y = [8]float32{b0 + b4, b1 + b5, b2 + b6, b3 + b7, b0 - b4, b1 - b5, b2 - b6, b3 - b7}
	}
	for half := 8; half < len(x); half *= 2 {
		for i := 0; i < len(x); i += 2 * half {
			low, high := x[i:i+half], x[i+half:i+2*half]
			for j, a := range low {
				b := high[j]
				low[j], high[j] = a+b, a-b
			}
		}
	}
}

// maxPlanes is the largest number of ternary digits per element.
const maxPlanes = 3

// stepSizes has, by number of digits p, the step of the uniform quantiser with 3^p levels that has
// the least squared error for a standard normal distribution (J. Max, "Quantizing for minimum
// distortion", 1960, table II and its continuation).
var stepSizes = [maxPlanes + 1]float32{1: 1.224, 2: 0.534, 3: 0.217}

// digits has the balanced ternary digits of v at index v + 13. Bit p of the low nibble is set if
// digit p is +1. Bit p of the high nibble is set if it is -1.
var digits = func() (table [27]uint8) {
	for v := -13; v <= 13; v++ {
		rest := v
		for p := range maxPlanes {
			switch d := ((rest+13)%3+3)%3 - 1; d { // 13 = 1 mod 3
			case 1:
				table[v+13] |= 1 << p
				rest--
			case -1:
				table[v+13] |= 16 << p
				rest++
			}
			rest /= 3
		}
	}
	return table
}()

// ternarise approximates x by scale times integers of len(plus) balanced ternary digits. Digit p is
// bit-sliced in plus[p] and minus[p]. The integers are the elements divided by a step that suits a
// normal distribution, rounded. The returned scale has the least squared error with these integers,
// and residual is that error.
func ternarise(plus, minus [][]uint64, x []float32) (scale, residual float32) {
	planes := len(plus)
	for p := range planes {
		clear(plus[p])
		clear(minus[p])
	}
	norm := vec.Dot(x, x)
	rms := float32(math.Sqrt(float64(norm) / float64(len(x))))
	if !(rms > 0) || rms > math.MaxFloat32 {
		return 0, norm
	}
	level := [maxPlanes + 1]int32{1: 1, 2: 4, 3: 13}[planes]
	inverse := 1 / (stepSizes[planes] * rms)
	var product float32 // of x and the integers
	var square int32    // of the integers
	for w := range len(x) / 64 {
		var pos, neg [maxPlanes]uint64
		for i, v := range x[64*w:][:64] {
			// The shift makes the argument positive, for which the conversion rounds down.
			n := min(max(int32(v*inverse+64.5)-64, -level), level)
			product += v * float32(n)
			square += n * n
			bits := uint64(digits[n+13])
			pos[0] |= bits & 1 << i
			neg[0] |= bits >> 4 & 1 << i
			pos[1] |= bits >> 1 & 1 << i
			neg[1] |= bits >> 5 & 1 << i
			pos[2] |= bits >> 2 & 1 << i
			neg[2] |= bits >> 6 & 1 << i
		}
		for p := range planes {
			plus[p][w], minus[p][w] = pos[p], neg[p]
		}
	}
	if square == 0 {
		return 0, norm
	}
	scale = product / float32(square)
	return scale, max(0, norm-scale*product)
}
