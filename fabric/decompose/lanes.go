package decompose

// This file has the loops over the weights of sixteen blocks. The functions in lanes_amd64.s do the
// same operations in the same order, and never fuse a product with a sum. So all processors compute
// the same planes.

import "math"

// countUppers returns the number of combinations of the upper digits, i.e. those of all planes
// except the lowest. Combinations of negative integers are not counted.
func countUppers(planes int) int { return [...]int{2: 2, 3: 5, 4: 14}[planes] }

// upperDigits has the digits of these combinations, as float32. upperInts has the integers that
// they form with a lowest digit of 0.
var upperDigits, upperInts = func() (digits [maxFree - 1]vec, ints [lanes]int32) {
	for c := range countUppers(maxFree) {
		rest := c
		for p := range digits {
			digits[p][c] = float32(popDigit(&rest))
		}
		ints[c] = int32(3 * c)
	}
	return digits, ints
}()

// loadMagnitudesGo writes the magnitudes of the weights of sixteen consecutive blocks, w, to mags,
// one lane per block. It scales them by 2^-exponent such that the largest is below 4, and at least
// 1 unless it is subnormal. If a weight is not finite, largest is not finite either, and the rest
// is meaningless.
func loadMagnitudesGo(mags []vec, largest *vec, exponent *[lanes]int32, w []float32) {
	n := len(mags)
	for l := range lanes {
		block := w[l*n : (l+1)*n]
		var bits uint32
		for _, v := range block {
			bits = max(bits, math.Float32bits(v)&^(1<<31))
		}
		exponent[l] = min(int32(bits>>23)-127, 126)
		scale := math.Float32frombits(uint32(127-exponent[l]) << 23)
		for i, v := range block {
			mags[i][l] = abs(v) * scale
		}
		largest[l] = math.Float32frombits(bits) * scale
	}
}

// storeCodesGo computes codes from the integers of magnitudes, block by block like the weights in
// w. A code is the integer with the sign of its weight, plus offset.
func storeCodesGo(codes []byte, digits [][lanes]int32, w []float32, offset int) {
	n := len(digits)
	for l := range lanes {
		for i, v := range w[l*n : (l+1)*n] {
			s := int32(math.Float32bits(v)) >> 31
			codes[l*n+i] = byte(digits[i][l] ^ s - s + int32(offset))
		}
	}
}

// sumOnGridGo rounds magnitudes times s to integers of at most top. It sets r to the sum of the
// products of integers and magnitudes, and g to the sum of the squared integers.
func sumOnGridGo(r, g *vec, mags []vec, s *vec, top float32) {
	*r, *g = vec{}, vec{}
	for i := range mags {
		for l, v := range &mags[i] {
			q := roundToInteger(v, s[l], top)
			r[l] += float32(q * v)
			g[l] += float32(q * q)
		}
	}
}

// roundToInteger returns v*s rounded to an integer of at most top. v*s must not be negative.
func roundToInteger(v, s, top float32) float32 {
	return float32(int32(min(float32(v*s)+0.5, top)))
}

// sums has, for each block, the sum of the squared magnitudes (power) and of the squared errors (left).
type sums struct{ power, left vec }

// roundToGridGo computes the integers that sumOnGridGo uses, and the errors if they are multiples of a.
func roundToGridGo(digits [][lanes]int32, e *sums, mags []vec, a, s *vec, top float32) {
	*e = sums{}
	for i := range mags {
		for l, v := range &mags[i] {
			q := roundToInteger(v, s[l], top)
			digits[i][l] = int32(q)
			d := v - float32(q*a[l])
			e.left[l] += float32(d * d)
			e.power[l] += float32(v * v)
		}
	}
}

// nearestLevel finds the level nearest to v. It returns its combination of upper digits, its lowest
// digit, and the distance. levels has the levels of the combinations, and a0 is the factor of the
// lowest plane.
//
// The factors are ascending. Levels of negative integers are not considered. If factors are nearly
// equal, some of these are just above 0, but then another level is close to them.
func nearestLevel(v, a0 float32, levels []vec, l int) (c int, digit int32, e float32) {
	d := v
	e = min(v, abs(v-a0))
	for i := 1; i < len(levels); i++ {
		di := v - levels[i][l]
		if x := abs(di); min(x, abs(x-a0)) < e {
			c, d, e = i, di, min(x, abs(x-a0))
		}
	}
	if abs(d) > a0*0.5 {
		digit = 1
		if math.Signbit(float64(d)) {
			digit = -1
		}
	}
	return c, digit, e
}

