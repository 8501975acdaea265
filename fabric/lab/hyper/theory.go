package hyper

// This file predicts how often the right vector is found, from the theory of sums of independent
// random trits.
//
// A trit S of a bundle is a function of the sum of one pair's trit x (+1 or -1) and the trits of
// the other pairs. After unbinding and multiplying by the right value, its score is a sum of
// independent terms with mean r = E[S x]. The score of any other vector has mean 0. With many terms
// both are normally distributed.
//
// For N dense pairs, the majority has r = sqrt(2/(pi N)) for large N. So with D trits the signal is
// d' = r sqrt(D) = sqrt(2/pi) sqrt(D/N) standard deviations: it grows with sqrt(D/N). Rounding at
// the best threshold makes the factor 0.90, no rounding makes it 1. A block code of D/64 trits has
// the same d' while N is below 64, because few of its trits collide.

import "math"

// walk is the distribution of a sum of steps of +1, 0 and -1. Element i is the probability of the
// sum i - len/2.
type walk []float64

// newWalk returns the sum of no steps, with room for sums from -reach to reach.
func newWalk(reach int) walk {
	w := make(walk, 2*reach+1)
	w[reach] = 1
	return w
}

// step adds a step. Sums beyond the reach are dropped.
func (w walk) step(up, down float64) {
	before := 0.0
	for i, here := range w {
		w[i] = (1-up-down)*here + up*before
		if i+1 < len(w) {
			w[i] += down * w[i+1]
		}
		before = here
	}
}

// describeBundle computes what a bundle of n pairs does to the trits of one of them. A pair's trit
// is not 0 with the probability density. Let x be that trit and S that of the bundle. mean is E[S
// x] where x is not 0, active is P(S not 0) there, and overall is P(S not 0) anywhere.
func describeBundle(n int, density float64, threshold int) (mean, active, overall float64) {
	rest := newWalk(n - 1) // the other pairs' trits
	for range n - 1 {
		rest.step(density/2, density/2)
	}
	var up, down, beyond float64
	for i, p := range rest {
		sum := i - len(rest)/2
		if 1+sum > threshold {
			up += p
		}
		if 1+sum < -threshold {
			down += p
		}
		if sum > threshold || sum < -threshold {
			beyond += p
		}
	}
	return up - down, up + down, density*(up+down) + (1-density)*beyond
}

// probBest returns the probability that a normally distributed score exceeds all other scores.
// These are independent and normally distributed with mean 0, and their number is others.
func probBest(mean, variance, otherVariance float64, others int) float64 {
	const step, limit = 0.01, 8.0
	sd, otherSD := math.Sqrt(max(0, variance)), math.Sqrt(otherVariance)
	sum := 0.0
	for z := -limit; z <= limit; z += step {
		below := math.Erfc(-(mean+sd*z)/otherSD/math.Sqrt2) / 2
		sum += math.Exp(-z*z/2) * math.Pow(below, float64(others))
	}
	return min(1, sum*step/math.Sqrt(2*math.Pi))
}

// probBestOf is probBest for vectors of d positions, of which the share density is not 0. mean,
// active and overall are those of describeBundle.
func probBestOf(d int, density, mean, active, overall float64, others int) float64 {
	n := float64(d) * density
	return probBest(n*mean, n*(active-density*mean*mean), n*overall, others)
}

// probNested returns the probability that the value at the end of a path is the best of candidates,
// with d trits and branches fields on each of 3 levels. With cleanup, the record at each step is
// looked up among all records of its level.
func probNested(d, branches, candidates int, cleanup bool) float64 {
	mean1, active1, overall1 := describeBundle(branches, 1, 0)
	mean2, active2, overall2 := describeBundle(branches, overall1, 0)
	mean3, active3, overall3 := describeBundle(branches, overall2, 0)
	if cleanup {
		return probBestOf(d, overall2, mean3, active3, overall3, branches-1) *
			probBestOf(d, overall1, mean2, active2, overall2, branches*branches-1) *
			probBestOf(d, 1, mean1, active1, overall1, candidates-1)
	}
	return probBestOf(d, 1, mean1*mean2*mean3, overall3, overall3, candidates-1)
}

// probBlocks returns the probability for block codes with few blocks. It is probBestOf without the
// normal approximation.
func probBlocks(blocks, n, candidates int) float64 {
	mean, active, overall := describeBundle(n, 1./BlockLength, 0)
	right, other := newWalk(blocks), newWalk(blocks)
	for range blocks {
		right.step((active+mean)/2, (active-mean)/2)
		other.step(overall/2, overall/2)
	}
	total, below := 0.0, 0.0
	for s, p := range right {
		total += p * probFirst(below, other[s], candidates)
		below += other[s]
	}
	return min(1, total)
}

// probSparseProduct returns the probability for element-wise products of sparse vectors, in which
// the share density is not 0.
//
// Too few trits remain for normally distributed scores: density^2 d trits have the signal. Their
// number is Poisson distributed, and so is that of the trits that other pairs leave under the key.
// Scores are walks. A value under another key shares density^3 d trits with that key and the
// queried one, which add steps to its score.
func probSparseProduct(d, n, candidates int, density float64) float64 {
	product := density * density
	mean, active, overall := describeBundle(n, product, 0)
	up := (1 + mean/active) / 2
	signals := poisson(float64(d) * product * active)
	noises := poisson(float64(d) * density * (1 - density) * (overall - product*active) / (1 - product))
	shared := poisson(float64(d) * product * density * active * float64(n-1) / float64(candidates))

	// other is the score of another vector if k trits remain under the key. reach is more than 10
	// standard deviations.
	reach := len(signals) + len(shared) + int(10*math.Sqrt(density*float64(len(signals)+len(noises))))
	other, steps := make(walk, 2*reach+1), newWalk(reach)
	for _, p := range shared {
		for i := range other {
			other[i] += p * steps[i]
		}
		steps.step(.5, .5)
	}
	// right[a] is the score of the right vector if a of the trits have the signal.
	right := make([]walk, len(signals))
	for a := range right {
		right[a] = newWalk(a)
		for range a {
			right[a].step(up, 1-up)
		}
	}
	total := 0.0
	wins := make([]float64, len(other))
	for k := range len(signals) + len(noises) - 1 {
		below := 0.0
		for s, p := range other {
			wins[s] = probFirst(below, p, candidates)
			below += p
		}
		for a := max(0, k-len(noises)+1); a < len(signals) && a <= k; a++ {
			p := signals[a] * noises[k-a]
			for s, q := range right[a] {
				total += p * q * wins[reach-a+s]
			}
		}
		other.step(density/2, density/2)
	}
	return min(1, total)
}

// probFirst returns the probability of being chosen among candidates. Each of the other candidates
// is independently lower with the probability below, and equal with the probability equal. Ties are
// broken at random.
func probFirst(below, equal float64, candidates int) float64 {
	n := float64(candidates)
	if equal < 1e-12 {
		return math.Pow(below, n-1)
	}
	return (math.Pow(below+equal, n) - math.Pow(below, n)) / (n * equal)
}

// poisson returns the probabilities of 0, 1, 2 .. events, as far as they are relevant.
func poisson(mean float64) []float64 {
	p := make([]float64, int(mean+10*math.Sqrt(mean))+20)
	for k := range p {
		factorial, _ := math.Lgamma(float64(k + 1))
		p[k] = math.Exp(float64(k)*math.Log(max(mean, math.SmallestNonzeroFloat64)) - mean - factorial)
	}
	return p
}
