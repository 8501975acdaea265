package hyper

// This file tests the predictions by theory.

import (
	"math"
	"testing"
)

// TestTransfer compares describeBundle to the enumeration of all trits of the other pairs.
func TestTransfer(t *testing.T) {
	for _, density := range []float64{1, .5, 1. / 64} {
		for n := 1; n <= 7; n++ {
			for threshold := range 3 {
				var mean, active, overall float64
				all := 1
				for range n {
					all *= 3
				}
				for code := range all {
					p, sum, first := 1.0, 0, 0
					for i, c := 0, code; i < n; i, c = i+1, c/3 {
						x := c%3 - 1
						if i == 0 {
							first = x
						}
						sum += x
						if x == 0 {
							p *= 1 - density
						} else {
							p *= density / 2
						}
					}
					s := 0
					if sum > threshold {
						s = 1
					} else if sum < -threshold {
						s = -1
					}
					mean += p * float64(s*first) / density
					active += p * float64(s*s*first*first) / density
					overall += p * float64(s*s)
				}
				gotMean, gotActive, gotOverall := describeBundle(n, density, threshold)
				if math.Abs(gotMean-mean)+math.Abs(gotActive-active)+math.Abs(gotOverall-overall) > 1e-12 {
					t.Errorf("density %v, %d pairs, threshold %d: %v, %v, %v, want %v, %v, %v",
						density, n, threshold, gotMean, gotActive, gotOverall, mean, active, overall)
				}
			}
		}
	}
	if mean, _, _ := describeBundle(1001, 1, 0); math.Abs(mean/math.Sqrt(2/(math.Pi*1001))-1) > 1e-3 {
		t.Errorf("the mean of a majority of 1001 is %v, want about %v", mean, math.Sqrt(2/(math.Pi*1001)))
	}
}

func TestBest(t *testing.T) {
	phi := func(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }
	for _, test := range []struct {
		mean, variance, other float64
		others                int
		want                  float64
	}{
		{3, 2, 5, 0, 1},
		{3, 2, 5, 1, phi(3 / math.Sqrt(7))},
		{-3, 2, 5, 1, phi(-3 / math.Sqrt(7))},
		{0, 4, 4, 99, .01}, // one of 100 equal scores
		{2, 0, 1, 10, math.Pow(phi(2), 10)},
	} {
		if got := probBest(test.mean, test.variance, test.other, test.others); math.Abs(got-test.want) > 1e-6 {
			t.Errorf("%+v: probBest = %v, want %v", test, got, test.want)
		}
	}
}

func TestFirst(t *testing.T) {
	// Three candidates, computed by hand: both others are below; one is equal; both are equal.
	const below, equal = .5, .2
	want := below*below + 2*below*equal/2 + equal*equal/3
	if got := probFirst(below, equal, 3); math.Abs(got-want) > 1e-12 {
		t.Errorf("probFirst = %v, want %v", got, want)
	}
	if got := probFirst(.5, 0, 3); got != .25 {
		t.Errorf("probFirst without ties = %v, want .25", got)
	}
}

// TestBlocksNormal checks that with many blocks the exact distribution is nearly the normal one.
func TestBlocksNormal(t *testing.T) {
	mean, active, overall := describeBundle(600, 1./BlockLength, 0)
	exact, normal := probBlocks(256, 600, 600), probBestOf(16384, 1./BlockLength, mean, active, overall, 599)
	if math.Abs(exact-normal) > .02 || exact < .5 || exact > .99 {
		t.Errorf("probBlocks = %v, want about %v, as of the normal distribution", exact, normal)
	}
}

func TestWalk(t *testing.T) {
	w := newWalk(2)
	w.step(.5, .25)
	w.step(.5, .25)
	for i, want := range []float64{.0625, .125, .3125, .25, .25} {
		if math.Abs(w[i]-want) > 1e-15 {
			t.Errorf("P(%d) = %v, want %v", i-2, w[i], want)
		}
	}
	sum, mean := 0.0, 0.0
	for k, p := range poisson(30) {
		sum, mean = sum+p, mean+float64(k)*p
	}
	if math.Abs(sum-1) > 1e-9 || math.Abs(mean-30) > 1e-6 {
		t.Errorf("poisson(30) has the sum %v, mean %v, want 1, 30", sum, mean)
	}
	if p := poisson(0); p[0] != 1 || p[1] > 1e-300 {
		t.Errorf("poisson(0) begins %v, want 1, 0", p[:2])
	}
}
