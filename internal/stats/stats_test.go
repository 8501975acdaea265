package stats

// This file tests quantiles, spreads and means of groups.

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func isNear(a, b, tolerance float64) bool { return math.Abs(a-b) <= tolerance }

// shuffled returns from, from+1, ... to, in some order.
func shuffled(from, to int) []float64 {
	values := make([]float64, 0, to-from+1)
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(to - from + 1) {
		values = append(values, float64(from+i))
	}
	return values
}

// The quantile q of 0, 1, ... n is q*n, in any order of the values.
func TestQuantileOfEvenSteps(t *testing.T) {
	for _, n := range []int{0, 1, 2, 9, 100} {
		values := shuffled(0, n)
		before := slices.Clone(values)
		for _, q := range []float64{0, 0.05, 0.25, 0.5, 0.77, 0.99, 1} {
			if got, want := Quantile(values, q), q*float64(n); !isNear(got, want, 1e-12) {
				t.Errorf("%v of 0 to %d: %v, want %v", q, n, got, want)
			}
		}
		if !slices.Equal(values, before) {
			t.Errorf("%v was changed to %v", before, values)
		}
	}
}

func TestQuantileEdges(t *testing.T) {
	for _, test := range []struct {
		values  []float64
		q, want float64
	}{
		{nil, 0.5, 0}, {[]float64{7}, 0.05, 7}, {[]float64{3, 1}, -1, 1}, {[]float64{3, 1}, 2, 3},
		{[]float64{2, 2, 2}, 0.3, 2}, {[]float64{10, 0}, 0.25, 2.5},
	} {
		if got := Quantile(test.values, test.q); got != test.want {
			t.Errorf("%v of %v: %v, want %v", test.q, test.values, got, test.want)
		}
	}
	if got, want := Median([]int64{1 << 50, 1<<50 + 1}), 1<<50+0.5; got != want {
		t.Errorf("median of integers: %v, want %v", got, want)
	}
	if got := Quantile([]float32{1, 2, 4}, 0.75); got != 3 {
		t.Errorf("quantile of float32: %v, want 3", got)
	}
	// A difference of unsigned integers would wrap around.
	if got, want := Median([]uint64{math.MaxUint64, 0}), math.MaxUint64/2.0; got != want {
		t.Errorf("median of unsigned integers: %v, want %v", got, want)
	}
}

// The wanted values come from R: quantile(1:200, 0.99, type = 1), and so on.
func TestEmpiricalQuantile(t *testing.T) {
	for _, test := range []struct {
		n       int
		q, want float64
	}{
		{200, 0.99, 198}, {200, 1, 200}, {200, 0, 1}, {100, 0.99, 99}, {50, 0.99, 50}, {1, 0.99, 1},
		{4, 0.5, 2}, {4, 0.51, 3}, {4, -1, 1}, {4, 2, 4},
	} {
		values := shuffled(1, test.n)
		before := slices.Clone(values)
		if got := EmpiricalQuantile(values, test.q); got != test.want {
			t.Errorf("%v of 1 to %d: %v, want %v", test.q, test.n, got, test.want)
		}
		if !slices.Equal(values, before) {
			t.Errorf("%v was changed to %v", before, values)
		}
	}
	if got := EmpiricalQuantile(nil, 0.5); got != 0 {
		t.Errorf("without values: %v, want 0", got)
	}
}

func TestMedianAndMAD(t *testing.T) {
	for _, test := range []struct {
		values      []float64
		median, mad float64
	}{{nil, 0, 0}, {[]float64{3}, 3, 0}, {[]float64{4, 1}, 2.5, 1.5}, {[]float64{5, 1, 2, 100, 4}, 4, 2}} {
		if m, d := Median(test.values), MAD(test.values); m != test.median || d != test.mad {
			t.Errorf("%v: median %v, MAD %v; want %v, %v", test.values, m, d, test.median, test.mad)
		}
	}
	// For the standard normal distribution the MAD is the quantile of 3/4.
	random, values := rand.New(rand.NewPCG(3, 4)), make([]float64, 100_000)
	for i := range values {
		values[i] = random.NormFloat64()
	}
	if got := MAD(values); !isNear(got, 0.6745, 0.01) {
		t.Errorf("MAD of a normal distribution: %v, want 0.6745", got)
	}
}

func TestDescribe(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{1, 3, 3, 3, 0}},
		{[]float64{4, 1}, Spread{2, 2.5, 1, 4, 1.5}},
		{[]float64{5, 1, 2, 100, 4}, Spread{5, 4, 1, 100, 2}},
	} {
		before := slices.Clone(test.values)
		got := Describe(test.values)
		if got != test.want || got.Range() != test.want.Max-test.want.Min {
			t.Errorf("%v: %+v, want %+v", test.values, got, test.want)
		}
		if !slices.Equal(before, test.values) {
			t.Errorf("%v was changed to %v", before, test.values)
		}
	}
}

func TestMeanOfGroups(t *testing.T) {
	for _, test := range []struct {
		values     []float64
		groups     int
		mean, want float64
	}{
		{[]float64{1, 3}, 1, 2, 0},
		{[]float64{1, 3}, 2, 2, 1},       // standard deviation sqrt(2), divided by sqrt(2)
		{[]float64{1, 1, 3, 3}, 2, 2, 1}, // repeating values within a group does not lower the error
		{[]float64{1, 3, 1, 3}, 2, 2, 0}, // differences within a group do not count
		{[]float64{1, 2, 3, 4}, 4, 2.5, math.Sqrt(5.0 / 3 / 4)},
		{[]float64{1, 2, 3}, 3, 2, 1 / math.Sqrt(3)},                     // standard deviation 1
		{[]float64{0, 4, 1, 3, 2, 2}, 3, 2, 0},                           // means are equal
		{[]float64{1, 1, 3, 3, 100}, 2, 2, 1},                            // one is left over
		{nil, 1, 0, 0}, {[]float64{1}, 2, 0, 0}, {[]float64{1}, 0, 0, 0}, // too few values
	} {
		mean, e := MeanOfGroups(test.values, test.groups)
		if !isNear(mean, test.mean, 1e-15) || !isNear(e, test.want, 1e-15) {
			t.Errorf("%v in %d groups: %g with error %g, want %g with %g",
				test.values, test.groups, mean, e, test.mean, test.want)
		}
	}
}
