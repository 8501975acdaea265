package stats

// This file estimates a shift from paired differences, with its confidence interval.

import "slices"

// Confidence is the level of the intervals. They are two-sided, so each end alone is a bound of 97.5 %.
const Confidence = 0.95

// Interval is an estimate with a confidence interval, in the unit of the values.
type Interval struct {
	Estimate float64 `json:"estimate"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
	// Level is the probability with which the interval contains the true value. It is at least
	// Confidence, except for five values or fewer: then even the widest interval has a lower level.
	Level float64 `json:"level"`
}

// Holds reports whether the interval reaches Confidence.
func (i Interval) Holds() bool { return i.Level >= Confidence }

// Map applies a monotonic function to the interval. If f decreases, the ends are swapped.
func (i Interval) Map(f func(float64) float64) Interval {
	a, b := f(i.Low), f(i.High)
	return Interval{Estimate: f(i.Estimate), Low: min(a, b), High: max(a, b), Level: i.Level}
}

// HodgesLehmann estimates the centre of the symmetric distribution from which x is drawn, as the
// median of the Walsh averages (x_i+x_j)/2, i <= j. If x holds paired differences, this is the
// shift between the two members of a pair. The interval reaches from the k-th smallest to the k-th
// largest Walsh average, where k is the largest number for which P(T < k) <= (1-Confidence)/2, with
// T Wilcoxon's signed-rank statistic. The result is zero if there are no values.
//
// Source: Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3rd edition, 3.2 (equation
// 3.23) and 3.3 (equation 3.27). R's wilcox.test(x, conf.int = TRUE) computes the same. Time and
// memory grow with the square of the number of values.
func HodgesLehmann(x []float64) Interval {
	if len(x) == 0 {
		return Interval{}
	}
	walsh := make([]float64, 0, len(x)*(len(x)+1)/2)
	for i, a := range x {
		for _, b := range x[i:] {
			walsh = append(walsh, (a+b)/2)
		}
	}
	slices.Sort(walsh)
	k, below := signedRankQuantile(len(x), (1-Confidence)/2)
	return Interval{
		Estimate: interpolate(walsh, 0.5),
		Low:      walsh[k-1], High: walsh[len(walsh)-k],
		Level: 1 - 2*below,
	}
}

// signedRankQuantile returns the largest k for which P(T < k) <= p, and that probability. T is the
// sum of a random subset of the ranks 1 to n, in which each rank is with probability 1/2. k is at
// least 1; then the probability may exceed p. The distribution of T is computed by adding one rank
// at a time.
func signedRankQuantile(n int, p float64) (k int, below float64) {
	probability := make([]float64, n*(n+1)/2+1) // by sum
	probability[0] = 1
	for rank := 1; rank <= n; rank++ {
		for sum := rank * (rank + 1) / 2; sum >= 0; sum-- {
			probability[sum] /= 2
			if sum >= rank {
				probability[sum] += probability[sum-rank] / 2
			}
		}
	}
	k, below = 1, probability[0]
	for k < len(probability) && below+probability[k] <= p {
		below += probability[k]
		k++
	}
	return k, below
}
