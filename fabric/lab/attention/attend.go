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

	// Which positions a query head evaluates exactly: at most Top with the highest estimated scores, the first Sinks, and Audit others,
	// evenly spread, which show how good the estimates are. The positions of the unfinished block (at most 63) are always evaluated.
	Top, Sinks, Audit int

	// Leave is the share of the softmax's mass, as estimated, that may be approximated by the mean values of blocks: only as many of the
	// Top are evaluated as this requires. At 0 all of the Top are.
	Leave float64

	// Tolerance is the largest accepted error of a result, |result - exact| / |exact|, as estimated. A query head with a larger one falls
	// back to all positions. +Inf disables fallbacks.
	Tolerance float64

	// Pause is the number of calls after a fallback in which that query head uses all positions at once, without estimating.
	Pause int
}

// Stats says what [Cache.Attend] did. Numbers are sums over query heads unless noted otherwise.
type Stats struct {
	Positions int // number of positions
	Exact     int // positions whose exact score was used; after a fallback, all
	Fallbacks int // query heads that used all positions, because of the tolerance or a pause

	// The largest estimates of any query head, before a fallback: the softmax mass that was approximated by mean values, and the relative
	// error.
	Missed, Error float64
}

// scratch is working memory of a Cache.
type scratch struct {
	vector                []float32 // Dim elements
	rotated               []float32
	even                  []float32  // equal weights, for a block's mean
	queryPlus, queryMinus [][]uint64 // by digit
	keyPlus, keyMinus     [][]uint64 // in seal, the part of a head's planes that belongs to the block
	products              []int32
	estimates, weights    []float32 // by sealed position
	blocks                []float32 // by block: products with means, then weights of means
	fixed, top            []int32   // positions
	taken                 []int32
	scores                []float32 // of fixed
	chunk                 []float32
	sums                  []online // by query head of a group
	members               []int    // some of these
}

func newScratch(cfg Config, words int) scratch {
	n := cfg.Capacity
	s := scratch{
		vector: make([]float32, cfg.Dim), rotated: make([]float32, words*64), even: make([]float32, block),
		queryPlus: planes(cfg.QueryDigits, words), queryMinus: planes(cfg.QueryDigits, words),
		keyPlus: make([][]uint64, cfg.KeyDigits), keyMinus: make([][]uint64, cfg.KeyDigits),
		products: make([]int32, n), estimates: make([]float32, n), weights: make([]float32, n), blocks: make([]float32, n/block),
		fixed: make([]int32, n), top: make([]int32, n), taken: make([]int32, 0, n),
		scores: make([]float32, n), chunk: make([]float32, chunk), sums: make([]online, cfg.Group), members: make([]int, cfg.Group),
	}
	for i := range s.even {
		s.even[i] = 1.0 / block
	}
	return s
}

// chunk is the number of positions per step of the online softmax: keys and values of 128 elements then take 128 KiB.
const chunk = 128

// online computes the softmax and the weighted sum of values in one pass. It keeps the largest score so far, the sum of e^(score -
// largest), and in dst the sum of the values with the same weights. A larger score rescales both. (M. Milakov, N. Gimelshein, "Online
// normalizer calculation for softmax", 2018.)
type online struct {
	largest float32
	sum     float64
	dst     []float32
}

func start(dst []float32) online {
	clear(dst)
	return online{largest: float32(math.Inf(-1)), dst: dst}
}

