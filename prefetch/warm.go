package prefetch

// This file reads back what fits in memory after others took it, while the target computes nothing: the next request of a server that was idle for long finds it there.

import (
	"tensorcast/prefetch/pages"
	"time"
)

const (
	// warmTime is how often it is looked whether something is missing, if that takes less than one part in judgeShare of it.
	warmTime = 2 * time.Second
	// warmMost is how long the pause may grow while what was read back is taken again: somebody else needs the memory more often.
	warmMost = 5 * time.Minute
	// warmShare times as long as it took to read back nothing is read back again.
	warmShare = 20
)

// warmth is what Cold and Warm need from one StandBack to the next look.
type warmth struct {
	parts   []pages.Range // what tokens read, in the order of use
	missing []pages.Range // of these, when Cold looked last
	bytes   []int64       // of each of these, that were not in memory
	pause   time.Duration
	at      time.Time // when to look next
}

// newWarmth is for what is being followed.
func (c *Controller) newWarmth() *warmth {
	w := &warmth{pause: warmTime, at: c.now().Add(warmTime)}
	seen := map[place]bool{}
	for i := range c.help.cycle.Reads {
		r := &c.help.cycle.Reads[i]
		if seen[place{r.File, r.Offset}] || r.Gathers() && !r.Experts { // of rows a token reads next to nothing
			continue
		}
		seen[place{r.File, r.Offset}] = true
		end := min(r.End(), c.known[r.File].size)
		for at := r.Offset &^ (pages.PageSize - 1); at < end; {
			next := min(at-at%c.help.block+c.help.block, (end+pages.PageSize-1)&^(pages.PageSize-1))
			w.parts = append(w.parts, pages.Range{File: r.File, Offset: at, Length: next - at})
			at = next
		}
	}
	return w
}

// Cold says, after a StandBack because everything fits, whether some of that is to be read back with Warm, if the target computes nothing. Ask it after Look; it is never so without Options.KeepWarm.
func (c *Controller) Cold() (bool, error) {
	begun := c.now()
	if c.stood == nil || c.stood.warm == nil || begun.Before(c.stood.warm.at) {
		return false, nil
	}
	w := c.stood.warm
	w.missing, w.bytes = w.missing[:0], w.bytes[:0]
	for _, r := range w.parts {
		there, err := c.pages.Resident(r)
		if err != nil {
			return false, err
		}
		if bytes := min(r.End(), c.known[r.File].size) - r.Offset - there; bytes > 0 { // the last page may end behind the file
			w.missing, w.bytes = append(w.missing, r), append(w.bytes, bytes)
		}
	}
	if len(w.missing) == 0 {
		w.pause = max(w.pause/2, warmTime)
	}
	w.at = c.now().Add(max(w.pause, judgeShare*c.now().Sub(begun)))
	return len(w.missing) > 0, nil
}

// Warm reads back what Cold found to be missing, as long as idle says that the target computes nothing and memory is not short.
func (c *Controller) Warm(idle func() bool) error {
	w, begun, advised := c.stood.warm, c.now(), 0
	for i, r := range w.missing {
		if change := c.opts.Memory.Changed(); change.Short != "" || !idle() {
			break
		}
		for advised = max(advised, i); advised < min(len(w.missing), i+holdsAhead); advised++ {
			if _, ok, err := c.readAhead(w.missing[advised]); err != nil {
				return err
			} else if !ok {
				break
			}
		}
		if err := c.pages.Poll(); err != nil {
			return err
		}
		if err := c.pages.Keep(r); err != nil { // it may be unreadable: then the target does not read it, or ends
			c.opts.Log.Debug("a part of the model is not read back", "error", err)
			continue
		}
		c.sum.Warmed += w.bytes[i]
	}
	// What is taken again soon is read back less and less often.
	w.pause = min(max(2*w.pause, warmShare*c.now().Sub(begun)), warmMost)
	w.at = c.now().Add(w.pause)
	return nil
}