func abs(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }

// upperLevels computes the levels of the combinations of upper digits.
func upperLevels(a *[maxFree]vec, planes int) (levels [lanes]vec) {
	for c := range countUppers(planes) {
		for l := range lanes {
			x := float32(upperDigits[0][c] * a[1][l])
			x += float32(upperDigits[1][c] * a[2][l])
			x += float32(upperDigits[2][c] * a[3][l])
			levels[c][l] = x
		}
	}
	return levels
}

// assignLevelsGo computes the integers of the levels nearest to the magnitudes, and the errors. The
// factors are ascending; those from planes on are 0.
func assignLevelsGo(digits [][lanes]int32, e *sums, mags []vec, a *[maxFree]vec, planes int) {
	levels := upperLevels(a, planes)
	*e = sums{}
	for i := range mags {
		for l, v := range &mags[i] {
			c, digit, d := nearestLevel(v, a[0][l], levels[:countUppers(planes)], l)
			digits[i][l] = upperInts[c] + digit
			e.left[l] += float32(d * d)
			e.power[l] += float32(v * v)
		}
	}
}

// improveFactorsGo does steps of alternating least squares. Each step finds the nearest levels with
// the old factors, and replaces the factors by the best ones for the digits of these levels. The
// factors are ascending, before and after; those from planes on are 0. gain is by how much the last
// factors reduce the sum of squares.
func improveFactorsGo(a *[maxFree]vec, gain *vec, mags []vec, planes, steps int) {
	for range steps {
		levels := upperLevels(a, planes)
		for l := range lanes {
			var r [maxFree]float32
			var g [maxFree][maxFree]float32
			for i := range mags {
				v := mags[i][l]
				c, digit, _ := nearestLevel(v, a[0][l], levels[:countUppers(planes)], l)
				t := [maxFree]float32{float32(digit), upperDigits[0][c], upperDigits[1][c], upperDigits[2][c]}
				for p := range planes {
					r[p] += float32(t[p] * v)
					for q := range p + 1 {
						g[p][q] += float32(t[p] * t[q])
					}
				}
			}
			x := solveLeastSquares(&g, &r, &gain[l])
			for p := range x {
				x[p] = abs(x[p])
			}
			sortAscending(x[:planes])
			for p, v := range x {
				a[p][l] = v
			}
		}
	}
}

// solveLeastSquares solves g a = r, where only the lower half of g is given. A plane that no weight
// needs, or that depends on others, gets the factor 0. Such a plane is recognised by its pivot,
// which is below 2^-10 of its diagonal element. The pivots of other planes are larger, as g
// consists of small integers.
func solveLeastSquares(g *[maxFree][maxFree]float32, r *[maxFree]float32, gain *float32) (a [maxFree]float32) {
	var least, inverse [maxFree]float32
	for p := range least {
		least[p] = g[p][p] * 0x1p-10
	}
	*gain = 0
	for p := range maxFree {
		if g[p][p] > least[p] {
			inverse[p] = 1 / g[p][p]
		}
		*gain += float32(float32(r[p]*r[p]) * inverse[p])
		for i := p + 1; i < maxFree; i++ {
			m := float32(g[i][p] * inverse[p])
			for j := p + 1; j <= i; j++ {
				g[i][j] -= float32(m * g[j][p])
			}
			r[i] -= float32(m * r[p])
		}
	}
	for p := maxFree - 1; p >= 0; p-- {
		x := r[p]
		for i := p + 1; i < maxFree; i++ {
			x -= float32(g[i][p] * a[i])
		}
		a[p] = float32(x * inverse[p])
	}
	return a
}

// sortAscending sorts two to four numbers.
func sortAscending(x []float32) {
	order := func(i, j int) { x[i], x[j] = min(x[i], x[j]), max(x[i], x[j]) }
	order(0, 1)
	if len(x) == 4 {
		order(2, 3)
		order(0, 2)
		order(1, 3)
	}
	if len(x) > 2 {
		order(1, 2)
	}
	if len(x) == 3 {
		order(0, 1)
	}
}
