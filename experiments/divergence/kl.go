package divergence

// This file computes the divergence of two distributions, and summarises many.

import (
	"errors"
	"math"
	"slices"

	"tensorcast/experiments/llama"
	"tensorcast/internal/stats"
)

// errNotFinite says that a model is broken: such logits define no distribution.
var errNotFinite = errors.New("a logit is infinite or not a number")

// pair is the comparison of two distributions p and q, the softmax of two vectors of logits.
type pair struct {
	kl         float64 // sum of p log(p/q), nats; at least 0
	nllP, nllQ float64 // negative log-likelihood of the actual token, nats
	sameTop    bool    // both have the same most likely token (the first one, if several are equal)
}

// compare compares two vectors of logits, in float64. log p_i = x_i - max - log sum_j exp(x_j -
// max) neither overflows nor loses small differences between p and q. Identical logits diverge by
// exactly 0. exps is scratch space of p's length.
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
	// Infinities and NaNs among the logits show up in these values.
	if bad := r.kl + r.nllP + r.nllQ; math.IsNaN(bad) || math.IsInf(bad, 0) {
		return pair{}, errNotFinite
	}
	r.kl = max(r.kl, 0) // rounding may give -1e-17 instead of 0
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

// sums accumulates the pairs of one text and candidate.
type sums struct {
	header llama.LogitsHeader
	exps   []float64
	kl     []float64 // by pair
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

// row summarises the pairs, of which there must be at least one. Predictions within a chunk share
// their context and are not independent, so standard errors are computed from the means of the
// chunks.
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
	r.RatioError = r.Ratio * logError // first-order approximation

	r.KLP99, r.KLMax = stats.EmpiricalQuantile(s.kl, 0.99), slices.Max(s.kl)
	return r
}
