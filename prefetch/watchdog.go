package prefetch

// This file compares the target's tokens with help and without: help that does not win is given up.

import (
	"slices"
	"tensorcast/prefetch/room"
	"time"
)

// watchdog measures how long tokens take, in ns by the target's clock. Before anything is held it stands aside for one token; later again when tokens with help take as long
// as those did: the context has grown, a neighbour has come, or the help is none.
type watchdog struct {
	aside    bool    // tokens are measured without help now
	skip     int     // tokens that are not counted, as what was before still shows in them
	wait     int     // tokens that help may still take to show that it wins, see expertTokens
	without  []int64 // tokens without help, of this comparison
	plain    int64   // how long a token takes without help; 0: not known
	sure     bool    // plain is the median of several, or far from those with help
	with     []int64 // the last tokens with help
	tokens   int     // with help, since the last comparison
	next     int     // tokens after which there may be another one
	streamed int64   // bytes that had been read ahead at the beginning of with's first token, see Status
	marks    []int64 // and at the end of each
}

const (
	// Before anything is held one token is measured, the one that was learned from where it can be: each costs what the help would have saved. One shows little: where help seems to
	// win by less than clearGain, there is another comparison after doubtTokens.
	clearGain   = 1.3
	doubtTokens = 32
	// After a mixture's warm-up, which reads all experts, it takes tokens until the kernel keeps what each of them reads: the first is slower than those after it, so there is always
	// another comparison; where help seems to win by clearExpertGain after clearExpertTokens, as tokens without it take long then.
	clearExpertGain   = 3
	clearExpertTokens = 80
	// againTokens are measured in a later comparison, after asideTokens: then the page cache is as the target alone makes it, since it has touched all once.
	againTokens = 3
	asideTokens = 1
	// farGain is how many times as long one token of a mixture has to take without help to be enough, see farSlower.
	farGain = 2
	// expertTokens pass besides until help for experts is taken not to win: those that were kept serve the tokens without help, too, until others have taken their place.
	expertTokens = 32
	// settleTokens pass until what is held and what streams have settled.
	settleTokens = 8
	// lastTokens of those with help are compared.
	lastTokens = 16
	// Where nothing was measured before, as a stored or a guessed cycle is helped from its first token, the first comparison comes as early as any other does, after doubtTokens with a mixture. A comparison does harm
	// that lasts: a target whose model was read for it maps large folios by one entry each, and where its own faults have made page tables, by 512 from then on (PAGEOUT does not free them). On a virtual machine
	// with shadow page tables tokens took 1.5 to 1.8 times as long ever after. So what a dense model's tokens without help take is looked at in a part of them first, see glance.go.
	// leastGain is how much faster tokens with help have to be.
	leastGain = 1.02
	// maxNext bounds how rarely help that won is compared again.
	maxNext = 4096
)

// newWatchdog begins with a comparison, if first is true.
func newWatchdog(first bool) watchdog {
	return watchdog{aside: first, next: settleTokens + lastTokens/2}
}

// token notes a generated token of the context that is followed, of nanos.
func (c *Controller) token(nanos int64) error {
	w := &c.watch
	if w.aside {
		if w.skip > 0 {
			w.skip--
			return nil
		}
		w.without = append(w.without, nanos)
		return c.compare()
	}
	c.sum.Tokens++
	c.decodingNanos += nanos
	c.atToken = c.account()
	c.tried(nanos)
	if w.tokens++; w.tokens <= settleTokens {
		w.streamed = c.help.streamed
		return nil
	}
	if g := &c.help.glance; g.token != noToken { // it was left to itself in a part of this one
		g.token = noToken
	} else {
		w.with, w.marks = append(w.with, nanos), append(w.marks, c.help.streamed)
	}
	if len(w.with) > lastTokens {
		w.streamed = w.marks[0]
		w.with, w.marks = slices.Delete(w.with, 0, 1), slices.Delete(w.marks, 0, 1)
	}
	switch {
	case c.opts.Always, w.tokens < w.next, w.plain == 0 && c.help.experts != nil && w.tokens < doubtTokens:
		return nil
	case w.plain == 0:
	case w.sure || w.tokens < doubtTokens:
		if float64(median(w.with))*leastGain < float64(w.plain) {
			return nil
		}
	case c.help.experts != nil:
		if float64(median(w.with))*clearExpertGain < float64(w.plain) && w.tokens < clearExpertTokens {
			return nil
		}
	case float64(median(w.with))*clearGain < float64(w.plain):
		w.sure = true
		return nil
	}
	if c.glances(median(w.with)) {
		return nil
	}
	c.opts.Log.Info("comparing with tokens without help", "with", time.Duration(median(w.with)), "without, before", time.Duration(w.plain))
	return c.stepAside()
}

// mayFitAlone says whether the target may have room for all that it reads, if it is not for what this process leaves free, streams through and takes for itself. Then its tokens without
// help do not wait for the disk.
func (c *Controller) mayFitAlone() bool {
	free := c.room.Bytes + c.room.Margin() + c.squeeze.margin
	if c.opts.Own != nil {
		free += c.opts.Own()
	}
	return c.room.Level == room.LevelBudget || c.help.schedule.Bytes <= free
}

// compare ends a comparison once enough tokens were measured without help.
func (c *Controller) compare() error {
	w := &c.watch
	first := len(w.with) == 0
	if !first && len(w.without) < againTokens && !c.farSlower() {
		return nil
	}
	w.plain, w.sure = median(w.without), !first
	if !first {
		with := median(w.with)
		if float64(with)*leastGain >= float64(w.plain) {
			if w.wait > 0 {
				w.wait--
				w.without = w.without[1:]
				return nil
			}
			return c.standBack(&StandBack{Reason: NoWin, With: time.Duration(with), Without: time.Duration(w.plain)})
		}
		w.next = min(2*w.next, maxNext)
		c.opts.Log.Info("help wins", "with", time.Duration(with), "without", time.Duration(w.plain))
	}
	w.aside, w.without, w.tokens, w.with, w.marks = false, nil, 0, nil, nil
	return c.takeHold()
}

// farSlower says whether tokens without help take so much longer that no more of them need be measured. Where nothing was measured before, one that takes clearGain times as long is enough, as it is
// before anything is held. Of a mixture, where each costs several with help, one that takes farGain times as long, or more that all take clearGain times as long: what was kept still
// serves them, so they would take no less later.
func (c *Controller) farSlower() bool {
	w := &c.watch
	gain := clearGain
	switch {
	case c.help.experts != nil && len(w.without) == 1:
		gain = farGain
	case c.help.experts == nil && w.plain > 0:
		return false
	}
	return float64(slices.Min(w.without)) > gain*float64(median(w.with))
}

// stepAside leaves the target alone for a comparison. What was held counts as held no more: the target's own misses take its memory.
func (c *Controller) stepAside() error {
	w, h := &c.watch, c.help
	w.aside, w.skip = true, asideTokens
	for b, held := range h.held {
		if !held {
			continue
		}
		h.lose(b)
		if err := c.pages.Release(h.schedule.Blocks[b]); err != nil {
			return err
		}
	}
	h.drop()
	if h.experts != nil {
		w.wait = expertTokens
		h.experts.forget()
	}
	return nil
}

// median of at least one number.
func median(all []int64) int64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
