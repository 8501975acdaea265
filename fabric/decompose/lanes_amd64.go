//go:build !noasm

package decompose

// This file chooses the assembly for the loops of lanes.go. All loops need at least one row, i.e. n
// is at least 1.

import "golang.org/x/sys/cpu"

var (
	hasAVX2   = cpu.X86.HasAVX2
	hasAVX512 = cpu.X86.HasAVX512F
)

//go:noescape
func sumOnGridAVX2(products, squares *vec, mags *vec, n int, s *vec, top float32)

//go:noescape
func roundToGridAVX2(digits *[lanes]int32, e *sums, mags *vec, n int, a, s *vec, top float32)

//go:noescape
func sumOnGridAVX512(products, squares *vec, mags *vec, n int, s *vec, top float32)

//go:noescape
func roundToGridAVX512(digits *[lanes]int32, e *sums, mags *vec, n int, a, s *vec, top float32)

//go:noescape
func assignLevelsAVX512(digits *[lanes]int32, e *sums, mags *vec, n int, a *[maxFree]vec, planes int)

// improveFactorsAVX512 does at least one step.
//
//go:noescape
func improveFactorsAVX512(a *[maxFree]vec, gain *vec, mags *vec, n, planes, steps int)

func sumOnGrid(r, g *vec, mags []vec, s *vec, top float32) {
	switch {
	case hasAVX512:
		sumOnGridAVX512(r, g, &mags[0], len(mags), s, top)
	case hasAVX2:
		sumOnGridAVX2(r, g, &mags[0], len(mags), s, top)
	default:
		sumOnGridGo(r, g, mags, s, top)
	}
}

func roundToGrid(digits [][lanes]int32, e *sums, mags []vec, a, s *vec, top float32) {
	switch {
	case hasAVX512:
		roundToGridAVX512(&digits[:len(mags)][0], e, &mags[0], len(mags), a, s, top)
	case hasAVX2:
		roundToGridAVX2(&digits[:len(mags)][0], e, &mags[0], len(mags), a, s, top)
	default:
		roundToGridGo(digits, e, mags, a, s, top)
	}
}

func assignLevels(digits [][lanes]int32, e *sums, mags []vec, a *[maxFree]vec, planes int) {
	if hasAVX512 {
		assignLevelsAVX512(&digits[:len(mags)][0], e, &mags[0], len(mags), a, planes)
		return
	}
	assignLevelsGo(digits, e, mags, a, planes)
}

func improveFactors(a *[maxFree]vec, gain *vec, mags []vec, planes, steps int) {
	if hasAVX512 {
		improveFactorsAVX512(a, gain, &mags[0], len(mags), planes, steps)
		return
	}
	improveFactorsGo(a, gain, mags, planes, steps)
}

//go:noescape
func loadMagnitudesAVX512(mags *vec, n int, largest *vec, exponent *[lanes]int32, w *float32)

//go:noescape
func storeCodesAVX512(codes *byte, digits *[lanes]int32, n int, w *float32, offset int)

func loadMagnitudes(mags []vec, largest *vec, exponent *[lanes]int32, w []float32) {
	if hasAVX512 {
		loadMagnitudesAVX512(&mags[0], len(mags), largest, exponent, &w[:lanes*len(mags)][0])
		return
	}
	loadMagnitudesGo(mags, largest, exponent, w)
}

func storeCodes(codes []byte, digits [][lanes]int32, w []float32, offset int) {
	if hasAVX512 {
		storeCodesAVX512(&codes[:lanes*len(digits)][0], &digits[0], len(digits), &w[:lanes*len(digits)][0], offset)
		return
	}
	storeCodesGo(codes, digits, w, offset)
}
