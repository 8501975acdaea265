package prefetch

// This file decides when tokens with help are compared with tokens without it.

import (
	"slices"
	"time"

	"tensorcast/prefetch/room"
)

const (
	// Before anything is held one token is measured: the one that was learned from where that can be. Each
	// costs what the help would have saved. One token shows little: where help seems to win by less than
	// clearGain, there is another comparison after doubtTokens.
	clearGain   = 1.3
	doubtTokens = 32
	// After a mixture's warm-up, which reads all experts, it takes tokens until the kernel keeps what each of
	// them reads. The first one is slower than those after it, so there is always another comparison. If help
	// seems to win by clearExpertGain, it comes after clearExpertTokens, because tokens without help take
	// long then.
	clearExpertGain   = 3
	clearExpertTokens = 80
	// settleTokens pass until what is held and what streams have settled.
	settleTokens = 8
	// lastTokens of those with help are compared.
	lastTokens = 16
	// leastGain is how much faster tokens with help have to be.
	//
	// A comparison does harm that lasts. A target whose model was read for it maps each large folio by one
	// entry. Where its own faults have made page tables, it maps them by 512 entries from then on:
	// MADV_PAGEOUT does not free page tables. On a virtual machine with shadow page tables tokens took 1.5 to
	// 1.8 times as long ever after. So what a dense model's tokens without help take is looked at in a part
	// of them first (see glance.go).
	leastGain = 1.02
	// maxNext bounds how rarely help that won is compared again, in tokens.
	maxNext = 4096
)

// comparison has how long steps took with help and without, by the target's clock. A step is compared with steps of
// its class. What is said of tokens above holds for steps of any class.
type comparison struct {
	plain    map[int]step // by class: a step without help that takes about as long as others; missing: not known
	certain  bool         // plain is the median of several, or far from those with help
	mayFit   bool         // the target may have had room for all when that was so, see mayFitAlone
	settling []sample     // the first steps with help, which are only told of
	with     []sample     // the last steps with help
	steps    int          // with help, since the last comparison, by their weight
	next     int          // such steps after which there may be another comparison
	streamed int64        // bytes that had been read ahead when with's first step began
}

// sample is a step with help.
type sample struct {
	step
	streamed int64 // bytes that had been read ahead when it ended
}

func newComparison() comparison {
	return comparison{plain: map[int]step{}, next: settleTokens + lastTokens/2}
}

// begin starts to gather steps with help anew.
func (w *comparison) begin() { w.steps, w.settling, w.with = 0, nil, nil }

// add notes a step with help, after which so many bytes had been read ahead. counts is false if it was partly
// without.
func (w *comparison) add(s step, streamed int64, counts bool) {
	if w.steps += s.weight(); w.steps <= settleTokens {
		w.streamed = streamed
		w.settling = append(w.settling, sample{s, streamed})
		return
	}
	if counts {
		w.with = append(w.with, sample{s, streamed})
	}
	if len(w.with) > lastTokens {
		w.streamed = w.with[0].streamed
		w.with = slices.Delete(w.with, 0, 1)
	}
}

// takes is how long a step of a class takes with help, in ns, and how many tokens it has, both on average over the
// last ones. Both are 0 if there were none.
func (w *comparison) takes(class int) (nanos int64, tokens float64) { return takesOf(w.with, class) }

func takesOf(some []sample, class int) (nanos int64, tokens float64) {
	var all []int64
	for _, s := range some {
		if s.class() == class {
			all = append(all, s.nanos)
			tokens += float64(s.tokens)
		}
	}
	if len(all) == 0 {
		return 0, 0
	}
	return middle(all), tokens / float64(len(all))
}

// usualClass is the class that most of the last steps with help have; 0 if there were none.
func (w *comparison) usualClass() int { return usualClassOf(w.with) }

func usualClassOf(some []sample) int {
	all := make([]step, len(some))
	for i, s := range some {
		all[i] = s.step
	}
	return mostFrequent(all)
}

// lately are the last steps with help. A target may compute no more than the first ones, in which help settles.
func (w *comparison) lately() []sample {
	if len(w.with) == 0 {
		return w.settling
	}
	return w.with
}

// speeds are how many tokens per second there are lately in steps of the usual class, without help and with it; 0 if
// that is not known.
func (w *comparison) speeds() (before, now float64) {
	lately := w.lately()
	class := usualClassOf(lately)
	with, tokens := takesOf(lately, class)
	if class == 0 { // there is none with help yet
		class, tokens = mostPlain(w.plain)
	}
	return perSecond(tokens, time.Duration(w.plain[class].nanos)), perSecond(tokens, time.Duration(with))
}

// tokensPerStep is how many tokens there are lately in a step of the usual class; 1 while that is not known.
func (w *comparison) tokensPerStep() float64 {
	lately := w.lately()
	_, tokens := takesOf(lately, usualClassOf(lately))
	return max(tokens, 1)
}

// mostPlain is the smallest class of which it is known what its steps take without help, and how many tokens such a
// step had.
func mostPlain(plain map[int]step) (class int, tokens float64) {
	for c := range plain {
		if class == 0 || c < class {
			class = c
		}
	}
	return class, float64(plain[class].tokens)
}

// mostFrequent is the class that most of some steps have; of several the smallest, and 0 if there are no steps.
func mostFrequent(all []step) (class int) {
	count := map[int]int{}
	for _, s := range all {
		count[s.class()]++
	}
	for c, n := range count {
		if n > count[class] || n == count[class] && c < class {
			class = c
		}
	}
	return class
}

// isDue says whether steps with help take so long that it is to be seen what they take without. experts says that the
// model is a mixture. mayFit says that the target may have room for all of it without help. Then one step that was
// slow without help shows nothing: it may have read for the first time what stays in memory from then on.
func (w *comparison) isDue(experts, mayFit bool) bool {
	w.certain, w.mayFit = w.certain && (w.mayFit || !mayFit), mayFit
	plain := w.plain[w.usualClass()].nanos
	if w.steps <= settleTokens || w.steps < w.next || len(w.with) == 0 ||
		plain == 0 && experts && w.steps < doubtTokens {
		return false
	}
	if plain == 0 {
		return true
	}
	with, _ := w.takes(w.usualClass())
	gain := float64(plain) / float64(with)
	switch {
	case w.certain || w.steps < doubtTokens:
		return gain <= leastGain
	case experts:
		return gain <= clearExpertGain || w.steps >= clearExpertTokens
	case gain > clearGain && !mayFit:
		w.certain = true
		return false
	}
	return true
}

// middle is the median of some numbers, of two the larger.
func middle(all []int64) int64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// mayFitAlone says whether the target may have room for all that it reads, if it were not for what this
// process leaves free, streams through and takes for itself. Then its tokens without help do not wait for the
// disk.
func (f *followed) mayFitAlone() bool {
	free := f.memory.room.Bytes + f.memory.room.Margin() + f.memory.margin
	if f.opts.Host.Memory != nil {
		free += f.opts.Host.Memory()
	}
	return f.memory.room.Level == room.LevelBudget || f.schedule.Bytes <= free
}
