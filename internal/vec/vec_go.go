package vec

// This file has the kernels in Go: the reference for the assembly, and the implementation for other
// machines.
//
// Products are converted explicitly before they are added, so that no compiler fuses the two
// operations. So the results are the same on every architecture.

import "math"

// variant is one implementation of the kernels.
type variant uint8

const (
	inGo variant = iota
	avx2         // AVX2 and FMA
	avx512
)

func (v variant) String() string { return [...]string{"go", "avx2", "avx512"}[v] }

// fastest is the variant that the package's functions use.
var fastest = variants()[0]

func dotGo(a, b []float32) float32 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float32
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s0 += float32(a[i] * b[i])
		s1 += float32(a[i+1] * b[i+1])
		s2 += float32(a[i+2] * b[i+2])
		s3 += float32(a[i+3] * b[i+3])
	}
	for ; i < len(a); i++ {
		s0 += float32(a[i] * b[i])
	}
	return (s0 + s1) + (s2 + s3)
}

func addGo(dst, a, b []float32) {
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

func axpyGo(dst, a []float32, s float32) {
	for i, x := range a {
		dst[i] += float32(s * x)
	}
}

func scaleGo(x []float32, s float32) {
	for i := range x {
		x[i] *= s
	}
}

func maxGo(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

func sumSquaresGo(x []float32) float64 {
	var sum float64
	for _, v := range x {
		sum += float64(v * v)
	}
	return sum
}

func mulScaledGo(dst, x, w []float32, s float32) {
	for i, v := range x {
		dst[i] = float32(v*s) * w[i]
	}
}

func addInt32Go(dst, w []float32, n []int32, s float32) {
	for i, v := range n {
		dst[i] += float32(float32(s*w[i]) * float32(v))
	}
}

func expSumGo(dst, x []float32, shift float32) float64 {
	var sum float64
	for i, v := range x {
		e := exp(v - shift)
		dst[i] = e
		sum += float64(e)
	}
	return sum
}

// exp computes e^x with x = n ln 2 + r, |r| <= ln 2 / 2, and e^r = 1 + r + r^2 p(r). The polynomial
// p has degree 4 and was fitted for the least relative error of e^r: 3.8e-9 with rounded
// coefficients, which is 1/16 of u. ln 2 is split into two parts. The first has nine bits, so that
// its product with n is exact.
func exp(x float32) float32 {
	switch {
	case x != x:
		return x
	case x < expLow:
		return 0
	case x > expHigh:
		return float32(math.Inf(1))
	}
	const (
		ln2High = 0.693359375
		ln2Low  = -2.12194440e-4
		toInt   = 3 << 22 // a float32 of this size has no fractional part
	)
	n := float32(x*math.Log2E) + toInt - toInt
	r := x - float32(n*ln2High)
	r -= float32(n * ln2Low)
	p := float32(r*expC6) + expC5
	p = float32(r*p) + expC4
	p = float32(r*p) + expC3
	p = float32(r*p) + expC2
	p = float32(float32(r*r)*p) + r + 1
	// Two factors, because 2^128 is out of range although the result may not be.
	half := int32(n) >> 1
	return float32(p*pow2(half)) * pow2(int32(n)-half)
}

// power returns 2^n for n from -126 to 127.
func pow2(n int32) float32 { return math.Float32frombits(uint32(n+127) << 23) }

const (
	expLow  = -87 // below this, the result is 0
	expHigh = 89  // e^x rounds to Inf from 88.73 on
	expC2   = 0.49999994
	expC3   = 0.16666521
	expC4   = 0.04166839
	expC5   = 0.0083687166
	expC6   = 0.0013814598
)

func countAtLeastGo(x []float32, t float32) int {
	n := 0
	for _, v := range x {
		if v >= t {
			n++
		}
	}
	return n
}

func indexAtLeastGo(dst []int32, x []float32, t float32) int {
	n := 0
	for i, v := range x {
		if v >= t {
			dst[n] = int32(i)
			n++
		}
	}
	return n
}

func sumBelowGo(x []float32, t float32) float64 {
	var sum float64
	for _, v := range x {
		if v < t {
			sum += float64(v)
		}
	}
	return sum
}

// dotRowsOneByOne and addRowsOneByOne process rows one by one. v is the variant that is used for
// each row.
func dotRowsOneByOne(v variant, dst, q, rows []float32, at []int32) {
	for i, r := range at {
		dst[i] = v.dot(q, rows[int(r)*len(q):][:len(q)])
	}
}

func addRowsOneByOne(v variant, dst, w, rows []float32, at []int32) {
	for i, r := range at {
		v.axpy(dst, rows[int(r)*len(dst):][:len(dst)], w[i])
	}
}
