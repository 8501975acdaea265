package pattern

// This file finds how often a step goes through the model, and says in words of what steps the figures of a
// pattern are.

import (
	"fmt"
	"slices"

	"tensorcast/internal/stats"
	"tensorcast/trace/tables"
)

// passesOf splits the sequence of a step into passes through the model. llama.cpp splits a large batch
// into parts (ubatches), and computes them one after the other. Each pass begins with the same read. A
// part of which no output is wanted ends early. So each pass is the longest one, or lacks reads of it.
// If that does not hold, the step is taken as one pass.
func passesOf(reads []Read) [][]Read {
	var passes [][]Read
	from, longest := 0, 0
	for i := 1; i <= len(reads); i++ {
		if i < len(reads) && !sameTensor(reads[i], reads[0]) {
			continue
		}
		passes = append(passes, reads[from:i])
		if i-from > len(passes[longest]) {
			longest = len(passes) - 1
		}
		from = i
	}
	for _, pass := range passes {
		if !isWithin(pass, passes[longest]) {
			return [][]Read{reads}
		}
	}
	return passes
}

// isWithin reports whether the reads of a part are those of the whole, in the same order, but for some
// that are left out.
func isWithin(part, whole []Read) bool {
	for _, r := range whole {
		if len(part) > 0 && sameTensor(part[0], r) {
			part = part[1:]
		}
	}
	return len(part) == 0
}

// referencePass returns the longest pass of the reference sequence of the pattern's phase, and where
// passes with the same reads begin in that sequence. A step that generates is one pass.
func (p *Pattern) referencePass() (pass []Read, begins []int) {
	ref := p.reference[p.Phase]
	if p.Generates() {
		return ref.reads, []int{0}
	}
	passes := passesOf(ref.reads)
	pass = slices.MaxFunc(passes, func(a, b []Read) int { return len(a) - len(b) })
	begin := 0
	for _, one := range passes {
		if len(one) == len(pass) { // it is within the longest, so it is the same
			begins = append(begins, begin)
		}
		begin += len(one)
	}
	return pass, begins
}

// Passes returns how often a step goes through the model. It is the median over the steps of the
// pattern's phase, and 1 if these generate.
func (p *Pattern) Passes() int {
	if p.Generates() {
		return 1
	}
	return max(int(p.passesPerStep().Median), 1)
}

// passesPerStep describes how often the compared steps go through the model, if they generate nothing.
func (p *Pattern) passesPerStep() Spread { return p.spreadOf(func(s *Step) int32 { return s.passes }) }

// tokensPerStep describes how many tokens the compared steps compute, as far as that is known.
func (p *Pattern) tokensPerStep() Spread { return p.spreadOf(func(s *Step) int32 { return s.Batch }) }

// spreadOf describes a figure of the compared steps. Steps of which it is 0 are left out.
func (p *Pattern) spreadOf(figure func(*Step) int32) Spread {
	var all []int32
	for i := range p.comparedSteps() {
		if n := figure(&p.Steps[i]); n > 0 {
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		return Spread{}
	}
	return Spread{Median: int64(stats.Median(all)), Min: int64(slices.Min(all)), Max: int64(slices.Max(all))}
}

// Basis says in one sentence of what steps the figures are, if these generate nothing. It is "" in
// generation, where figures are per generated token.
func (p *Pattern) Basis() string {
	if p.Generates() {
		return ""
	}
	text := "figures are per decode of the prompts"
	generated := slices.ContainsFunc(p.Contexts, func(c ContextReads) bool {
		return c.Context == p.Context && c.Model == p.Model && c.GenerationSteps > 0
	})
	if !generated {
		of := ""
		if len(p.Contexts) > 1 {
			of = " of this context"
		}
		text = fmt.Sprintf("no decode%s generated a single token: figures are per decode", of)
	}
	if p.Phase == tables.PhaseWarmup {
		text += " of the warm-up"
	}
	if generated {
		text += ","
	}
	text += " of " + formatSizes(p.tokensPerStep())
	if passes := p.passesPerStep(); passes.Max > 1 {
		text += ", which goes through the model " + formatPasses(passes, "time", "times")
	}
	return text
}

// formatPasses says how often steps go through the model, in the user's words for one and several.
func formatPasses(s Spread, one, several string) string {
	switch {
	case s.Min != s.Max:
		return fmt.Sprintf("%d to %d %s", s.Min, s.Max, several)
	case s.Max == 1:
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", s.Max, several)
}

// formatSizes says how many tokens the steps compute.
func formatSizes(s Spread) string {
	switch {
	case s.Max <= 0:
		return "an unknown number of tokens"
	case s.Min == s.Max:
		return formatCount(int(s.Max), "token")
	}
	return fmt.Sprintf("%d to %d tokens", s.Min, s.Max)
}
