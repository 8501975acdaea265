package divergence

// This file owns the arithmetic: the divergence of two distributions, and what is said of many.

import (
	"errors"
	"math"
	"slices"

	"tensorcast/experiments/llama"
	"tensorcast/internal/stats"
)

// errNotFinite says that a model is broken: there is no distribution with such logits.
var errNotFinite = errors.New("a logit is infinite or not a number")

// pair compares the distributions p and q, softmaxes of logits over the same tokens.
type pair struct {
	kl         float64 // sum of p log(p/q), nats; at least 0
	nllP, nllQ float64 // -log of the probability of the target, nats
	sameTop    bool    // the same token is the likeliest (of equal ones, the first)
}

// compare computes in float64. log p_i = x_i - max - log sum_j exp(x_j - max) neither overflows nor loses what differs between p and q;
// logits that are the same bit for bit diverge by exactly 0. exps is working space of p's length.
func compare(p, q []float32, target int, exps []float64) (pair, error) {
	topP, topQ := argmax(p), argmax(q)
	maxP, maxQ := float64(p[topP]), float64(q[topQ])
	var sumP, sumQ float64
	for i := range p {
		exps[i] = math.Exp(float64(p[i]) - maxP)
		sumP += exps[i]
		sumQ += math.Exp(float64(q[i]) - maxQ)
	}
	logP, logQ := maxP+math.Log(sumP), maxQ+math.Log(sumQ)
	kl := 0.0
	for i := range p {
		kl += exps[i] * ((float64(p[i]) - logP) - (float64(q[i]) - logQ))
	}
	r := pair{kl: kl / sumP, nllP: logP - float64(p[target]), nllQ: logQ - float64(q[target]), sameTop: topP == topQ}
	// Any infinity or NaN among the logits ends up in these.
	if bad := r.kl + r.nllP + r.nllQ; math.IsNaN(bad) || math.IsInf(bad, 0) {
		return pair{}, errNotFinite
	}
	r.kl = max(r.kl, 0) // rounding may leave -1e-17 of nothing
	return r, nil
}

func argmax(v []float32) int {
	best := 0
	for i := range v {
		if v[i] > v[best] {
			best = i
		}
	}
	return best
}

// sums are over the pairs of one text and candidate.
type sums struct {
	header llama.LogitsHeader
	exps   []float64
	kl     []float64 // of each pair
	nllP   []float64
	nllQ   []float64
	same   int
}

func newSums(h llama.LogitsHeader) *sums { return &sums{header: h, exps: make([]float64, h.Vocab)} }

func (s *sums) add(p, q []float32, target int) error {
	r, err := compare(p, q, target, s.exps)
	if err != nil {
		return err
	}
	s.kl, s.nllP, s.nllQ = append(s.kl, r.kl), append(s.nllP, r.nllP), append(s.nllQ, r.nllQ)
	if r.sameTop {
		s.same++
	}
	return nil
}

// row sums the pairs up, of which there is at least one. Predictions within a chunk share their context and are not independent: standard
// errors are from how the chunks' means differ.
func (s *sums) row() Row {
	ratios := make([]float64, len(s.kl))
	for i := range ratios {
		ratios[i] = s.nllQ[i] - s.nllP[i]
	}
	r := Row{Chunks: s.header.Chunks, Predictions: len(s.kl), SameTop: float64(s.same) / float64(len(s.kl))}
	r.KL, r.KLError = stats.MeanOfGroups(s.kl, s.header.Chunks)
	nll, _ := stats.MeanOfGroups(s.nllP, s.header.Chunks)
	r.ReferencePerplexity = math.Exp(nll)
	nll, _ = stats.MeanOfGroups(s.nllQ, s.header.Chunks)
	r.Perplexity = math.Exp(nll)
	log, logError := stats.MeanOfGroups(ratios, s.header.Chunks)
	r.Ratio = math.Exp(log)
	r.RatioError = r.Ratio * logError // to first order

	r.KLP99, r.KLMax = stats.EmpiricalQuantile(s.kl, 0.99), slices.Max(s.kl)
	return r
}
