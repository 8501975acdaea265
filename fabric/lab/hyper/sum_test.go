package hyper

// This file tests sums and their ternary forms.

import (
	"math"
	"slices"
	"testing"
)

func TestSum(t *testing.T) {
	const d = 192
	rng := newRand(11)
	s, want := NewSum(d), make([]int32, d)
	var added []Vector
	var weights []int32
	for range 50 {
		v, weight := sparse(d, rng.IntN(d+1), rng), int32(rng.IntN(9)-4)
		s.Add(v, weight)
		for i := range want {
			want[i] += weight * int32(v.At(i))
		}
		added, weights = append(added, v), append(weights, weight)
	}
	if !slices.Equal(s.Counts, want) {
		t.Fatalf("counts %v, want %v", s.Counts, want)
	}
	for _, threshold := range []int32{0, 1, 7, 1000} {
		v := dense(d, rng)
		s.Ternary(v, threshold)
		for i, c := range want {
			var trit int8
			if c > threshold {
				trit = 1
			} else if c < -threshold {
				trit = -1
			}
			if v.At(i) != trit {
				t.Fatalf("count %d with threshold %d gives the trit %d, want %d", c, threshold, v.At(i), trit)
			}
		}
	}
	for i, v := range added {
		s.Add(v, -weights[i])
	}
	if slices.ContainsFunc(s.Counts, func(c int32) bool { return c != 0 }) {
		t.Errorf("after removing all vectors the counts are %v, want 0", s.Counts)
	}
}

// TestDistributive checks that binding or permuting a sum gives the sum of the bound or permuted
// vectors.
func TestDistributive(t *testing.T) {
	const d, n = 256, 21
	rng := newRand(12)
	key := dense(d, rng)
	plain, bound, turned := NewSum(d), NewSum(d), NewSum(d)
	for range n {
		v := sparse(d, 100, rng)
		plain.Add(v, 1)
		bound.Add(product(v, key), 1)
		turned.Add(permuted(v, 9), 1)
	}
	for i, c := range plain.Counts {
		if bound.Counts[i] != c*int32(key.At(i)) || turned.Counts[(i+9)%d] != c {
			t.Fatalf("count %d is %d: bound with %d it is %d, permuted %d, want %d and %d",
				i, c, key.At(i), bound.Counts[i], turned.Counts[(i+9)%d], c*int32(key.At(i)), c)
		}
	}
	// This holds for the ternary form of a bundle, too.
	a, b := New(d), New(d)
	plain.Ternary(a, 3)
	bound.Ternary(b, 3)
	if !equal(product(a, key), b) {
		t.Error("the ternary form of the bound sum differs from the bound ternary form")
	}
}

func TestThreshold(t *testing.T) {
	const d = 4096
	rng := newRand(13)
	s, v := NewSum(d), New(d)
	for range 63 {
		s.Add(dense(d, rng), 1)
	}
	left := func(threshold int32) float64 {
		s.Ternary(v, threshold)
		return float64(Dot(v, v)) / d
	}
	for _, density := range []float64{0, .02, .1, 1. / 3, .5, .999, 1} {
		got := s.Threshold(density)
		if left(got) > density || got > 0 && left(got-1) <= density {
			t.Errorf("density %v: threshold %d leaves %v, one less leaves %v, want the least that leaves at most %v",
				density, got, left(got), left(got-1), density)
		}
	}
	if got := NewSum(64).Threshold(0); got != 0 {
		t.Errorf("the threshold of zeros is %d, want 0", got)
	}
}

// TestRounding checks the correlation of one trit with normally distributed counts. It is
// sqrt(2/pi) for the majority, and 2 phi(t) / sqrt(2 Q(t)) = 0.900 for the best threshold t = 0.61.
func TestRounding(t *testing.T) {
	const d, n = 1 << 16, 101
	rng := newRand(14)
	s, v := NewSum(d), New(d)
	for range n {
		Random(v, rng)
		s.Add(v, 1)
	}
	power := 0.0
	for _, c := range s.Counts {
		power += float64(c) * float64(c)
	}
	for _, test := range []struct {
		threshold int32
		want      float64
	}{{0, .798}, {6, .900}} {
		s.Ternary(v, test.threshold)
		dot := 0.0
		for i, c := range s.Counts {
			dot += float64(c) * float64(v.At(i))
		}
		if got := dot / math.Sqrt(power*float64(Dot(v, v))); math.Abs(got-test.want) > .01 {
			t.Errorf("threshold %d: correlation %.4f, want %v", test.threshold, got, test.want)
		}
	}
}

func TestDigits(t *testing.T) {
	s := NewSum(256)
	for i := range s.Counts {
		s.Counts[i] = int32(i - 121)
	}
	digits := func(n int) []Vector {
		d := make([]Vector, n)
		for i := range d {
			d[i] = dense(256, newRand(1)) // old trits must have no influence
		}
		return d
	}
	if s.Digits(digits(5)) { // 5 digits reach to 121
		t.Error("Digits = true for 5 digits and counts up to 134, want false")
	}
	six := digits(6)
	if !s.Digits(six) {
		t.Error("Digits = false for 6 digits and counts up to 134, want true")
	}
	for i, want := range s.Counts {
		got := int32(0)
		for p := 5; p >= 0; p-- {
			got = 3*got + int32(six[p].At(i))
		}
		if got != want {
			t.Errorf("the digits have the value %d, want %d", got, want)
		}
	}
	for i := range s.Counts {
		s.Counts[i] = min(s.Counts[i], 121)
	}
	if !s.Digits(digits(5)) {
		t.Error("Digits = false for 5 digits and counts from -121 to 121, want true")
	}
}
