package attention

// This file computes attention over the cache, exactly or selectively.

import (
	"fmt"
	"math"
	"slices"

	"tensorcast/fabric/lab/popcount"
	"tensorcast/internal/vec"
)

// Options configure [Cache.Attend].
type Options struct {
	Scale float32 // factor of the scores, usually 1/sqrt(Dim)

	// Which positions a query head evaluates exactly: at most Top with the highest estimated
	// scores, the first Sinks, and Audit others. The audit positions are evenly spread, and show
	// how good the estimates are. The positions of the unfinished block (at most 63) are always
	// evaluated.
	Top, Sinks, Audit int

	// MaxApproximated is the share of the softmax's mass, as estimated, that may be approximated by
	// the mean values of blocks. Only as many of the Top are evaluated as this requires. If it is
	// 0, all of the Top are.
	MaxApproximated float64

	// Tolerance is the largest accepted error of a result, |result - exact| / |exact|, as
	// estimated. A query head with a larger error falls back to all positions. +Inf disables
	// fallbacks.
	Tolerance float64

	// Pause is the number of calls after a fallback in which that query head uses all positions at
	// once, without estimating.
	Pause int
}

// Stats says what [Cache.Attend] did. Numbers are sums over query heads unless noted otherwise.
type Stats struct {
	Positions int // number of positions
	Exact     int // positions whose exact score was used; after a fallback, all
	Fallbacks int // query heads that used all positions, because of the tolerance or a pause

	// The largest estimates of any query head, before a fallback: the share of the softmax mass
	// that was approximated by mean values, and the relative error.
	Missed, Error float64
}

// scratch is working memory of a Cache.
type scratch struct {
	vector                []float32 // Dim elements
	rotated               []float32
	even                  []float32  // equal weights, for a block's mean
	queryPlus, queryMinus [][]uint64 // by digit
	keyPlus, keyMinus     [][]uint64 // in sealBlock: the part of a head's planes that belongs to the block
	products              []int32
	estimates, weights    []float32 // by sealed position
	blocks                []float32 // by block: products with means, then weights of means
	fixed, top            []int32   // positions
	evaluated             []int32
	scores                []float32 // of fixed
	chunk                 []float32
	sums                  []onlineSoftmax // by query head of a group
	members               []int           // some of these
}

func newScratch(cfg Config, words int) scratch {
	n := cfg.Capacity
	s := scratch{
		vector: make([]float32, cfg.Dim), rotated: make([]float32, words*64), even: make([]float32, block),
		queryPlus: newPlanes(cfg.QueryDigits, words), queryMinus: newPlanes(cfg.QueryDigits, words),
		keyPlus: make([][]uint64, cfg.KeyDigits), keyMinus: make([][]uint64, cfg.KeyDigits),
		products: make([]int32, n), estimates: make([]float32, n), weights: make([]float32, n),
		blocks: make([]float32, n/block), fixed: make([]int32, n), top: make([]int32, n),
		evaluated: make([]int32, 0, n), scores: make([]float32, n), chunk: make([]float32, chunk),
		sums: make([]onlineSoftmax, cfg.Group), members: make([]int, cfg.Group),
	}
	for i := range s.even {
		s.even[i] = 1.0 / block
	}
	return s
}

// chunk is the number of positions per step of the online softmax. Keys and values of 128 elements
// then take 128 KiB.
const chunk = 128

// onlineSoftmax computes the softmax and the weighted sum of values in one pass. It keeps the
// largest score so far, the sum of e^(score - largest), and in dst the sum of the values with the
// same weights. A larger score rescales both sums. (M. Milakov, N. Gimelshein, "Online normalizer
// calculation for softmax", 2018.)
type onlineSoftmax struct {
	largest float32
	sum     float64
	dst     []float32
}

// newOnlineSoftmax begins a softmax that writes to dst.
func newOnlineSoftmax(dst []float32) onlineSoftmax {
	clear(dst)
	return onlineSoftmax{largest: float32(math.Inf(-1)), dst: dst}
}

// rescale rescales the sums if m is larger than the largest score so far.
func (o *onlineSoftmax) rescale(m float32) {
	if m > o.largest {
		if o.sum != 0 {
			factor := math.Exp(float64(o.largest - m))
			o.sum *= factor
			vec.Scale(o.dst, float32(factor))
		}
		o.largest = m
	}
}

