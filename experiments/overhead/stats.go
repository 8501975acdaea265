package overhead

// This file estimates a shift from paired differences without assuming how they are distributed.

import (
	"math"
	"slices"
)

// Confidence is that of every interval: two-sided, so that each of its ends is a bound of 97.5 %.
const Confidence = 0.95

// Interval is an estimate with the interval that contains the truth with the Confidence.
type Interval struct {
	Estimate float64 `json:"estimate"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
}

// hodgesLehmann estimates the centre of a symmetric distribution that x, at least LeastPairs values, is drawn from: the median of
// the Walsh averages (x_i+x_j)/2, i <= j. The interval reaches from the k-th smallest of them to the k-th largest, where k is the largest
// number for which Wilcoxon's signed-rank statistic is less than k with a probability of at most (1-Confidence)/2.
//
// Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3rd edition, 3.2 (equation 3.23) and 3.3 (equation 3.27). It is what R's
// wilcox.test(x, conf.int = TRUE) computes.
func hodgesLehmann(x []float64) Interval {
	walsh := make([]float64, 0, len(x)*(len(x)+1)/2)
	for i, a := range x {
		for _, b := range x[i:] {
			walsh = append(walsh, (a+b)/2)
		}
	}
	slices.Sort(walsh)
	k := signedRankQuantile(len(x), (1-Confidence)/2)
	return Interval{Estimate: medianOfSorted(walsh), Low: walsh[k-1], High: walsh[len(walsh)-k]}
}

// signedRankQuantile is the largest k for which P(T < k) <= p, at least 1, where T is the sum of those of the ranks 1 to n that a fair coin
// chooses. Its distribution is made by adding a rank at a time.
func signedRankQuantile(n int, p float64) int {
	probability := make([]float64, n*(n+1)/2+1) // of each sum
	probability[0] = 1
	for rank := 1; rank <= n; rank++ {
		for sum := rank * (rank + 1) / 2; sum >= 0; sum-- {
			probability[sum] /= 2
			if sum >= rank {
				probability[sum] += probability[sum-rank] / 2
			}
		}
	}
	below := 0.
	for k, at := range probability {
		if below += at; below > p {
			return max(k, 1)
		}
	}
	return len(probability) // only for a p of 1
}

func median(x []float64) float64 { return medianOfSorted(slices.Sorted(slices.Values(x))) }

// medianOfSorted is 0 if there is nothing.
func medianOfSorted(x []float64) float64 {
	n := len(x)
	if n == 0 {
		return 0
	}
	return (x[(n-1)/2] + x[n/2]) / 2
}

// mad is the median distance from the median.
func mad(x []float64) float64 {
	centre, distances := median(x), make([]float64, len(x))
	for i, v := range x {
		distances[i] = math.Abs(v - centre)
	}
	return median(distances)
}
