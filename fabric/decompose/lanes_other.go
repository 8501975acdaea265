//go:build !amd64 || noasm

package decompose

func gridSums(r, g *vec, size []vec, s *vec, top float32) { gridSumsGo(r, g, size, s, top) }

func gridRound(digits [][lanes]int32, e *sums, size []vec, a, s *vec, top float32) {
	gridRoundGo(digits, e, size, a, s, top)
}

func assign(digits [][lanes]int32, e *sums, size []vec, a *[maxFree]vec, planes int) {
	assignGo(digits, e, size, a, planes)
}

func alternate(a *[maxFree]vec, gain *vec, size []vec, planes, steps int) {
	alternateGo(a, gain, size, planes, steps)
}

func spread(size []vec, most *vec, unit *[lanes]int32, w []float32) { spreadGo(size, most, unit, w) }

func gather(codes []byte, digits [][lanes]int32, w []float32, offset int) {
	gatherGo(codes, digits, w, offset)
}