// add adds the positions in at, at most chunk of them. scores is overwritten with the weights.
func (o *onlineSoftmax) add(values, scores []float32, at []int32) {
	o.rescale(vec.Max(scores))
	o.sum += vec.ExpSum(scores, scores, o.largest)
	vec.AddRows(o.dst, scores, values, at)
}

// normalise divides the sum of values by the sum of weights.
func (o *onlineSoftmax) normalise() {
	if o.sum != 0 {
		vec.Scale(o.dst, float32(1/o.sum))
	}
}

// computeScores computes the scores of q with the positions in at.
func (h *head) computeScores(scores, q []float32, at []int32, scale float32) {
	vec.DotRows(scores, q, h.keys, at)
	vec.Scale(scores, scale)
}

// checkLengths panics unless dst and q fit the cache.
func (c *Cache) checkLengths(dst, q []float32) {
	if want := c.cfg.Heads * c.cfg.Group * c.cfg.Dim; len(dst) != want || len(q) != want {
		panic(fmt.Sprintf("attention: %d elements of queries and %d of results for %d x %d heads of %d",
			len(q), len(dst), c.cfg.Heads, c.cfg.Group, c.cfg.Dim))
	}
}

// Dense computes the attention of the newest position over all positions: for each query head, dst
// is softmax(scale q K) V. Queries and results have Heads x Group x Dim elements. The query heads
// that share a head of keys are adjacent. An empty cache gives zeros. Dense panics if the lengths
// do not fit. dst and q must not overlap. It does not allocate.
//
// The query heads of a group process keys and values together, chunk by chunk, so that these are
// read from memory only once.
func (c *Cache) Dense(dst, q []float32, scale float32) {
	c.checkLengths(dst, q)
	size := c.cfg.Group * c.cfg.Dim
	members := c.scratch.members[:c.cfg.Group]
	for g := range members {
		members[g] = g
	}
	for i := range c.heads {
		c.attendDense(&c.heads[i], dst[i*size:][:size], q[i*size:][:size], scale, members)
	}
}

// attendDense does the work of Dense for those query heads of one head that members lists. dst and
// q are those of the whole group.
func (c *Cache) attendDense(h *head, dst, q []float32, scale float32, members []int) {
	d, s := c.cfg.Dim, &c.scratch
	for _, g := range members {
		s.sums[g] = newOnlineSoftmax(dst[g*d:][:d])
	}
	for at := range slices.Chunk(c.all[:c.n], chunk) {
		for _, g := range members {
			scores := s.chunk[:len(at)]
			h.computeScores(scores, q[g*d:][:d], at, scale)
			s.sums[g].add(h.values, scores, at)
		}
	}
	for _, g := range members {
		s.sums[g].normalise()
	}
}

// Attend is an approximation of Dense. It evaluates only those positions that matter according to
// estimates. For each query head:
//
//  1. It estimates the scores of all positions in complete blocks.
//  2. It evaluates the first Sinks positions, Audit others and those of the unfinished block, i.e. it
//     computes their scores exactly.
//  3. It estimates the weights of the others. If the error of a score is normal with variance s^2, the
//     mean weight is e^score e^(s^2/2). s^2 is |q|^2 r_j Scale^2 / Dim, where r_j is the squared error of
//     the ternary key. The direction of that error is assumed to be random. If the errors at the sinks and
//     audit positions are larger, s^2 is scaled up in proportion.
//  4. It evaluates the positions with the largest weights: Top, or as many as MaxApproximated requires.
//  5. It approximates the others by the mean values of their blocks, with the estimated weights.
//  6. It estimates the error of that. If the error exceeds the tolerance, the result is computed as by
//     Dense, bit for bit.
//
// The estimated error assumes that weights and values are independent. Its square is then a sum
// over what was approximated: the mean of weight^2 e^(s^2) times the block's mean of |value|^2.
// With keys of two digits, this is right within a third on random numbers. In a small trained model
// it is equally good for most heads. But a quarter of the heads have up to twice the estimated
// error, and one in twenty has four times: there, similar values have similar weights.
//
// Attend panics as Dense does, and does not allocate.
func (c *Cache) Attend(dst, q []float32, o Options) Stats {
	c.checkLengths(dst, q)
	var st Stats
	d, size := c.cfg.Dim, c.cfg.Group*c.cfg.Dim
	for i := range c.heads {
		h, to, from := &c.heads[i], dst[i*size:][:size], q[i*size:][:size]
		failed := c.scratch.members[:0]
		for g := range c.cfg.Group {
			st.Positions += c.n
			if h.pauses[g] > 0 {
				h.pauses[g]--
				failed = append(failed, g)
				continue
			}
			missed, relativeError := c.attendSparse(h, to[g*d:][:d], from[g*d:][:d], o)
			st.Missed, st.Error = max(st.Missed, missed), max(st.Error, relativeError)
			if relativeError <= o.Tolerance {
				st.Exact += len(c.scratch.evaluated)
				continue
			}
			// The error may also be NaN, which says nothing about the result.
			failed = append(failed, g)
			h.pauses[g] = o.Pause
		}
		if len(failed) > 0 {
			c.attendDense(h, to, from, o.Scale, failed)
			st.Fallbacks += len(failed)
			st.Exact += len(failed) * c.n
		}
	}
	return st
}

