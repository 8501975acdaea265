// Package vec has float32 kernels: dot products, sums, softmax, RMS norm, and the same on rows
// selected by index. The predictors of experts (moe/hidden) and the experiments with attention
// (fabric/lab/attention) use them.
//
// Each kernel has three variants: AVX-512, AVX2 with FMA, and Go. The fastest that the machine
// supports is used. The variants add in different orders. So their results differ in the last bits,
// within the bounds that the functions state. There, u is 2^-24, half the distance from 1 to the
// next float32. NaN and infinities follow IEEE 754 unless noted otherwise.
//
// Slices may start at any address. A destination may be the same slice as a source, but slices must
// not overlap otherwise. Lengths that do not fit cause a panic, as in gonum. No function allocates,
// and all may be called concurrently.
package vec

// This file defines the exported functions and what they guarantee.

import (
	"fmt"
	"math"
)

// checkLength panics unless the length n is want.
func checkLength(n, want int) {
	if n != want {
		panic(fmt.Sprintf("vec: %d elements beside %d", n, want))
	}
}

// Dot returns the sum of a[i] b[i]. Its error is at most (n/4 + 8) u sum |a[i] b[i]|.
func Dot(a, b []float32) float32 {
	checkLength(len(b), len(a))
	return fastest.dot(a, b)
}

// Add sets dst[i] to a[i] + b[i].
func Add(dst, a, b []float32) {
	checkLength(len(a), len(dst))
	checkLength(len(b), len(dst))
	fastest.add(dst, a, b)
}

// AXPY adds s a[i] to dst[i], with one or two roundings.
func AXPY(dst []float32, s float32, a []float32) {
	checkLength(len(a), len(dst))
	fastest.axpy(dst, a, s)
}

// Scale multiplies each x[i] by s.
func Scale(x []float32, s float32) { fastest.scale(x, s) }

// Max returns the largest element. NaN is ignored. If there is no other element, the result is -Inf.
func Max(x []float32) float32 { return fastest.max(x) }

// ExpSum sets dst[i] to e^(x[i] - shift), and returns the sum in float64. The difference is rounded
// to float32. Its exponential is accurate to 1 unit in the last place. For differences below -87 it
// is 0, so that no result is subnormal, which would be slow. e^Inf is Inf, and NaN stays NaN.
func ExpSum(dst, x []float32, shift float32) float64 {
	checkLength(len(x), len(dst))
	return fastest.expSum(dst, x, shift)
}

// Softmax sets x[i] to e^(s x[i] - m) / sum over j of e^(s x[j] - m), where m is the largest s
// x[i]. This is ggml's soft_max without mask, sinks and ALiBi. The relative error of a result that
// is not subnormal is at most (|s x[i] - m| + 8) u, in addition to that of rounding s x[i].
// Exponentials of less than -87 are 0.
//
// An element that is -Inf becomes 0. If one is NaN or +Inf, or all are -Inf, all become NaN.
func Softmax(x []float32, s float32) {
	if s != 1 {
		Scale(x, s)
	}
	sum := ExpSum(x, x, Max(x))
	Scale(x, float32(1/sum))
}

// RMSNorm sets dst[i] to x[i] / sqrt(mean of x[j]^2 + eps) w[i].
//
// It performs ggml's operations. Squares rounded to float32 are added in float64, and the mean is
// rounded to float32. Then one division gives the scale, and two products give the result. Only the
// order of the additions in float64 differs, and rounding the mean hides that except for rare ties.
// So the results are ggml's bit for bit, unless that mean is rounded differently.
func RMSNorm(dst, x, w []float32, eps float32) {
	checkLength(len(x), len(dst))
	checkLength(len(w), len(dst))
	if len(x) == 0 {
		return
	}
	mean := float32(fastest.sumSquares(x) / float64(len(x)))
	scale := 1 / float32(math.Sqrt(float64(mean+eps)))
	fastest.mulScaled(dst, x, w, scale)
}

// AddInt32 adds s w[i] n[i] to dst[i]. It converts integer products, each with the scale of its
// row, to floats. |n[i]| must be at most 2^24.
func AddInt32(dst []float32, s float32, w []float32, n []int32) {
	checkLength(len(w), len(dst))
	checkLength(len(n), len(dst))
	fastest.addInt32(dst, w, n, s)
}

// CountAtLeast returns how many elements are t or more. NaN does not count.
func CountAtLeast(x []float32, t float32) int { return fastest.countAtLeast(x, t) }

// IndexAtLeast writes the indices of the elements that are t or more to dst, in order, and returns
// how many there are. NaN does not count. dst must be at least as long as x. Its elements after the
// indices are unchanged.
func IndexAtLeast(dst []int32, x []float32, t float32) int {
	if len(dst) < len(x) {
		panic(fmt.Sprintf("vec: space for %d indexes of %d elements", len(dst), len(x)))
	}
	return fastest.indexAtLeast(dst, x, t)
}

// SumBelow returns the sum of the elements that are less than t, in float64.
func SumBelow(x []float32, t float32) float64 { return fastest.sumBelow(x, t) }

// checkRowIndices panics unless every index selects a row of d elements.
func checkRowIndices(rows []float32, at []int32, d int) {
	if d == 0 {
		panic("vec: rows of no elements")
	}
	n := uint64(len(rows) / d)
	var last uint64
	for _, i := range at {
		last = max(last, uint64(i)) // a negative index is a large one
	}
	if len(at) > 0 && last >= n {
		panic(fmt.Sprintf("vec: row %d of %d", int64(last), n))
	}
}

// DotRows sets dst[i] to the dot product of q and row at[i]. Rows have the length of q, and are
// stored one after the other. The error is that of Dot. Lengths that are multiples of 16 are fast.
func DotRows(dst, q, rows []float32, at []int32) {
	checkLength(len(dst), len(at))
	checkRowIndices(rows, at, len(q))
	fastest.dotRows(dst, q, rows, at)
}

// AddRows adds the sum of w[i] times row at[i] to dst. Rows have the length of dst, and are stored
// one after the other. The error of an element is at most (n + 4) u times the sum of the magnitudes
// of what is added, where n is len(at). Lengths that are multiples of 16 are fast.
func AddRows(dst, w, rows []float32, at []int32) {
	checkLength(len(w), len(at))
	checkRowIndices(rows, at, len(dst))
	fastest.addRows(dst, w, rows, at)
}
