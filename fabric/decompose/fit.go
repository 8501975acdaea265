package decompose

// This file fits the factors of planes to blocks of weights.
//
// With k planes, a weight w is approximated by one of 3^k levels, which are the sums of a_p t_p
// over the planes. Given the factors a_p, the best level for each weight is the nearest. Given the
// digits t_p of each weight, the best factors solve a least-squares problem with k unknowns.
// Neither step increases the error, so the two are alternated. If the planes share one factor, i.e.
// a_p = 3^p a, the levels are multiples of a. Then the nearest level is found by rounding, and the
// least-squares problem is one division.
//
// This finds only a local minimum, so several starting points are tried.
//
// Sixteen blocks are fitted at a time, one in each lane of the vectors: a row has one weight of
// each block. Only magnitudes are used, because levels come in pairs of opposite signs. They are
// scaled by a power of two such that the largest is near 1.

import (
	"math"

	"tensorcast/gguf/half"
)

const (
	maxPlanes = 6
	maxFree   = 4 // the largest number of planes that have a factor each
	lanes     = 16
)

// vec has one number per block.
type vec [lanes]float32

// fitter fits groups of blocks. It is for one goroutine at a time.
type fitter struct {
	fit Fit
	top float32 // the largest integer with this number of digits

	// The weights of sixteen blocks and the resulting codes, if they are not contiguous in the
	// caller's slices.
	weights []float32
	codes   []byte

	mags     []vec          // magnitudes of the blocks' weights, times 2^-exponent
	largest  vec            // the largest of these magnitudes
	exponent [lanes]int32   // the exponents by which magnitudes are scaled
	digits   [][lanes]int32 // the integers found for the magnitudes
	coarse   [][lanes]int32 // the integers without their lowest digits; nil if Options.Coarser is not set
}

func newFitter(fit Fit) *fitter {
	f := &fitter{fit: fit, mags: make([]vec, fit.Block), digits: make([][lanes]int32, fit.Block)}
	f.weights, f.codes = make([]float32, lanes*fit.Block), make([]byte, lanes*fit.Block)
	for range fit.Planes {
		f.top = 3*f.top + 1
	}
	return f
}

// solve computes the factors of the blocks as halfs, and their errors. It writes the integer for
// each weight's magnitude to f.digits.
func (f *fitter) solve(scales *[maxFree][lanes]uint16, errs *[lanes]FitError) {
	var a [maxFree]vec
	var e sums
	planes := f.fit.Planes
	shared := f.fit.Shared || planes == 1
	if shared {
		a[0] = f.fitSharedFactor()
		planes = 1
	} else {
		a = f.fitFreeFactors()
	}
	// The factors are stored as halfs, so the digits are chosen for the rounded factors.
	for p := range planes {
		for l, exponent := range f.exponent {
			unit := float32(pow2(exponent))
			scales[p][l] = roundScale(a[p][l] * unit)
			a[p][l] = half.Float32(scales[p][l]) / unit
		}
	}
	if shared {
		var inverse vec
		for l, a := range a[0] {
			if a > 0 {
				inverse[l] = 1 / a
			}
		}
		roundToGrid(f.digits, &e, f.mags, &a[0], &inverse, f.top)
		if f.coarse != nil {
			f.solveCoarse(scales, errs)
		}
	} else {
		assignLevels(f.digits, &e, f.mags, &a, planes)
	}
	for l, exponent := range f.exponent {
		scale := pow2(2 * exponent)
		errs[l].Signal, errs[l].Noise = float64(e.power[l])*scale, float64(e.left[l])*scale
	}
}

// pow2 returns 2^n, where n is the exponent of a normal number.
func pow2(n int32) float64 { return math.Float64frombits(uint64(1023+n) << 52) }

// solveCoarse computes the errors without the lowest digits. Digits are balanced, so dropping the
// lowest one rounds to the nearest multiple of three.
func (f *fitter) solveCoarse(scales *[maxFree][lanes]uint16, errs *[lanes]FitError) {
	var a, inverse vec
	var e sums
	for l, exponent := range f.exponent {
		a[l] = half.Float32(half.Round(3*half.Float32(scales[0][l]))) / float32(pow2(exponent))
		if a[l] > 0 {
			inverse[l] = 1 / a[l]
		}
	}
	roundToGrid(f.coarse, &e, f.mags, &a, &inverse, (f.top-1)/3)
	for l, exponent := range f.exponent {
		errs[l].Coarser = float64(e.left[l]) * pow2(2*exponent)
	}
}

// fitSharedFactor computes the factor if planes share one. It tries a few factors, and then the
// least-squares factor for the integers of the best one. With more levels, the error has more local
// minima, so more factors are tried.
func (f *fitter) fitSharedFactor() (a vec) {
	tries, refinements, low, high := 8, 1, float32(0.7), float32(1.05)
	switch {
	case f.fit.Planes == 1:
		refinements, low, high = 3, 0.35, 0.95
	case f.fit.Planes > 3:
		tries = 16
	}
	// r is the sum of the products of integers and magnitudes, g the sum of the squared integers.
	// With the least-squares factor r / g, the levels explain r r / g of the sum of squares.
	var s, first, r, g, bestR, bestG vec
	for l, m := range f.largest {
		if m > 0 {
			first[l] = f.top / m
		}
		bestG[l] = 1
	}
	for i := range tries + refinements {
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
		sumOnGrid(&r, &g, f.mags, &s, f.top)
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

// starts are initial factors by number of planes, relative to the largest magnitude. They were
// chosen from 150 random ones: together they gave the least error for normally distributed weights
// in blocks of 32.
var starts = [maxFree + 1][][maxFree]float32{
	2: {{.318, .651}, {.502, .505}},
	3: {{.128, .374, .487}, {.158, .288, .557}, {.077, .231, .692}},
	4: {{.025, .075, .225, .675}, {.090, .129, .187, .578}, {.070, .229, .332, .344}},
}

// The numbers of steps of alternating least squares: firstSteps from each starting point, and then
// moreSteps from the best result.
const (
	firstSteps = 2
	moreSteps  = 4
)

// fitFreeFactors computes a factor for each plane, in ascending order.
func (f *fitter) fitFreeFactors() [maxFree]vec {
	var best [maxFree]vec
	var bestGain vec // how much of the sum of squares the levels of best explain
	for _, start := range starts[f.fit.Planes] {
		var a [maxFree]vec
		var gain vec
		for p := range f.fit.Planes {
			for l, m := range f.largest {
				a[p][l] = m * start[p]
			}
		}
		improveFactors(&a, &gain, f.mags, f.fit.Planes, firstSteps)
		for l := range bestGain {
			if gain[l] > bestGain[l] {
				bestGain[l] = gain[l]
				for p := range best {
					best[p][l] = a[p][l]
				}
			}
		}
	}
	improveFactors(&best, &bestGain, f.mags, f.fit.Planes, moreSteps)
	return best
}

// roundScale returns the half nearest to a factor, which must not be negative. Too large values
// become the largest half.
func roundScale(x float32) uint16 { return half.Round(min(x, 65504)) }
