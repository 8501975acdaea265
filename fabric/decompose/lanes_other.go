//go:build !amd64 || noasm

package decompose

// This file replaces the assembly of lanes.go on other processors, and in builds with the tag noasm.

func sumOnGrid(r, g *vec, mags []vec, s *vec, top float32) { sumOnGridGo(r, g, mags, s, top) }

func roundToGrid(digits [][lanes]int32, e *sums, mags []vec, a, s *vec, top float32) {
	roundToGridGo(digits, e, mags, a, s, top)
}

func assignLevels(digits [][lanes]int32, e *sums, mags []vec, a *[maxFree]vec, planes int) {
	assignLevelsGo(digits, e, mags, a, planes)
}

func improveFactors(a *[maxFree]vec, gain *vec, mags []vec, planes, steps int) {
	improveFactorsGo(a, gain, mags, planes, steps)
}

func loadMagnitudes(mags []vec, largest *vec, exponent *[lanes]int32, w []float32) {
	loadMagnitudesGo(mags, largest, exponent, w)
}

func storeCodes(codes []byte, digits [][lanes]int32, w []float32, offset int) {
	storeCodesGo(codes, digits, w, offset)
}
