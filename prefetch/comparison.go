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

// comparison has how long tokens took with help and without, in ns by the target's clock.
type comparison struct {
	plain    int64   // how long a token takes without help; 0: not known
	certain  bool    // plain is the median of several, or far from those with help
	with     []int64 // the last tokens with help
	tokens   int     // with help, since the last comparison
	next     int     // tokens after which there may be another comparison
	streamed int64   // bytes that had been read ahead when with's first token began
	marks    []int64 // the same at the end of each token of with
}

func newComparison() comparison { return comparison{next: settleTokens + lastTokens/2} }

// begin starts to gather tokens with help anew.
func (w *comparison) begin() { w.tokens, w.with, w.marks = 0, nil, nil }

// add notes a token with help, after which so many bytes had been read ahead. counts is false if it was
// partly without.
func (w *comparison) add(nanos, streamed int64, counts bool) {
	if w.tokens++; w.tokens <= settleTokens {
		w.streamed = streamed
		return
	}
	if counts {
		w.with, w.marks = append(w.with, nanos), append(w.marks, streamed)
	}
	if len(w.with) > lastTokens {
		w.streamed = w.marks[0]
		w.with, w.marks = slices.Delete(w.with, 0, 1), slices.Delete(w.marks, 0, 1)
	}
}

// isDue says whether tokens with help take so long that it is to be seen what they take without. experts says
// that the model is a mixture.
func (w *comparison) isDue(experts bool) bool {
	if w.tokens <= settleTokens || w.tokens < w.next || w.plain == 0 && experts && w.tokens < doubtTokens {
		return false
	}
	if w.plain == 0 {
		return true
	}
	gain := float64(w.plain) / float64(middle(w.with))
	switch {
	case w.certain || w.tokens < doubtTokens:
		return gain <= leastGain
	case experts:
		return gain <= clearExpertGain || w.tokens >= clearExpertTokens
	case gain > clearGain:
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

func perSecond(d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(time.Second) / float64(d)
}
