//go:build !noasm

package vec

// This file chooses among the assembly functions of vec_avx512_amd64.s and vec_avx2_amd64.s. These
// accept slices of any length and address. The number of elements is the length of the first slice,
// unless noted otherwise.

import "golang.org/x/sys/cpu"

// variants lists the variants that this machine supports, the fastest first.
func variants() []variant {
	var v []variant
	if x := &cpu.X86; x.HasAVX512F && x.HasAVX2 && x.HasFMA && x.HasPOPCNT {
		v = append(v, avx512)
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasPOPCNT {
		v = append(v, avx2)
	}
	return append(v, inGo)
}

func (v variant) dot(a, b []float32) float32 {
	switch v {
	case avx512:
		return dotAVX512(a, b)
	case avx2:
		return dotAVX2(a, b)
	default:
		return dotGo(a, b)
	}
}

func (v variant) add(dst, a, b []float32) {
	switch v {
	case avx512:
		addAVX512(dst, a, b)
	case avx2:
		addAVX2(dst, a, b)
	default:
		addGo(dst, a, b)
	}
}

func (v variant) axpy(dst, a []float32, s float32) {
	switch v {
	case avx512:
		axpyAVX512(dst, a, s)
	case avx2:
		axpyAVX2(dst, a, s)
	default:
		axpyGo(dst, a, s)
	}
}

func (v variant) scale(x []float32, s float32) {
	switch v {
	case avx512:
		scaleAVX512(x, s)
	case avx2:
		scaleAVX2(x, s)
	default:
		scaleGo(x, s)
	}
}

func (v variant) max(x []float32) float32 {
	switch v {
	case avx512:
		return maxAVX512(x)
	case avx2:
		return maxAVX2(x)
	default:
		return maxGo(x)
	}
}

func (v variant) sumSquares(x []float32) float64 {
	switch v {
	case avx512:
		return sumSquaresAVX512(x)
	case avx2:
		return sumSquaresAVX2(x)
	default:
		return sumSquaresGo(x)
	}
}

func (v variant) mulScaled(dst, x, w []float32, s float32) {
	switch v {
	case avx512:
		mulScaledAVX512(dst, x, w, s)
	case avx2:
		mulScaledAVX2(dst, x, w, s)
	default:
		mulScaledGo(dst, x, w, s)
	}
}

func (v variant) addInt32(dst, w []float32, n []int32, s float32) {
	switch v {
	case avx512:
		addInt32AVX512(dst, w, n, s)
	case avx2:
		addInt32AVX2(dst, w, n, s)
	default:
		addInt32Go(dst, w, n, s)
	}
}

func (v variant) expSum(dst, x []float32, shift float32) float64 {
	switch v {
	case avx512:
		return expSumAVX512(dst, x, shift)
	case avx2:
		return expSumAVX2(dst, x, shift)
	default:
		return expSumGo(dst, x, shift)
	}
}

func (v variant) countAtLeast(x []float32, t float32) int {
	switch v {
	case avx512:
		return countAtLeastAVX512(x, t)
	case avx2:
		return countAtLeastAVX2(x, t)
	default:
		return countAtLeastGo(x, t)
	}
}

func (v variant) indexAtLeast(dst []int32, x []float32, t float32) int {
	switch v {
	case avx512:
		return indexAtLeastAVX512(dst, x, t)
	case avx2:
		return indexAtLeastAVX2(dst, x, t)
	default:
		return indexAtLeastGo(dst, x, t)
	}
}

func (v variant) sumBelow(x []float32, t float32) float64 {
	switch v {
	case avx512:
		return sumBelowAVX512(x, t)
	case avx2:
		return sumBelowAVX2(x, t)
	default:
		return sumBelowGo(x, t)
	}
}

// The assembly for rows processes several rows at a time and whole registers only. It does not
// check indices.

func (v variant) dotRows(dst, q, rows []float32, at []int32) {
	whole := 0 // number of rows that the assembly processes
	switch {
	case v == avx512 && len(q)%16 == 0:
		whole = len(at) &^ 3
		dotRowsAVX512(dst[:whole], q, rows, at)
	case v == avx2 && len(q)%8 == 0:
		whole = len(at) &^ 3
		dotRowsAVX2(dst[:whole], q, rows, at)
	}
	dotRowsOneByOne(v, dst[whole:], q, rows, at[whole:])
}

func (v variant) addRows(dst, w, rows []float32, at []int32) {
	switch {
	case v == avx512 && len(dst)%16 == 0:
		addRowsAVX512(dst, w, rows, at)
	case v == avx2 && len(dst)%8 == 0:
		addRowsAVX2(dst, w, rows, at)
	default:
		addRowsOneByOne(v, dst, w, rows, at)
	}
}

//go:noescape
func dotAVX512(a, b []float32) float32

//go:noescape
func addAVX512(dst, a, b []float32)

//go:noescape
func axpyAVX512(dst, a []float32, s float32)

//go:noescape
func scaleAVX512(x []float32, s float32)

//go:noescape
func maxAVX512(x []float32) float32

//go:noescape
func sumSquaresAVX512(x []float32) float64

//go:noescape
func mulScaledAVX512(dst, x, w []float32, s float32)

//go:noescape
func addInt32AVX512(dst, w []float32, n []int32, s float32)

//go:noescape
func expSumAVX512(dst, x []float32, shift float32) float64

//go:noescape
func countAtLeastAVX512(x []float32, t float32) int

//go:noescape
func indexAtLeastAVX512(dst []int32, x []float32, t float32) int

//go:noescape
func sumBelowAVX512(x []float32, t float32) float64

// dotRowsAVX512 requires that len(dst) is a multiple of 4 and len(q) of 16.
//
//go:noescape
func dotRowsAVX512(dst, q, rows []float32, at []int32)

// addRowsAVX512 requires that len(dst) is a multiple of 16.
//
//go:noescape
func addRowsAVX512(dst, w, rows []float32, at []int32)

//go:noescape
func dotAVX2(a, b []float32) float32

//go:noescape
func addAVX2(dst, a, b []float32)

//go:noescape
func axpyAVX2(dst, a []float32, s float32)

//go:noescape
func scaleAVX2(x []float32, s float32)

//go:noescape
func maxAVX2(x []float32) float32

//go:noescape
func sumSquaresAVX2(x []float32) float64

//go:noescape
func mulScaledAVX2(dst, x, w []float32, s float32)

//go:noescape
func addInt32AVX2(dst, w []float32, n []int32, s float32)

//go:noescape
func expSumAVX2(dst, x []float32, shift float32) float64

//go:noescape
func countAtLeastAVX2(x []float32, t float32) int

//go:noescape
func indexAtLeastAVX2(dst []int32, x []float32, t float32) int

//go:noescape
func sumBelowAVX2(x []float32, t float32) float64

// dotRowsAVX2 requires that len(dst) is a multiple of 4 and len(q) of 8.
//
//go:noescape
func dotRowsAVX2(dst, q, rows []float32, at []int32)

// addRowsAVX2 requires that len(dst) is a multiple of 8.
//
//go:noescape
func addRowsAVX2(dst, w, rows []float32, at []int32)
