package hyper

// This file implements bundles: exact sums of vectors, and their ternary forms.

import "math/bits"

// Sum is a sum of vectors: a count per position. It is exact as long as fewer than 2^31 vectors are
// added.
type Sum struct{ Counts []int32 }

// NewSum returns the sum of no vectors, for vectors of d trits. It panics unless d is a positive
// multiple of 64.
func NewSum(d int) *Sum { return &Sum{make([]int32, New(d).Dim())} }

// Add adds v times weight. A negative weight removes what was added.
func (s *Sum) Add(v Vector, weight int32) {
	s.checkDimension(v)
	for w := range v.Plus {
		counts := s.Counts[64*w:][:64]
		for p := v.Plus[w]; p != 0; p &= p - 1 {
			counts[bits.TrailingZeros64(p)&63] += weight
		}
		for m := v.Minus[w]; m != 0; m &= m - 1 {
			counts[bits.TrailingZeros64(m)&63] -= weight
		}
	}
}

// checkDimension panics if v does not have the sum's dimension.
func (s *Sum) checkDimension(v Vector) {
	v.checkDimensions()
	if v.Dim() != len(s.Counts) {
		panic("hyper: a vector and a sum of different dimensions")
	}
}

// Ternary sets dst to the signs of those counts whose magnitude is above threshold, and to 0
// elsewhere. threshold must not be negative. 0 gives the majority, with 0 for ties. A threshold of
// about 0.6 standard deviations of the counts preserves most. Its correlation with the counts is
// 0.90, compared to sqrt(2/pi) = 0.80 for the majority (both for normally distributed counts).
func (s *Sum) Ternary(dst Vector, threshold int32) {
	s.checkDimension(dst)
	for w := range dst.Plus {
		dst.Plus[w], dst.Minus[w] = s.ternaryWord(w, threshold)
	}
}

// ternaryWord returns the ternary form of counts 64w to 64w+63.
func (s *Sum) ternaryWord(w int, threshold int32) (plus, minus uint64) {
	const sign = 1 << 31
	for _, c := range s.Counts[64*w:][:64] { // shifting by a variable would be slower
		plus = plus>>1 | uint64(uint32(threshold-c)&sign)<<32
		minus = minus>>1 | uint64(uint32(c+threshold)&sign)<<32
	}
	return plus, minus
}

// Threshold returns the least threshold with which at most the given share of trits is not 0.
func (s *Sum) Threshold(density float64) int32 {
	largest := int32(0)
	for _, c := range s.Counts {
		largest = max(largest, c, -c)
	}
	histogram := make([]int, largest+1)
	for _, c := range s.Counts {
		histogram[max(c, -c)]++
	}
	limit := density * float64(len(s.Counts))
	beyond := 0
	for t := largest; t > 0; t-- {
		if beyond += histogram[t]; float64(beyond) > limit {
			return t
		}
	}
	return 0
}

// Digits sets dst to the balanced-ternary digits of the counts: count = sum of 3^p dst[p]. It
// reports whether there were enough digits. k digits reach (3^k - 1)/2. If all digits are its
// query, a Memory scores the exact sum, without the loss of rounding to one trit.
func (s *Sum) Digits(dst []Vector) bool {
	for _, v := range dst {
		s.checkDimension(v)
		clear(v.Plus)
		clear(v.Minus)
	}
	rest := int32(0)
	for i, c := range s.Counts {
		for p := 0; p < len(dst) && c != 0; p++ {
			t := c % 3 // -2 to 2; 2 is 3 - 1
			if t == 2 || t == -2 {
				t /= -2
			}
			dst[p].Set(i, int8(t))
			c = (c - t) / 3
		}
		rest |= c
	}
	return rest == 0
}
