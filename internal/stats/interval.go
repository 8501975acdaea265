package stats

// This file estimates a shift from paired differences, with its confidence interval.

import "slices"

// Confidence is the level that intervals are made for: two-sided, so that each of the ends is a bound of 97.5 %.
const Confidence = 0.95

// Interval is an estimate with an interval around it that contains the truth with a probability of at least Level.
type Interval struct {
	Estimate float64 `json:"estimate"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
	// Level is the probability that the interval contains the truth. It is at least Confidence, unless there are too few values for that: five values
	// or fewer, of which even the widest interval has less.
	Level float64 `json:"level"`
}

// Holds reports whether the interval has the Confidence.
func (i Interval) Holds() bool { return i.Level >= Confidence }

// Map is the interval of f of the quantity. f is monotonic; where it falls, the ends change places.
func (i Interval) Map(f func(float64) float64) Interval {
	a, b := f(i.Low), f(i.High)
	return Interval{Estimate: f(i.Estimate), Low: min(a, b), High: max(a, b), Level: i.Level}
}

// HodgesLehmann estimates the centre of a symmetric distribution that x is drawn from: the median of the Walsh averages (x_i+x_j)/2, i <= j.
// Of paired differences it is the shift between the two of a pair. The interval reaches from the k-th smallest of the averages to the
// k-th largest, where k is the largest number for which Wilcoxon's signed-rank statistic is less than k with a probability of at most
// (1-Confidence)/2. All is 0 if there are no values.
//
// Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3rd edition, 3.2 (equation 3.23) and 3.3 (equation 3.27). It is what R's
// wilcox.test(x, conf.int = TRUE) computes. It takes time and memory in proportion to the square of the number of values.
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
	return Interval{Estimate: interpolate(walsh, 0.5), Low: walsh[k-1], High: walsh[len(walsh)-k], Level: 1 - 2*below}
}

// signedRankQuantile is the largest k for which P(T < k) <= p, where T is the sum of those of the ranks 1 to n that a fair coin chooses, and
// that probability. k is at least 1; the probability may then be larger than p. The distribution of T is made by adding a rank at a time.
func signedRankQuantile(n int, p float64) (k int, below float64) {
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
	k, below = 1, probability[0]
	for k < len(probability) && below+probability[k] <= p {
		below += probability[k]
		k++
	}
	return k, below
}
