package prefetch

// This file looks what the target does without help in a part of a token. Where help wins clearly, that is
// enough to know it, and does less harm than a comparison of whole tokens. What the target's own faults map,
// page by page, has page tables from then on, which make streaming dearer for as long as the target lives
// (see comparison.go). Here they are those of a few blocks, the same ones each time.

import (
	"math"
	"slices"
	"time"

	"tensorcast/event"
	"tensorcast/prefetch/follow"
	"tensorcast/prefetch/plan"
)

const (
	// The stretch has one part in glanceShare of what a token reads, in the middle of it, and no more than
	// one in glanceMost: ops are not split.
	glanceShare = 8
	glanceMost  = 4
	// glanceTokens are looked at, of which the faster one counts. glanceTries are made for that, because a
	// decode may be none of a single token.
	glanceTokens = 2
	glanceTries  = 4
	// glanceGain is how many times as fast tokens with help have to be for that to be enough.
	glanceGain = 1.5
	noToken    = -1
)

// glance is a stretch of a cycle's reads for which nothing is read ahead in some tokens.
type glance struct {
	from, to int   // reads of the stretch
	bytes    int64 // that these read; 0: there is no stretch that is short enough

	token   int64         // the one in which the stretch is left to the target; noToken if that is none
	began   int64         // ns, when the stretch began in the token under way; 0: it has not
	nanos   int64         // that its ops have computed since, without waiting for the disk
	compute []int64       // ns, nanos of the whole stretch, in the last tokens with help
	missing int64         // bytes of its blocks that were not in memory when it was left to the target
	seen    []observation // in tokens without help in it
	tries   int           // tokens that were to be looked at since the last judgement
}

// observation is what was seen of the stretch in a token without help in it.
type observation struct {
	took    int64 // ns
	missing int64 // bytes that the target had to read for itself
}

// newGlance finds the stretch of a schedule.
func newGlance(s *plan.Schedule) glance {
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

// isLeft says whether the target is to read by itself what begins at a position of a cycle of so many reads.
func (g *glance) isLeft(at follow.Position, reads int) bool {
	token, read := int64(at)/int64(reads), int(int64(at)%int64(reads))
	return token == g.token && read >= g.from && read < g.to
}

// note takes an op of a decode that generates one token. The op has read what is at a position, and has
// computed for so many ns without waiting for the disk; -1 if that is not known: then all of its time is
// taken for that.
func (g *glance) note(at follow.Position, reads int, o *event.Op, nanos int64) {
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
		g.seen = append(g.seen, observation{o.Time + o.Duration - g.began, g.missing})
	} else if g.compute = append(g.compute, g.nanos); len(g.compute) > lastTokens {
		g.compute = slices.Delete(g.compute, 0, 1)
	}
	g.began = 0
}

// glanceWins begins to look, goes on with it, or judges what was seen. with is how long steps of a class take with
// help, in ns. Only decodes of one token are looked at. It returns true if no whole tokens without
// help are needed now: more is to be seen, or help wins so clearly that a whole token without it would only say the
// same.
func (f *followed) glanceWins(class int, with int64) bool {
	g, w := &f.glance, &f.compared
	if class != 1 || g.bytes == 0 || f.mixture != nil || !f.opts.Strategy.Traits().Streams || f.opts.Lock ||
		f.mayFitAlone() {
		return false
	}
	if len(g.seen) < glanceTokens && g.tries < glanceTries {
		g.tries++
		g.token, g.began, g.missing = f.TokenOf(f.Now+follow.Position(f.Reads)-1), 0, 0 // the next one
		return true
	}
	without := f.estimatePlain()
	g.seen, g.tries = nil, 0
	f.log.Info("looked at a part of tokens without help",
		"with", time.Duration(with), "without, at least", time.Duration(without))
	if float64(without) < glanceGain*float64(with) {
		return false
	}
	w.plain[class], w.certain, w.next = step{class, without}, true, min(2*w.next, maxNext)
	w.begin()
	return true
}

// estimatePlain is about how long a token takes without help at least, in ns, by what was seen of the
// stretch; 0 if too little was. As long as the target waited there for each missing byte, it waits for all
// that a token reads: of a cycle that does not fit nothing is in memory when its turn comes, because the
// kernel forgets first what is used next. Its readahead may have some of that come while it computes, all of
// it at best.
func (f *followed) estimatePlain() int64 {
	g := &f.glance
	if len(g.seen) < glanceTokens || len(g.compute) == 0 {
		return 0
	}
	compute := middle(g.compute)
	least := math.Inf(1) // ns for each byte
	for _, o := range g.seen {
		if o.missing == 0 {
			return 0
		}
		least = min(least, float64(max(o.took-compute, 0))/float64(o.missing))
	}
	return int64(max(least, float64(compute)/float64(g.bytes)) * float64(f.schedule.Bytes))
}
