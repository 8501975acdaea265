package prefetch

// This file says how often the control loop looks, and how often it did.

import (
	"time"
)

const (
	// The loop looks once in a busyShare of what the disk takes for a block, within bounds. If it looked more
	// often, it would take a processor from the target that it does not win back. If it looked less often,
	// the disk would wait for it.
	busyShare = 0.75
	leastBusy = 250 * time.Microsecond
	mostBusy  = 750 * time.Microsecond
	// expertPause is for a mixture: what is read for a choice is begun when the event comes. settledPause is for one
	// of which all else is held, so that only limits have to be noticed. leastExpertPause is the least before it is
	// looked whether the disk is idle, so that experts can be read that were not chosen yet.
	expertPause      = time.Millisecond
	settledPause     = 3 * time.Millisecond
	leastExpertPause = 150 * time.Microsecond
	// Within a batch the loop looks readShare times in the mean time between two reads, which is long in a prompt, but
	// no more rarely than promptPause.
	readShare   = 8
	promptPause = 2 * time.Millisecond
	// restPause is for a target that has not decoded for restAfter, or that was stopped in a decode. What it
	// reads next is noticed a little later then, and so are limits.
	restPause = 20 * time.Millisecond
	restAfter = time.Second
	// idlePause is for a target that was never seen to read a model.
	idlePause = 500 * time.Millisecond

	// slowPace bounds the time between two looks: if it was longer, the thread was not wanted, or the machine
	// stood still.
	slowPace = 4 * time.Millisecond
	// paceShare of the usual time is what the last one counts for.
	paceShare = 256
)

// timing is when the loop looked.
type timing struct {
	last time.Time
	pace time.Duration // the usual time between two looks
	busy time.Time     // when there was something to do last
}

// note notes that the loop looks at a time, while the target decodes or not.
func (t *timing) note(now time.Time, decodes bool) {
	if !t.last.IsZero() && decodes {
		t.pace += (min(now.Sub(t.last), slowPace) - t.pace) / paceShare
	}
	t.last = now
}

// isBusy says whether the loop has something to do, or had a moment ago.
func (s *session) isBusy(something bool) bool {
	now := s.now()
	if something || s.contexts.Decoding() && now.Sub(s.heard) < restAfter {
		s.loop.busy = now
		return true
	}
	return now.Sub(s.loop.busy) < restAfter
}

// pauseWhileLearning is how long nobody need look while no cycle is known.
func (s *session) pauseWhileLearning() time.Duration {
	decodes := s.contexts.Decoding() && s.now().Sub(s.heard) < restAfter
	switch {
	case !decodes && s.seeksModel():
		return max(s.seekInterval(), leastBusy)
	case !decodes && len(s.numbers) == 0:
		return idlePause
	case !s.isBusy(false):
		return restPause
	}
	return mostBusy
}

// pauseForBlock is how long to wait for a block to come.
func (f *followed) pauseForBlock(something bool) time.Duration {
	switch {
	case !f.isBusy(something || len(f.resting.toHold) > 0):
		return restPause
	case f.meter.best <= 0:
		return mostBusy
	}
	block := time.Duration(busyShare * float64(f.block) / f.meter.best * float64(time.Second))
	return max(min(max(block, leastBusy), mostBusy), f.pauseInBatch())
}

// pauseInBatch is how rarely it is enough to look within a decode of several tokens; 0 if that is not known. Such a
// decode computes for long with each weight, and each look takes a processor from it.
func (f *followed) pauseInBatch() time.Duration {
	if f.Decode == 0 || f.Begun != 0 || f.Met == 0 {
		return 0
	}
	return min(f.now().Sub(f.began)/time.Duration(readShare*f.Met), promptPause)
}