// raise rescales if m is larger than the largest score so far.
func (o *online) raise(m float32) {
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
func (o *online) add(values, scores []float32, at []int32) {
	o.raise(vec.Max(scores))
	o.sum += vec.ExpSum(scores, scores, o.largest)
	vec.AddRows(o.dst, scores, values, at)
}

func (o *online) finish() {
	if o.sum != 0 {
		vec.Scale(o.dst, float32(1/o.sum))
	}
}

// score computes the scores of q with the positions in at.
func (h *head) score(scores, q []float32, at []int32, scale float32) {
	vec.DotRows(scores, q, h.keys, at)
	vec.Scale(scores, scale)
}

// check panics unless dst and q fit the cache.
func (c *Cache) check(dst, q []float32) {
	if want := c.cfg.Heads * c.cfg.Group * c.cfg.Dim; len(dst) != want || len(q) != want {
		panic(fmt.Sprintf("attention: %d elements of queries and %d of results for %d x %d heads of %d", len(q), len(dst), c.cfg.Heads, c.cfg.Group, c.cfg.Dim))
	}
}

// Dense computes the attention of the newest position over all positions: for each query head, dst is softmax(scale q K) V. Queries and
// results have Heads x Group x Dim elements; the query heads that share a head of keys are adjacent. An empty cache gives zeros. It panics
// if the lengths do not fit. dst and q must not overlap. It does not allocate.
//
// The query heads of a group process keys and values together, chunk by chunk, so that these are read from memory only once.
func (c *Cache) Dense(dst, q []float32, scale float32) {
	c.check(dst, q)
	size := c.cfg.Group * c.cfg.Dim
	members := c.scratch.members[:c.cfg.Group]
	for g := range members {
		members[g] = g
	}
	for i := range c.heads {
		c.dense(&c.heads[i], dst[i*size:][:size], q[i*size:][:size], scale, members)
	}
}

// dense is Dense for the query heads of one head that members lists; dst and q are those of the whole group.
func (c *Cache) dense(h *head, dst, q []float32, scale float32, members []int) {
	d, s := c.cfg.Dim, &c.scratch
	for _, g := range members {
		s.sums[g] = start(dst[g*d:][:d])
	}
	for at := range slices.Chunk(c.all[:c.n], chunk) {
		for _, g := range members {
			scores := s.chunk[:len(at)]
			h.score(scores, q[g*d:][:d], at, scale)
			s.sums[g].add(h.values, scores, at)
		}
	}
	for _, g := range members {
		s.sums[g].finish()
	}
}

// Attend is an approximation of Dense that evaluates only those positions that matter according to estimates. For each query head:
//
//  1. It estimates the scores of all positions in complete blocks.
//  2. It evaluates the first Sinks positions, Audit others and those of the unfinished block: it computes their scores exactly.
//  3. It estimates the weights of the others. If the error of a score is normal with variance s^2, the mean weight is
//     e^score e^(s^2/2). s^2 is |q|^2 r_j Scale^2 / Dim, where r_j is the squared error of the ternary key, whose direction is assumed
//     random. If the errors at the sinks and audit positions are larger, s^2 is scaled up in proportion.
//  4. It evaluates the positions with the largest weights: Top, or as many as Leave requires.
//  5. It approximates the others by the mean values of their blocks, with the estimated weights.
//  6. It estimates the error of that. If the error exceeds the tolerance, the result is computed as by Dense, bit for bit.
//
// The estimated error assumes that weights and values are independent. Its square is then the sum, over what was approximated, of the mean
// of weight^2 e^(s^2) times the block's mean of |value|^2. With keys of two digits, this is right within a third on random numbers. In a
// small trained model it is equally good for most heads, but a quarter of the heads have up to twice the estimated error and one in twenty
// four times: there, similar values have similar weights.
//
// It panics as Dense does, and does not allocate.
func (c *Cache) Attend(dst, q []float32, o Options) Stats {
	c.check(dst, q)
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
			missed, failure := c.sparse(h, to[g*d:][:d], from[g*d:][:d], o)
			st.Missed, st.Error = max(st.Missed, missed), max(st.Error, failure)
			if failure <= o.Tolerance {
				st.Exact += len(c.scratch.taken)
				continue
			}
			// The error may also be NaN, which says nothing about the result.
			failed = append(failed, g)
			h.pauses[g] = o.Pause
		}
		if len(failed) > 0 {
			c.dense(h, to, from, o.Scale, failed)
			st.Fallbacks += len(failed)
			st.Exact += len(failed) * c.n
		}
	}
	return st
}

// Taken returns the positions that the last query head of the last call of Attend evaluated, in any order, if it did not fall back. They
// are valid until the next call.
func (c *Cache) Taken() []int32 { return c.scratch.taken }

