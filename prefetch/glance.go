package prefetch

// This file looks what the target does without help in a part of a token. That is enough to know that help wins, where it wins clearly, and does less harm than a comparison of whole tokens: what the target's own
// faults map, page by page, has page tables from then on, which make streaming dearer for as long as the target lives (see watchdog.go). Here they are those of a few blocks, the same ones each time.

import (
	"math"
	"slices"
	"time"

	"tensorcast/event"
	"tensorcast/prefetch/pages"
)

// glance is a stretch of a cycle's reads for which nothing is read ahead in some tokens.
type glance struct {
	from, to int   // reads of the stretch
	bytes    int64 // that these read; 0: there is no stretch that is short enough

	token   int64   // the one in which the stretch is left to the target; noToken if that is none
	began   int64   // ns, when the stretch began in the token that is under way; 0: it has not
	nanos   int64   // that its ops have computed since, without waiting for the disk
	compute []int64 // ns, nanos of the whole stretch, in the last tokens with help
	missing int64   // bytes of its blocks that were not in memory when it was left to the target
	looks   []look  // of the tokens that were looked at
	tries   int     // tokens that were to be looked at since the last judgement
}

// look is what was seen of the stretch in a token without help in it.
type look struct {
	took    int64 // ns
	missing int64 // bytes that the target had to read for itself
}

const (
	// The stretch has an eighth of what a token reads, in the middle of it, and no more than a quarter: ops are not parted.
	glanceShare = 8
	glanceMost  = 4
	// glanceTokens are looked at, of which the faster one counts; glanceTries are made for that, as a decode may be none of a single token.
	glanceTokens = 2
	glanceTries  = 4
	// glanceGain is how many times as fast tokens with help have to be for that to be enough.
	glanceGain = 1.5
	noToken    = -1
)

// newGlance finds the stretch of a schedule.
func newGlance(s *Schedule) glance {
	g := glance{token: noToken}
	var whole, before int64
	for _, r := range s.Reads {
		whole += r.Length
	}
	for i, r := range s.Reads {
		middle := before + r.Length/2
		if before += r.Length; middle < whole/2-whole/(2*glanceShare) {
			continue
		}
		if g.bytes == 0 {
			g.from = i
		}
		if g.to, g.bytes = i+1, g.bytes+r.Length; g.bytes >= whole/glanceShare {
			break
		}
	}
	if g.bytes > whole/glanceMost {
		g.bytes = 0
	}
	return g
}

// leaves says whether the target is to read by itself what begins at a position.
func (g *glance) leaves(at position, reads int) bool {
	token, read := int64(at)/int64(reads), int(int64(at)%int64(reads))
	return token == g.token && read >= g.from && read < g.to
}

// see takes an op, of a decode that generates one token, that has read what is at a position, and that has computed for so many ns without waiting for the disk; -1: not known, all of its time is taken for that.
func (g *glance) see(at position, reads int, o *event.Op, nanos int64) {
	token, read := int64(at)/int64(reads), int(int64(at)%int64(reads))
	if read < g.from || read >= g.to {
		return
	}
	if read == g.from {
		g.began, g.nanos = o.Time, 0
	}
	if nanos < 0 {
		nanos = max(o.Duration, 0)
	}
	g.nanos += nanos
	if read < g.to-1 || g.began == 0 || o.Duration < 0 {
		return
	}
	if token == g.token {
		g.looks = append(g.looks, look{o.Time + o.Duration - g.began, g.missing})
	} else if g.compute = append(g.compute, g.nanos); len(g.compute) > lastTokens {
		g.compute = slices.Delete(g.compute, 0, 1)
	}
	g.began = 0
}

// leave is told of a block that is left to the target.
func (c *Controller) leave(r pages.Range) error {
	there, err := c.pages.Resident(r)
	c.help.glance.missing += r.Length - there
	return err
}

// glances begins to look, goes on with it, or judges what was seen; with is how long tokens take with help. It says whether tokens without help are not needed now: more is to be seen, or help wins so clearly that a whole
// token without it would only say so, too.
func (c *Controller) glances(with int64) bool {
	h, w := c.help, &c.watch
	g := &h.glance
	if g.bytes == 0 || h.experts != nil || !c.opts.Strategy.Streams() || c.opts.Lock || c.mayFitAlone() {
		return false
	}
	if len(g.looks) < glanceTokens && g.tries < glanceTries {
		g.tries++
		g.token, g.began, g.missing = h.token(h.now+position(h.reads)-1), 0, 0 // the next one
		return true
	}
	without := h.withoutHelp()
	g.looks, g.tries = nil, 0
	c.opts.Log.Info("looked at a part of tokens without help", "with", time.Duration(with), "without, at least", time.Duration(without))
	if float64(without) < glanceGain*float64(with) {
		return false
	}
	w.plain, w.sure, w.next = without, true, min(2*w.next, maxNext)
	w.tokens, w.with, w.marks = 0, nil, nil
	return true
}

// withoutHelp is about how long a token takes without help at least, in ns, by what was seen of the stretch; 0 if too little was. What the target waited there for what was missing it waits for all that a token reads: of a
// cycle that does not fit nothing is in memory when its turn comes, as the kernel forgets first what is used next. Its readahead may have some of that come while it computes, all of it at best.
func (h *helping) withoutHelp() int64 {
	g := &h.glance
	if len(g.looks) < glanceTokens || len(g.compute) == 0 {
		return 0
	}
	compute := median(g.compute)
	least := math.Inf(1) // ns for each byte
	for _, l := range g.looks {
		if l.missing == 0 {
			return 0
		}
		least = min(least, float64(max(l.took-compute, 0))/float64(l.missing))
	}
	return int64(max(least, float64(compute)/float64(g.bytes)) * float64(h.schedule.Bytes))
}
