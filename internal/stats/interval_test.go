package stats

// This file tests intervals against published tables and simulated samples.

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// The published table of the signed-rank distribution says for n = 9: P(T <= 5) is 0.0195 and P(T
// <= 6) is 0.0273. For n = 20: P(T <= 52) is 0.0242 and P(T <= 53) is 0.0266. For n = 6 the least
// probability is 1/64.
func TestSignedRankQuantile(t *testing.T) {
	for _, test := range []struct {
		n     int
		p     float64
		want  int
		below float64
	}{
		{6, 0.025, 1, 1. / 64}, {9, 0.025, 6, 0.0195}, {9, 0.0274, 7, 0.0273}, {20, 0.025, 53, 0.0242},
		{20, 0.0267, 54, 0.0266}, {4, 0.025, 1, 1. / 16}, {1, 0.025, 1, 0.5},
	} {
		got, below := signedRankQuantile(test.n, test.p)
		if got != test.want || !isNear(below, test.below, 5e-5) {
			t.Errorf("n = %d, p = %v: %d with probability %v below, want %d with %v",
				test.n, test.p, got, below, test.want, test.below)
		}
	}
}

// Hollander and Wolfe's depression scale factors (their table 3.1). They give the estimate as -0.46
// and the interval as (-0.786, -0.010).
func TestHodgesLehmannPublished(t *testing.T) {
	before := []float64{1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30}
	after := []float64{0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29}
	x := make([]float64, len(before))
	for i := range x {
		x[i] = after[i] - before[i]
	}
	kept := slices.Clone(x)
	got := HodgesLehmann(x)
	for _, v := range []struct{ got, want, tolerance float64 }{
		{got.Estimate, -0.46, 5e-4}, {got.Low, -0.786, 5e-4}, {got.High, -0.010, 5e-4}, {got.Level, 1 - 2*0.0195, 1e-4},
	} {
		if !isNear(v.got, v.want, v.tolerance) {
			t.Errorf("%+v, want -0.46 in -0.786 to -0.010 at 0.961", got)
		}
	}
	if !slices.Equal(x, kept) {
		t.Error("the sample was changed")
	}
}

// The interval of a few values reaches from the least to the greatest of them, at the level 1 -
// 2^(1-n).
func TestHodgesLehmannOfFew(t *testing.T) {
	if got := HodgesLehmann(nil); got != (Interval{}) || got.Holds() {
		t.Errorf("without values: %+v, want zero", got)
	}
	for n := 1; n <= 7; n++ {
		values := shuffled(1, n)
		got := HodgesLehmann(values)
		want := Interval{Estimate: float64(n+1) / 2, Low: 1, High: float64(n), Level: 1 - math.Pow(2, float64(1-n))}
		if n == 7 { // P(T < 3) = 3/128 is still less than 0.025, so the end is the third of 1, 1.5, 2, 2, ...
			want.Low, want.High, want.Level = 2, 6, 1-6./128
		}
		if got != want || got.Holds() != (n >= 6) {
			t.Errorf("of %v: %+v, want %+v", values, got, want)
		}
	}
}

// Intervals of samples of two symmetric distributions contain the centre as often as they claim.
func TestHodgesLehmannContainsTheCentre(t *testing.T) {
	const samples, centre = 2000, 3.
	random := rand.New(rand.NewPCG(5, 6))
	for _, from := range []struct {
		name string
		draw func() float64
	}{
		{"normal", random.NormFloat64},
		{"laplace", func() float64 { return random.ExpFloat64() - random.ExpFloat64() }},
	} {
		contained, level := 0, 0.
		for range samples {
			x := make([]float64, 12)
			for i := range x {
				x[i] = centre + from.draw()
			}
			got := HodgesLehmann(x)
			level = got.Level
			if got.Low <= centre && centre <= got.High {
				contained++
			}
		}
		// 0.02 is four standard errors of a share of 2000.
		if share := float64(contained) / samples; math.Abs(share-level) > 0.02 || level < Confidence {
			t.Errorf("%s: %.1f %% of the intervals contain the centre, want %.1f %%",
				from.name, 100*share, 100*level)
		}
	}
}

func TestMap(t *testing.T) {
	i := Interval{Estimate: 2, Low: 1, High: 4, Level: 0.96}
	for name, test := range map[string]struct {
		f    func(float64) float64
		want Interval
	}{
		"rising":  {func(v float64) float64 { return 10 * v }, Interval{20, 10, 40, 0.96}},
		"falling": {func(v float64) float64 { return -v }, Interval{-2, -4, -1, 0.96}},
	} {
		if got := i.Map(test.f); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}
