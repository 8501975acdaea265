// Package stats describes samples without assuming how they are distributed: quantiles, medians, spreads, and an estimate with a
// confidence interval.
//
// No function changes the values that it is given. None has an answer for NaN: a sample with one has an unspecified result. gonum's package
// stat does not replace this one: of the quantiles that are needed it has one (type 1), and neither a median nor a rank interval.
package stats

// This file describes one sample: quantiles, the median, how far values are from it, and means of groups.

import (
	"math"
	"slices"
)

// Number is what samples are made of.
type Number interface {
	~int | ~int32 | ~int64 | ~uint64 | ~float32 | ~float64
}

// Quantile is the value below which a share q of the sample lies, from 0 (its minimum) to 1 (its maximum); a q beyond is taken for the nearer
// of these. It interpolates linearly between the two nearest values: type 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages"
// (The American Statistician 50, 1996), the default of R and NumPy. It is 0 if there are no values.
//
// Computing is in float64: integers beyond 2^53 are rounded.
func Quantile[T Number](values []T, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return interpolate(slices.Sorted(slices.Values(values)), q)
}

// interpolate is Quantile of sorted values, of which there is at least one.
func interpolate[T Number](sorted []T, q float64) float64 {
	at := min(max(q, 0), 1) * float64(len(sorted)-1)
	i := int(at)
	low := float64(sorted[i])
	if i+1 == len(sorted) {
		return low
	}
	return low + (at-float64(i))*(float64(sorted[i+1])-low)
}

// EmpiricalQuantile is the least of the values that at least a share q of all do not exceed: the inverse of the empirical distribution function,
// type 1 of Hyndman and Fan. Unlike [Quantile] it is always one of the values, and its promise holds of samples of any size: at least the share q
// of them is not above it. It is 0 if there are none.
func EmpiricalQuantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	rank := int(math.Ceil(min(max(q, 0), 1) * float64(len(values))))
	return slices.Sorted(slices.Values(values))[max(rank, 1)-1]
}

// Median is the middle value, or the mean of the middle two: Quantile of 1/2. It is 0 if there are no values.
func Median[T Number](values []T) float64 { return Quantile(values, 0.5) }

// MAD is the median absolute deviation: the median distance from the median. Unlike the standard deviation it is moved little by one outlier.
// Of a normal distribution it is 0.6745 standard deviations; it is not scaled by that.
func MAD[T Number](values []T) float64 {
	centre, distances := Median(values), make([]float64, len(values))
	for i, v := range values {
		distances[i] = math.Abs(float64(v) - centre)
	}
	return Median(distances)
}

// Spread describes repeated measurements of one quantity, in its unit.
type Spread struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	MAD    float64 `json:"mad"` // median distance from the median
}

// Describe makes the Spread of a sample, all zero if there are no values.
func Describe(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	return Spread{N: len(values), Median: Median(values), Min: slices.Min(values), Max: slices.Max(values), MAD: MAD(values)}
}

// Range is Max - Min.
func (s Spread) Range() float64 { return s.Max - s.Min }

// MeanOfGroups is the mean of values that come in groups of equal size, one group after the other, and its standard error from how the groups' means
// differ: the sample standard deviation of these means over the square root of their number. That is for values that depend on each
// other within a group but not from group to group (batch means; in sampling: equally large clusters). The error is 0 if there is one group,
// which differs from nothing. Values that are left over after the last whole group do not count; if there are fewer values than groups, both
// results are 0.
func MeanOfGroups(values []float64, groups int) (mean, standardError float64) {
	if groups < 1 || len(values) < groups {
		return 0, 0
	}
	each := len(values) / groups
	means := make([]float64, groups)
	for k := range means {
		for _, v := range values[k*each : (k+1)*each] {
			means[k] += v / float64(each)
		}
		mean += means[k] / float64(groups)
	}
	if groups < 2 {
		return mean, 0
	}
	var squares float64
	for _, m := range means {
		squares += (m - mean) * (m - mean)
	}
	return mean, math.Sqrt(squares / float64(groups-1) / float64(groups))
}