// estimate returns the estimated scores of all positions in complete blocks.
func (c *Cache) estimate(h *head, q []float32, scale float32) []float32 {
	s, blocks := &c.scratch, c.sealed/block
	estimates, products := s.estimates[:c.sealed], s.products[:c.sealed]
	vec.DotRows(s.blocks[:blocks], q, h.means, c.all[:blocks])
	for b, x := range s.blocks[:blocks] {
		x *= scale
		fill := [8]float32{x, x, x, x, x, x, x, x}
		for i := 0; i < block; i += len(fill) {
			*(*[8]float32)(estimates[b*block+i:]) = fill // eight at once; the compiler does not vectorise this
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

// sparse is Attend for one query head, without the fallback. It returns the estimates of the approximated mass and of the relative error.
// The evaluated positions are in c.scratch.taken.
func (c *Cache) sparse(h *head, dst, q []float32, o Options) (missed, failure float64) {
	s := &c.scratch
	s.taken = s.taken[:0]
	sum := start(dst)
	estimates := c.estimate(h, q, o.Scale)
	variance := c.takeFixed(h, &sum, q, estimates, o)
	c.take(h, &sum, q, c.all[c.sealed:c.n], o.Scale)
	if len(s.taken) == c.n {
		sum.finish()
		return 0, 0
	}

	vec.AXPY(estimates, float32(variance/2), h.residuals[:c.sealed])
	weights, blocks := s.weights[:c.sealed], s.blocks[:c.sealed/block]
	sum.raise(vec.Max(estimates))
	shift := sum.largest
	all := sum.sum + vec.ExpSum(weights, estimates, shift)
	least := leastOf(weights, o.Top)
	if o.Leave > 0 {
		least = leastFor(weights, least, o.Leave*all)
	}
	top := s.top[:vec.IndexAtLeast(s.top, weights, least)]
	c.take(h, &sum, q, top, o.Scale)
	for _, j := range top {
		weights[j] = 0
	}

	// Evaluating the best positions may have raised the largest score, to which weights are relative.
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
	sum.finish()
	return left / sum.sum, math.Sqrt(square/float64(vec.Dot(dst, dst))) / sum.sum
}

// take computes the scores of positions exactly and adds their values.
func (c *Cache) take(h *head, sum *online, q []float32, positions []int32, scale float32) {
	s := &c.scratch
	for at := range slices.Chunk(positions, chunk) {
		scores := s.chunk[:len(at)]
		h.score(scores, q, at, scale)
		sum.add(h.values, scores, at)
	}
	s.taken = append(s.taken, positions...)
}

// takeFixed evaluates the sinks and the audit positions (of complete blocks) and sets their estimates to -Inf. It returns the variance of a
// score's error, relative to the key's squared error.
func (c *Cache) takeFixed(h *head, sum *online, q, estimates []float32, o Options) float64 {
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
	h.score(scores, q, fixed, o.Scale)
	var seen, expected float64
	for i, j := range fixed {
		e := float64(scores[i] - estimates[j])
		seen += e * e
		expected += variance * float64(h.residuals[j])
		estimates[j] = float32(math.Inf(-1))
	}
	sum.add(h.values, scores, fixed)
	s.taken = append(s.taken, fixed...)
	if seen > expected {
		variance *= seen / expected // if no error is expected, the estimates are NaN and nothing is approximated
	}
	return variance
}

// leastOf returns a threshold above 0 that at most n of the weights reach and, except for ties, at least 15/16 n, if there are as many.
// Weights are not negative.
//
// It bisects the bit patterns of float32, which have the same order as the numbers, so that small weights take no more steps than large
// ones.
func leastOf(weights []float32, n int) float32 {
	low, high := uint32(1), above(weights) // more than n weights reach low, at most n reach high
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

// leastFor returns a threshold of at least low such that the weights below it add up to at most allowed and, if possible, to at least 7/8
// of that. It returns low if the weights below low add up to more already.
func leastFor(weights []float32, low float32, allowed float64) float32 {
	from, to := math.Float32bits(low), above(weights)
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

// above returns the bit pattern of the float32 that follows the largest weight.
func above(weights []float32) uint32 { return math.Float32bits(max(0, vec.Max(weights))) + 1 }