// Evaluated returns the positions that the last query head of the last call of Attend evaluated, in
// any order, if it did not fall back. They are valid until the next call.
func (c *Cache) Evaluated() []int32 { return c.scratch.evaluated }

// estimateScores returns the estimated scores of all positions in complete blocks.
func (c *Cache) estimateScores(h *head, q []float32, scale float32) []float32 {
	s, blocks := &c.scratch, c.sealed/block
	estimates, products := s.estimates[:c.sealed], s.products[:c.sealed]
	vec.DotRows(s.blocks[:blocks], q, h.means, c.all[:blocks])
	for b, x := range s.blocks[:blocks] {
		x *= scale
		fill := [8]float32{x, x, x, x, x, x, x, x}
		for i := 0; i < block; i += len(fill) {
			*(*[8]float32)(estimates[b*block+i:]) = fill // eight at once, because the compiler does not vectorise this
		}
	}
	c.rotation.apply(s.rotated, q)
	step, _ := ternarise(s.queryPlus, s.queryMinus, s.rotated)
	words := c.sealed * len(s.rotated) / 64
	queryWeight := step * scale
	for i := range s.queryPlus {
		weight := queryWeight
		for j := range h.plus {
			popcount.DotRows(products, s.queryPlus[i], s.queryMinus[i], h.plus[j][:words], h.minus[j][:words])
			vec.AddInt32(estimates, weight, h.scales[:c.sealed], products)
			weight *= 3
		}
		queryWeight *= 3
	}
	return estimates
}

// attendSparse does the work of Attend for one query head, without the fallback. It returns the
// estimates of the approximated mass and of the relative error. The evaluated positions are in
// c.scratch.evaluated.
func (c *Cache) attendSparse(h *head, dst, q []float32, o Options) (missed, relativeError float64) {
	s := &c.scratch
	s.evaluated = s.evaluated[:0]
	sum := newOnlineSoftmax(dst)
	estimates := c.estimateScores(h, q, o.Scale)
	variance := c.evaluateFixed(h, &sum, q, estimates, o)
	c.evaluate(h, &sum, q, c.all[c.sealed:c.n], o.Scale)
	if len(s.evaluated) == c.n {
		sum.normalise()
		return 0, 0
	}

	vec.AXPY(estimates, float32(variance/2), h.residuals[:c.sealed])
	weights, blocks := s.weights[:c.sealed], s.blocks[:c.sealed/block]
	sum.rescale(vec.Max(estimates))
	shift := sum.largest
	all := sum.sum + vec.ExpSum(weights, estimates, shift)
	least := thresholdForCount(weights, o.Top)
	if o.MaxApproximated > 0 {
		least = thresholdForMass(weights, least, o.MaxApproximated*all)
	}
	top := s.top[:vec.IndexAtLeast(s.top, weights, least)]
	c.evaluate(h, &sum, q, top, o.Scale)
	for _, j := range top {
		weights[j] = 0
	}

	// Evaluating the best positions may have increased the largest score, to which weights are
	// relative.
	factor := math.Exp(float64(shift - sum.largest))
	var left, square float64
	for b := range blocks {
		part := weights[b*block:][:block]
		w := factor * vec.SumBelow(part, least)
		blocks[b] = float32(w)
		left += w
		square += float64(vec.Dot(part, part)) * float64(h.valueSquares[b])
	}
	square *= factor * factor * math.Exp(variance*h.residual/float64(c.sealed))
	sum.sum += left
	vec.AddRows(dst, blocks, h.valueMeans, c.all[:len(blocks)])
	sum.normalise()
	return left / sum.sum, math.Sqrt(square/float64(vec.Dot(dst, dst))) / sum.sum
}

