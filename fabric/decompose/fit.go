package decompose

// This file fits the factors of planes to blocks of weights.
//
// With k planes a weight w becomes one of 3^k levels, sum a_p t_p. Given the factors, the best level for each weight is the nearest. Given
// each weight's digits, the best factors solve a least-squares problem of k unknowns. Neither step makes the error larger. Where the planes
// share one factor, a_p = 3^p a, the levels are its multiples, the nearest is found by rounding, and the least-squares problem is one
// division.
//
// Either finds only a minimum near to where it began: several beginnings are tried.
//
// Sixteen blocks are fitted at once, each in a lane of vectors: a row has a weight of each. Only magnitudes count, as levels come in pairs of
// opposite signs. They are scaled by a power of two, so that the largest is near 1.

import (
	"math"

	"tensorcast/gguf/half"
)

const (
	maxPlanes = 6
	maxFree   = 4 // planes with a factor each
	lanes     = 16
)

// vec has a number of each block.
type vec [lanes]float32

// fitter fits groups of blocks. One goroutine uses it at a time.
type fitter struct {
	fit Fit
	top float32 // the largest integer of so many digits

	weights []float32 // of sixteen blocks, and
	codes   []byte    // what becomes of them, where they are not in one piece

	size   []vec          // the magnitudes of the blocks' weights, scaled
	digits [][lanes]int32 // the integers found for them
	most   vec            // the largest, scaled
	unit   [lanes]int32   // the exponents of the scales
}

func newFitter(fit Fit) *fitter {
	f := &fitter{fit: fit, size: make([]vec, fit.Block), digits: make([][lanes]int32, fit.Block)}
	f.weights, f.codes = make([]float32, lanes*fit.Block), make([]byte, lanes*fit.Block)
	for range fit.Planes {
		f.top = 3*f.top + 1
	}
	return f
}

// solve gives the factors of the blocks as halfs, and in digits the integer of each weight's magnitude.
func (f *fitter) solve(scales *[maxFree][lanes]uint16, errs *[lanes]Error) {
	var a [maxFree]vec
	var e sums
	planes := f.fit.Planes
	one := f.fit.Shared || planes == 1
	if one {
		a[0] = f.grid()
		planes = 1
	} else {
		a = f.alternate()
	}
	// What is stored are halfs: with these the digits are found.
	for p := range planes {
		for l, unit := range f.unit {
			unit := float32(math.Ldexp(1, int(unit)))
			scales[p][l] = scaleHalf(a[p][l] * unit)
			a[p][l] = half.Float32(scales[p][l]) / unit
		}
	}
	if one {
		var inverse vec
		for l, a := range a[0] {
			if a > 0 {
				inverse[l] = 1 / a
			}
		}
		gridRound(f.digits, &e, f.size, &a[0], &inverse, f.top)
	} else {
		assign(f.digits, &e, f.size, &a, planes)
	}
	for l, unit := range f.unit {
		errs[l] = Error{Signal: math.Ldexp(float64(e.power[l]), 2*int(unit)), Noise: math.Ldexp(float64(e.left[l]), 2*int(unit))}
	}
}

// grid gives the factors if planes share them. A few are tried, and then the best one for the integers that the best of them gives. With more
// levels the error has more minima.
func (f *fitter) grid() (a vec) {
	tries, again, low, high := 8, 1, float32(0.7), float32(1.05)
	switch {
	case f.fit.Planes == 1:
		again, low, high = 3, 0.35, 0.95
	case f.fit.Planes > 3:
		tries = 16
	}
	// The power that the levels explain is r r / g, with the factor r / g.
	var s, first, r, g, bestR, bestG vec
	for l, m := range f.most {
		if m > 0 {
			first[l] = f.top / m
		}
		bestG[l] = 1
	}
	for i := range tries + again {
		if i < tries {
			ratio := 1 / (low + (high-low)*float32(i)/float32(tries-1))
			for l, x := range first {
				s[l] = x * ratio
			}
		} else {
			for l, r := range bestR {
				if s[l] = 0; r > 0 {
					s[l] = bestG[l] / r
				}
			}
		}
		gridSums(&r, &g, f.size, &s, f.top)
		for l, x := range r {
			if x*x*bestG[l] > bestR[l]*bestR[l]*g[l] {
				bestR[l], bestG[l] = x, g[l]
			}
		}
	}
	for l, r := range bestR {
		a[l] = r / bestG[l]
	}
	return a
}

// starts are factors to begin with, relative to the largest magnitude: of 150 random ones, those that gave the least error together on normally
// distributed weights in blocks of 32.
var starts = [maxFree + 1][][maxFree]float32{
	2: {{.318, .651}, {.502, .505}},
	3: {{.128, .374, .487}, {.158, .288, .557}, {.077, .231, .692}},
	4: {{.025, .075, .225, .675}, {.090, .129, .187, .578}, {.070, .229, .332, .344}},
}

// Steps of alternating least squares: from each start, and then from where the best start has led.
const (
	firstSteps = 2
	moreSteps  = 4
)

// alternate gives a factor for each plane, in rising order.
func (f *fitter) alternate() [maxFree]vec {
	var best [maxFree]vec
	var most vec // of the gains: how much of the power the levels explain
	for _, start := range starts[f.fit.Planes] {
		var a [maxFree]vec
		var gain vec
		for p := range f.fit.Planes {
			for l, m := range f.most {
				a[p][l] = m * start[p]
			}
		}
		alternate(&a, &gain, f.size, f.fit.Planes, firstSteps)
		for l := range most {
			if gain[l] > most[l] {
				most[l] = gain[l]
				for p := range best {
					best[p][l] = a[p][l]
				}
			}
		}
	}
	alternate(&best, &most, f.size, f.fit.Planes, moreSteps)
	return best
}

// scaleHalf is the half nearest to a factor, which is not negative; what is beyond the largest half becomes the largest.
func scaleHalf(x float32) uint16 { return half.Round(min(x, 65504)) }
