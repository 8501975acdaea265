package decompose

// This file fits the factors of planes to blocks of weights.
//
// With k planes, a weight w is approximated by one of 3^k levels, sum a_p t_p. Given the factors a_p, the best level for each weight is the
// nearest. Given each weight's digits t_p, the best factors solve a least-squares problem with k unknowns. Both steps never increase the
// error, so they are alternated. If the planes share one factor, a_p = 3^p a, the levels are multiples of a: the nearest is found by
// rounding, and the least-squares problem is one division.
//
// This finds only a local minimum, so several starting points are tried.
//
// Sixteen blocks are fitted at a time, each in one lane of the vectors: a row holds one weight of each block. Only magnitudes are used,
// because levels come in pairs of opposite signs. They are scaled by a power of two such that the largest is near 1.

import (
	"math"

	"tensorcast/gguf/half"
)

const (
	maxPlanes = 6
	maxFree   = 4 // planes with a factor each
	lanes     = 16
)

// vec has one number per block.
type vec [lanes]float32

// fitter fits groups of blocks. It is for one goroutine at a time.
type fitter struct {
	fit Fit
	top float32 // the largest integer with this number of digits

	weights []float32 // weights of sixteen blocks, and
	codes   []byte    // the resulting codes, if they are not contiguous

	size   []vec          // magnitudes of the blocks' weights, scaled
	digits [][lanes]int32 // the integers found for them
	coarse [][lanes]int32 // and without their lowest digits; nil: nobody asked
	most   vec            // the largest magnitude, scaled
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

// solve computes the factors of the blocks as halfs, and in digits the integer for each weight's magnitude.
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
	// The factors are stored as halfs, so the digits are chosen for these.
	for p := range planes {
		for l, unit := range f.unit {
			unit := float32(power(unit))
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
		if f.coarse != nil {
			f.solveCoarse(scales, errs)
		}
	} else {
		assign(f.digits, &e, f.size, &a, planes)
	}
	for l, unit := range f.unit {
		scale := power(2 * unit)
		errs[l].Signal, errs[l].Noise = float64(e.power[l])*scale, float64(e.left[l])*scale
	}
}

// power is 2^n, of which n is that of a normal number.
func power(n int32) float64 { return math.Float64frombits(uint64(1023+n) << 52) }

// solveCoarse computes the errors without the lowest digits. Digits are balanced, so leaving out the lowest is rounding to the nearest multiple of three.
func (f *fitter) solveCoarse(scales *[maxFree][lanes]uint16, errs *[lanes]Error) {
	var a, inverse vec
	var e sums
	for l, unit := range f.unit {
		a[l] = half.Float32(half.Round(3*half.Float32(scales[0][l]))) / float32(power(unit))
		if a[l] > 0 {
			inverse[l] = 1 / a[l]
		}
	}
	gridRound(f.coarse, &e, f.size, &a, &inverse, (f.top-1)/3)
	for l, unit := range f.unit {
		errs[l].Coarser = float64(e.left[l]) * power(2*unit)
	}
}

// grid computes the factor if planes share one. It tries a few, and then the least-squares factor for the integers of the best one. With
// more levels, the error has more local minima.
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

// starts are initial factors, relative to the largest magnitude. They were chosen from 150 random ones as those that together gave the
// least error for normally distributed weights in blocks of 32.
var starts = [maxFree + 1][][maxFree]float32{
	2: {{.318, .651}, {.502, .505}},
	3: {{.128, .374, .487}, {.158, .288, .557}, {.077, .231, .692}},
	4: {{.025, .075, .225, .675}, {.090, .129, .187, .578}, {.070, .229, .332, .344}},
}

// Numbers of steps of alternating least squares: from each starting point, and then from the best result.
const (
	firstSteps = 2
	moreSteps  = 4
)

// alternate computes a factor for each plane, in ascending order.
func (f *fitter) alternate() [maxFree]vec {
	var best [maxFree]vec
	var most vec // the best gain, i.e. how much of the power the levels explain
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

// scaleHalf is the half nearest to a factor, which must not be negative. Larger values become the largest half.
func scaleHalf(x float32) uint16 { return half.Round(min(x, 65504)) }
