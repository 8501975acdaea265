package prefetch

// This file tells how often the control loop is to look.

import "time"

const (
	// The loop looks once in a busyShare of what the disk takes for a block, within bounds: oftener it takes a processor from the target that it does not win back, more rarely the disk waits for it.
	busyShare = 0.75
	leastBusy = 250 * time.Microsecond
	mostBusy  = 750 * time.Microsecond
	// expertPause is for a mixture of experts: what is read for a choice is begun when the event comes.
	expertPause = time.Millisecond
	// restPause is for a target that has not decoded for restAfter, or that was stopped in a decode: what it reads next is noticed a little later, limits too.
	restPause = 20 * time.Millisecond
	restAfter = time.Second
	// idlePause is for a target that was never seen to read a model.
	idlePause = 500 * time.Millisecond
)

// Pause is how long Tick need not be called, unless events come. As long as there is nothing to follow, it is long: each call takes a core from the target. Ask after each
// Tick.
func (c *Controller) Pause() time.Duration {
	switch now := c.now(); {
	case len(c.contexts.open) > 0 && now.Sub(c.heard) < restAfter || c.help != nil && len(c.help.toHold) > 0, c.load != nil:
		c.busy = now
	case c.help == nil && c.seeks():
		return max(c.lookInterval(), leastBusy)
	case c.help == nil && len(c.files) == 0:
		return idlePause
	case now.Sub(c.busy) >= restAfter:
		return restPause
	}
	return c.guessPause()
}

// busyPause is how long to wait for a block to come.
func (c *Controller) busyPause() time.Duration {
	if c.help == nil || c.meter.best <= 0 {
		return mostBusy
	}
	return min(max(time.Duration(busyShare*float64(c.help.block)/c.meter.best*float64(time.Second)), leastBusy), mostBusy)
}
