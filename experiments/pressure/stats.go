package pressure

// This file has the statistics of a few repeats: median and spread, which one outlier does not move far.

import (
	"math"
	"slices"
)

// Spread describes repeated measurements of one quantity.
type Spread struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	MAD    float64 `json:"mad"` // median distance from the median
}

func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	s := Spread{N: len(values), Median: quantile(values, 0.5), Min: slices.Min(values), Max: slices.Max(values)}
	distances := make([]float64, len(values))
	for i, v := range values {
		distances[i] = math.Abs(v - s.Median)
	}
	s.MAD = quantile(distances, 0.5)
	return s
}

// Range is max - min.
func (s Spread) Range() float64 { return s.Max - s.Min }

// quantile interpolates between the two nearest of the sorted values, as NumPy and R do by default. It returns 0 if there are none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}
