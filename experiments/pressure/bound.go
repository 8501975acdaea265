package pressure

// This file computes the bounds: how many tokens per second no strategy can exceed.

// bound is min(1/T_compute, BW/(M-R)) where R = x * M; 0 if unknown.
func (r *Report) bound(x float64) float64 {
	if r.Model.Routed || r.Compute <= 0 {
		return 0
	}
	return r.boundOfReads(r.missingBytes(x))
}

// missingBytes is how many bytes of the weights that a token reads do not fit if the share x does.
// It is negative if there is room for more.
func (r *Report) missingBytes(x float64) float64 { return (1 - x) * float64(r.Model.TokenBytes) }

// boundOfReads is how many tokens per second can be had if each reads so many bytes; 0 if unknown.
func (r *Report) boundOfReads(bytes float64) float64 {
	if r.Compute <= 0 {
		return 0
	}
	bound := 1 / r.Compute
	if bytes > 0 {
		bound = min(bound, r.BW/bytes)
	}
	return bound
}

// boundExperts turns bytes into tokens per second.
func (r *Report) boundExperts(e *Experts) {
	for _, reads := range []*Reads{&e.Whole, &e.Steady} {
		if reads.Policy != "" {
			reads.Bound, reads.CausalTokS = r.boundOfReads(reads.Least), r.boundOfReads(reads.Causal)
		}
	}
}

// boundBeside is how many tokens per second there are at most if a token reads missing bytes, by what the disk delivers
// beside computing and what that costs the target.
//
// A token computes for T if nothing is read, and for T' while the disk is read at its bandwidth beside computing, B'.
// Reading takes missing / B' of a token's time t, in which t * B' >= missing, and
// (missing / B') / T' + (t - missing / B') / T = 1. So t = T + missing * (1 - T / T') / B'. The factor behind missing,
// (1 - T / T') / B', is DiskCost.
func (r *Report) boundBeside(missing float64) float64 {
	return 1 / max(missing/r.BesideBW, r.Compute+missing*r.DiskCost)
}

// expertReads is what has to be read of experts in the steady state, or for all tokens; nil if it is not known.
func (at *Result) expertReads(steady bool) *Reads {
	switch {
	case at.Experts == nil:
		return nil
	case steady:
		return &at.Experts.Steady
	}
	return &at.Experts.Whole
}
