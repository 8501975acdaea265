// Package popcount computes dot products of ternary vectors with bit counts, two for each word of
// trits. Packages attention and hyper use it.
//
// Vectors are bit-sliced: they are two []uint64 of equal length, plus and minus. Trit 64w+i is +1
// if bit i of plus[w] is set, -1 if bit i of minus[w] is set, and otherwise 0. Let both = (ap|am) &
// (bp|bm), the positions where neither factor is zero, and differ = both & (ap^bp), those where the
// signs differ. Then
//
//	sum a_i b_i = popcnt(ap&bp | am&bm) - popcnt(ap&bm | am&bp) = popcnt(both) - 2 popcnt(differ).
//
// A bit that is set in plus and minus is invalid and makes the result meaningless. Bits after the
// last trit must be 0 in at least one factor. A result can count up to 2^31 - 1 trits (256 MiB per
// slice). All functions may be called concurrently.
package popcount

import (
	"fmt"
	"math/bits"
)

// This file defines the package's functions, chooses the variant, and has the variant in Go.

// Variant is one implementation of the package. All variants give the same results.
type Variant uint8

const (
	Go     Variant = iota // math/bits
	AVX2                  // counts nibbles with a lookup table; also needs POPCNT
	AVX512                // VPOPCNTDQ, VPTERNLOG
)

func (v Variant) String() string {
	switch v {
	case AVX512:
		return "avx512"
	case AVX2:
		return "avx2"
	}
	return "go"
}

// fastest is the variant that the package's functions use.
var fastest = Variants()[0]

// Dot returns the sum of a_i b_i. It panics if the lengths differ.
func Dot(aPlus, aMinus, bPlus, bMinus []uint64) int32 {
	return fastest.Dot(aPlus, aMinus, bPlus, bMinus)
}

// DotRows sets dst[r] to the dot product of q and row r. There are len(dst) rows of len(qPlus)
// words each, one after the other. It panics if the lengths do not fit.
func DotRows(dst []int32, qPlus, qMinus, rowsPlus, rowsMinus []uint64) {
	fastest.DotRows(dst, qPlus, qMinus, rowsPlus, rowsMinus)
}

// Dot is the package's function Dot in variant v, which must be one of Variants.
func (v Variant) Dot(aPlus, aMinus, bPlus, bMinus []uint64) int32 {
	var dst [1]int32
	v.DotRows(dst[:], aPlus, aMinus, bPlus, bMinus)
	return dst[0]
}

// DotRows is the package's function DotRows in variant v, which must be one of Variants.
func (v Variant) DotRows(dst []int32, qPlus, qMinus, rowsPlus, rowsMinus []uint64) {
	words := len(qPlus)
	if len(qMinus) != words || len(rowsPlus) != len(dst)*words || len(rowsMinus) != len(dst)*words {
		panic(fmt.Sprintf("popcount: %d rows of %d/%d words in slices of %d/%d words",
			len(dst), words, len(qMinus), len(rowsPlus), len(rowsMinus)))
	}
	if len(dst) == 0 || words == 0 {
		clear(dst)
		return
	}
	v.dotRows(dst, qPlus, qMinus, rowsPlus, rowsMinus)
}

func dotRowsGo(dst []int32, qp, qm, rowsPlus, rowsMinus []uint64) {
	words := len(qp)
	qm = qm[:words]
	for r := range dst {
		rp, rm := rowsPlus[r*words:][:words], rowsMinus[r*words:][:words]
		var sum int
		for i, p := range qp {
			both := (p | qm[i]) & (rp[i] | rm[i])
			sum += bits.OnesCount64(both) - 2*bits.OnesCount64(both&(p^rp[i]))
		}
		dst[r] = int32(sum)
	}
}
