package handover

// This file gives a device's memory back when the target's cgroup needs it, and lets the device have it again later.

import "time"

// Balance decides how much memory a device takes, by how much is left for the rest of the model. It is for
// one goroutine.
type Balance struct {
	plan      Plan
	bytes     int64     // that the device may take now
	room      int64     // bytes for the model in the beginning
	calmSince time.Time // since when there is room to take memory again; zero: there is none
}

// The device gives way when less than minLeft is left, until aimedLeft is left. It takes memory again when
// aimedLeft and regainStep more have been left for calmTime. Without that wait, a neighbour that comes and
// goes would have it read and fit weights again and again, each time for seconds.
//
// With third planes there is a bound before that: what is not held is to stay in memory, and restMargin
// beside it. If that does not fit any more, planes that are not needed go until restAim is left beside it.
// Tensors never go for that: then more would have to be read than their planes take.
const (
	calmTime   = 20 * time.Second
	restMargin = 36 << 20 // prefetchd streams through 18 MiB of it, and leaves 12 free
	restAim    = 56 << 20
)

func (b *Balance) minLeft() int64    { return min(40<<20, b.room/14) }
func (b *Balance) aimedLeft() int64  { return min(96<<20, b.room/6) }
func (b *Balance) regainStep() int64 { return min(64<<20, b.room/9) }

// NewBalance returns a balance for a device that was started with a plan, when there were room bytes for the model.
func NewBalance(plan Plan, room int64) *Balance {
	return &Balance{plan: plan, bytes: plan.Bytes, room: room}
}

// Next returns how many bytes the device may take from now on. left is what is left for pages of the model,
// and rest how many bytes of these a token reads, as far as is known.
func (b *Balance) Next(now time.Time, left, rest int64) int64 {
	rest = max(rest, b.plan.Rest)
	// Below Least, tensors come back first; then planes that are not needed.
	most, keep := b.plan.Least, b.aimedLeft()
	if b.bytes >= b.plan.Least && b.plan.Finer {
		most, keep = b.plan.Bytes, rest+restAim
	}
	switch {
	case left < b.minLeft():
		b.bytes = max(b.bytes-(b.aimedLeft()-left), 0)
		b.calmSince = time.Time{}
	case b.bytes > b.plan.Least && left < rest+restMargin:
		b.bytes = max(b.bytes-(keep-left), b.plan.Least)
		b.calmSince = time.Time{}
	case b.bytes >= most || left < keep+b.regainStep():
		b.calmSince = time.Time{}
	case b.calmSince.IsZero():
		b.calmSince = now
	case now.Sub(b.calmSince) >= calmTime:
		b.bytes = min(most, b.bytes+left-keep)
		b.calmSince = time.Time{}
	}
	return b.bytes
}