// evaluate computes the scores of positions exactly and adds their values.
func (c *Cache) evaluate(h *head, sum *onlineSoftmax, q []float32, positions []int32, scale float32) {
	s := &c.scratch
	for at := range slices.Chunk(positions, chunk) {
		scores := s.chunk[:len(at)]
		h.computeScores(scores, q, at, scale)
		sum.add(h.values, scores, at)
	}
	s.evaluated = append(s.evaluated, positions...)
}

// evaluateFixed evaluates the sinks and the audit positions of complete blocks, and sets their
// estimates to -Inf. It returns the variance of a score's error, relative to the key's squared
// error.
func (c *Cache) evaluateFixed(h *head, sum *onlineSoftmax, q, estimates []float32, o Options) float64 {
	s, n := &c.scratch, len(estimates)
	fixed := s.fixed[:0]
	for i := range min(o.Sinks, n) {
		fixed = append(fixed, int32(i))
	}
	first := len(fixed)
	audit := min(o.Audit, n-first)
	for i := range audit {
		fixed = append(fixed, int32(first+(2*i+1)*(n-first)/(2*audit)))
	}
	variance := float64(vec.Dot(q, q)) * float64(o.Scale) * float64(o.Scale) / float64(c.cfg.Dim)
	if len(fixed) == 0 {
		return variance
	}
	scores := s.scores[:len(fixed)]
	h.computeScores(scores, q, fixed, o.Scale)
	var seen, expected float64
	for i, j := range fixed {
		e := float64(scores[i] - estimates[j])
		seen += e * e
		expected += variance * float64(h.residuals[j])
		estimates[j] = float32(math.Inf(-1))
	}
	sum.add(h.values, scores, fixed)
	s.evaluated = append(s.evaluated, fixed...)
	if seen > expected {
		// If no error is expected, the estimates are NaN and nothing is approximated.
		variance *= seen / expected
	}
	return variance
}

// thresholdForCount returns a threshold above 0 that at most n of the weights reach. At least 15/16
// n reach it if there are as many, except for ties. Weights are not negative.
//
// It bisects the bit patterns of float32, which have the same order as the numbers. So small
// weights take no more steps than large ones.
func thresholdForCount(weights []float32, n int) float32 {
	low, high := uint32(1), bitsAbove(weights) // more than n weights reach low, and at most n reach high
	if vec.CountAtLeast(weights, math.Float32frombits(low)) <= n {
		return math.Float32frombits(low)
	}
	middle := max(low+1, high-min(high, 16<<23)) // 2^-16 of the largest
	for low+1 < high {
		t := math.Float32frombits(middle)
		switch got := vec.CountAtLeast(weights, t); {
		case got > n:
			low = middle
		case got >= n-n/16:
			return t
		default:
			high = middle
		}
		middle = low + (high-low)/2
	}
	return math.Float32frombits(high)
}

// thresholdForMass returns a threshold of at least low. The weights below it add up to at most
// allowed and, if possible, to at least 7/8 of that. It returns low if the weights below low add up
// to more already.
func thresholdForMass(weights []float32, low float32, allowed float64) float32 {
	from, to := math.Float32bits(low), bitsAbove(weights)
	for from+1 < to {
		middle := from + (to-from)/2
		t := math.Float32frombits(middle)
		switch got := vec.SumBelow(weights, t); {
		case got > allowed:
			to = middle
		case got >= allowed*7/8:
			return t
		default:
			from = middle
		}
	}
	return math.Float32frombits(from)
}

// bitsAbove returns the bit pattern of the float32 that follows the largest weight.
func bitsAbove(weights []float32) uint32 { return math.Float32bits(max(0, vec.Max(weights))) + 1 }
