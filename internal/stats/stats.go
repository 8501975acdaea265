// Package stats describes samples without assumptions about their distribution: quantiles, medians,
// spreads ([Spread]), and an estimate with a confidence interval ([HodgesLehmann]). The instruments
// use it.
//
// No function changes its arguments. If a sample contains NaN, the result is unspecified. gonum's
// package stat would not suffice: it has only one of the needed kinds of quantile (type 1), and
// neither a median nor a rank-based interval.
package stats

// This file describes one sample: quantiles, the median, deviations from it, and means of groups.

import (
	"math"
	"slices"
)

// Number is the type of a sample's values.
type Number interface {
	~int | ~int32 | ~int64 | ~uint64 | ~float32 | ~float64
}

// Quantile is the value below which a share q of the sample lies: 0 gives the minimum, 1 the
// maximum, and values outside are clamped. It interpolates linearly between the two nearest values:
// type 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (The American Statistician
// 50, 1996), the default of R and NumPy. It is 0 if there are no values.
//
// It computes in float64, so integers beyond 2^53 are rounded.
func Quantile[T Number](values []T, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return interpolate(slices.Sorted(slices.Values(values)), q)
}

// interpolate is Quantile for sorted values, of which there must be at least one.
func interpolate[T Number](sorted []T, q float64) float64 {
	at := min(max(q, 0), 1) * float64(len(sorted)-1)
	i := int(at)
	low := float64(sorted[i])
	if i+1 == len(sorted) {
		return low
	}
	return low + (at-float64(i))*(float64(sorted[i+1])-low)
}

// EmpiricalQuantile is the smallest value for which at least a share q of the sample is less than
// or equal to it: the inverse of the empirical distribution function, type 1 of Hyndman and Fan.
// Unlike [Quantile] it is always one of the values, so this guarantee holds for samples of any
// size. It is 0 if there are no values.
func EmpiricalQuantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	rank := int(math.Ceil(min(max(q, 0), 1) * float64(len(values))))
	return slices.Sorted(slices.Values(values))[max(rank, 1)-1]
}

// Median is the middle value, or the mean of the middle two. It is 0 if there are no values.
func Median[T Number](values []T) float64 { return Quantile(values, 0.5) }

// MAD is the median absolute deviation: the median distance of the values from their median. Unlike
// the standard deviation it hardly changes with one outlier. For a normal distribution it is 0.6745
// standard deviations; it is not scaled to one.
func MAD[T Number](values []T) float64 {
	centre, distances := Median(values), make([]float64, len(values))
	for i, v := range values {
		distances[i] = math.Abs(float64(v) - centre)
	}
	return Median(distances)
}

// Spread describes repeated measurements of one quantity, in the unit of the quantity.
type Spread struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	MAD    float64 `json:"mad"` // median distance from the median
}

// Describe computes the Spread of a sample; it is zero if there are no values.
func Describe(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	return Spread{
		N: len(values), Median: Median(values),
		Min: slices.Min(values), Max: slices.Max(values), MAD: MAD(values),
	}
}

// Range is Max - Min.
func (s Spread) Range() float64 { return s.Max - s.Min }

// MeanOfGroups returns the mean of values that come in consecutive groups of equal size, and its
// standard error, estimated from the differences between the groups' means: their sample standard
// deviation divided by the square root of their number. It is for values that are correlated within
// a group but not between groups (batch means; in sampling, equally large clusters). The error is 0
// if there is only one group. Values left over after the last complete group are ignored; if there
// are fewer values than groups, both results are 0.
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
