//go:build !noasm

package decompose

import "golang.org/x/sys/cpu"

var (
	hasAVX2   = cpu.X86.HasAVX2
	hasAVX512 = cpu.X86.HasAVX512F
)

// There is one row at least.

//go:noescape
func gridSumsAVX2(products, squares *vec, size *vec, n int, s *vec, top float32)

//go:noescape
func gridRoundAVX2(digits *[lanes]int32, e *sums, size *vec, n int, a, s *vec, top float32)

//go:noescape
func gridSumsAVX512(products, squares *vec, size *vec, n int, s *vec, top float32)

//go:noescape
func gridRoundAVX512(digits *[lanes]int32, e *sums, size *vec, n int, a, s *vec, top float32)

//go:noescape
func assignAVX512(digits *[lanes]int32, e *sums, size *vec, n int, a *[maxFree]vec, planes int)

// alternateAVX512 does one step at least.
//
//go:noescape
func alternateAVX512(a *[maxFree]vec, gain *vec, size *vec, n, planes, steps int)

func gridSums(r, g *vec, size []vec, s *vec, top float32) {
	switch {
	case hasAVX512:
		gridSumsAVX512(r, g, &size[0], len(size), s, top)
	case hasAVX2:
		gridSumsAVX2(r, g, &size[0], len(size), s, top)
	default:
		gridSumsGo(r, g, size, s, top)
	}
}

func gridRound(digits [][lanes]int32, e *sums, size []vec, a, s *vec, top float32) {
	switch {
	case hasAVX512:
		gridRoundAVX512(&digits[:len(size)][0], e, &size[0], len(size), a, s, top)
	case hasAVX2:
		gridRoundAVX2(&digits[:len(size)][0], e, &size[0], len(size), a, s, top)
	default:
		gridRoundGo(digits, e, size, a, s, top)
	}
}

func assign(digits [][lanes]int32, e *sums, size []vec, a *[maxFree]vec, planes int) {
	if hasAVX512 {
		assignAVX512(&digits[:len(size)][0], e, &size[0], len(size), a, planes)
		return
	}
	assignGo(digits, e, size, a, planes)
}

func alternate(a *[maxFree]vec, gain *vec, size []vec, planes, steps int) {
	if hasAVX512 {
		alternateAVX512(a, gain, &size[0], len(size), planes, steps)
		return
	}
	alternateGo(a, gain, size, planes, steps)
}

//go:noescape
func spreadAVX512(size *vec, n int, most *vec, unit *[lanes]int32, w *float32)

//go:noescape
func gatherAVX512(codes *byte, digits *[lanes]int32, n int, w *float32, offset int)

func spread(size []vec, most *vec, unit *[lanes]int32, w []float32) {
	if hasAVX512 {
		spreadAVX512(&size[0], len(size), most, unit, &w[:lanes*len(size)][0])
		return
	}
	spreadGo(size, most, unit, w)
}

func gather(codes []byte, digits [][lanes]int32, w []float32, offset int) {
	if hasAVX512 {
		gatherAVX512(&codes[:lanes*len(digits)][0], &digits[0], len(digits), &w[:lanes*len(digits)][0], offset)
		return
	}
	gatherGo(codes, digits, w, offset)
}
