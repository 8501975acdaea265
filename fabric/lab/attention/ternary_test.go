package attention

// This file tests the quantiser, the rotation and the search for thresholds.

import (
	"math"
	"math/rand/v2"
	"testing"

	"tensorcast/internal/vec"
)

// readInteger returns element i of what ternarise wrote, in steps.
func readInteger(plus, minus [][]uint64, i int) int {
	v, power := 0, 1
	for p := range plus {
		v += power * (int(plus[p][i/64]>>(i%64)&1) - int(minus[p][i/64]>>(i%64)&1))
		power *= 3
	}
	return v
}

// TestTernarise checks that the nearest integer in the range is written, that the scale is the best
// for these integers, and that the residual is the squared error.
func TestTernarise(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for digits := 1; digits <= maxPlanes; digits++ {
		// In dB, of the best uniform quantisers with 3, 9 and 27 levels, by integration.
		want := []float64{1: 7.21, 2: 15.13, 3: 23.29}[digits]
		for _, words := range []int{1, 2, 64} {
			plus, minus := newPlanes(digits, words), newPlanes(digits, words)
			x := make([]float32, 64*words)
			for i := range x {
				x[i] = float32(rng.NormFloat64()) * 1e3
			}
			scale, residual := ternarise(plus, minus, x)
			var square, product, integers, failure float64
			for i, v := range x {
				n := float64(readInteger(plus, minus, i))
				if plus[0][i/64]&minus[0][i/64] != 0 {
					t.Fatal("a digit is both +1 and -1")
				}
				square += float64(v) * float64(v)
				product += float64(v) * n
				integers += n * n
				failure += (float64(v) - float64(scale)*n) * (float64(v) - float64(scale)*n)
			}
			step := float64(stepSizes[digits]) * math.Sqrt(square/float64(len(x)))
			limit := (math.Pow(3, float64(digits)) - 1) / 2
			for i, v := range x {
				exact := min(max(float64(v)/step, -limit), limit)
				if n := float64(readInteger(plus, minus, i)); math.Abs(n-exact) > 0.5001 {
					t.Fatalf("%d digits: %v is written as %v steps, want about %v", digits, v, n, exact)
				}
			}
			if best := product / integers; math.Abs(float64(scale)/best-1) > 1e-5 {
				t.Errorf("%d digits: scale %v, want the best, %v", digits, scale, best)
			}
			if math.Abs(float64(residual)-failure) > 1e-5*square {
				t.Errorf("%d digits: residual %v, want the squared error, %v", digits, residual, failure)
			}
			if snr := 10 * math.Log10(square/failure); words == 64 && math.Abs(snr-want) > 0.5 {
				t.Errorf("%d digits: %.1f dB, want %.1f", digits, snr, want)
			}
		}
	}
}

func TestTernariseSpecial(t *testing.T) {
	for name, test := range map[string]struct{ first, others float32 }{
		"zeros": {0, 0}, "one element": {1, 0}, "huge": {3e38, 3e38}, "infinite": {float32(math.Inf(1)), 1},
		"NaN": {float32(math.NaN()), 1},
	} {
		plus, minus := newPlanes(2, 1), newPlanes(2, 1)
		x := make([]float32, 64)
		for i := range x {
			x[i] = test.others
		}
		x[0] = test.first
		scale, residual := ternarise(plus, minus, x)
		norm := vec.Dot(x, x)
		switch name {
		case "one element": // far beyond the range: 4 steps, with a scale that fits
			if readInteger(plus, minus, 0) != 4 || scale != 0.25 || residual != 0 {
				t.Errorf("%s: integer %d, scale %v, residual %v, want 4, 0.25, 0",
					name, readInteger(plus, minus, 0), scale, residual)
			}
		default:
			if scale != 0 || residual != norm && norm == norm || readInteger(plus, minus, 0) != 0 {
				t.Errorf("%s: integer %d, scale %v, residual %v, want 0, 0, %v",
					name, readInteger(plus, minus, 0), scale, residual, norm)
			}
		}
	}
}

func TestRotation(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for d, width := range map[int]int{1: 64, 64: 64, 65: 128, 80: 128, 128: 128, 200: 256} {
		r := newRotation(d)
		a, b, ra, rb := make([]float32, d), make([]float32, d), make([]float32, width), make([]float32, width)
		if len(r.signs) != width {
			t.Fatalf("%d elements become %d, want %d", d, len(r.signs), width)
		}
		for i := range a {
			a[i], b[i] = float32(rng.NormFloat64()), float32(rng.NormFloat64())
		}
		r.apply(ra, a)
		r.apply(rb, b)
		norm := math.Sqrt(float64(vec.Dot(a, a)) * float64(vec.Dot(b, b)))
		if e := math.Abs(float64(vec.Dot(a, b)-vec.Dot(ra, rb))) / norm; e > 1e-6 {
			t.Errorf("%d elements: the rotation changes a product by %v of the norms, want at most 1e-6", d, e)
		}
		// A single element is spread evenly.
		clear(a)
		a[d-1] = 1
		r.apply(ra, a)
		for i, x := range ra {
			if math.Abs(math.Abs(float64(x))*math.Sqrt(float64(width))-1) > 1e-6 {
				t.Fatalf("%d elements: element %d of a rotated unit vector is %v, want +-%v",
					d, i, x, 1/math.Sqrt(float64(width)))
			}
		}
	}
}

func TestThresholds(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	weights := make([]float32, 1000)
	for i := range weights {
		weights[i] = float32(math.Exp(10 * rng.NormFloat64()))
	}
	weights[7] = 0
	for _, n := range []int{0, 1, 16, 100, 500, 998, 999, 1000, 5000} {
		got := vec.CountAtLeast(weights, thresholdForCount(weights, n))
		if want := min(n, 999); got > want || got < want-n/16 {
			t.Errorf("%d weights reach the threshold, want %d to %d", got, want-n/16, want)
		}
	}
	for i := range weights {
		weights[i] = float32(math.Exp(rng.NormFloat64()))
	}
	all := vec.SumBelow(weights, float32(math.Inf(1)))
	for _, share := range []float64{0, 0.01, 0.1, 0.5} {
		below := vec.SumBelow(weights, thresholdForMass(weights, 1e-30, share*all))
		if below > share*all || below < 0.8*share*all {
			t.Errorf("%v of the sum is below the threshold, want at most %v, and at least 0.8 times that",
				below/all, share)
		}
	}
	if got := thresholdForMass(weights, 1, 0); got != 1 {
		t.Errorf("thresholdForMass for no mass = %v, want the lower limit 1", got)
	}
	for _, equal := range []float32{0, 1} {
		for i := range weights {
			weights[i] = equal
		}
		if got := vec.CountAtLeast(weights, thresholdForCount(weights, 10)); got != 0 {
			t.Errorf("%d of many equal weights reach the threshold for 10, want 0", got)
		}
	}
}
