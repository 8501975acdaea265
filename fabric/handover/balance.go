package handover

// This file gives a device's memory back when the target's cgroup needs it, and lets the device have it again later.

import "time"

// Balance decides how much memory a device takes, by how much is left for the rest of the model. It is for one goroutine.
type Balance struct {
	plan Plan
	now  int64
	room int64     // for the model, as it began
	calm time.Time // since when more is left than was planned
}

// The device gives way when less than tight is left, until slack is. It takes memory again when slack and regain more were left for calmTime: a neighbour that comes and goes would have it
// read and fit weights again and again, each time for seconds.
//
// With third planes there is a bound before that: what is not held is to stay in memory, and fits beside some bytes (edge). When it does not any more, planes that are not needed go until it does,
// beside more (brim). Tensors never go for that: they leave more to be read than they take.
const (
	calmTime = 20 * time.Second
	edge     = 36 << 20 // of which prefetchd streams through 18 MiB and leaves 12 free
	brim     = 56 << 20
)

func (b *Balance) tight() int64  { return min(40<<20, b.room/14) }
func (b *Balance) slack() int64  { return min(96<<20, b.room/6) }
func (b *Balance) regain() int64 { return min(64<<20, b.room/9) }

// NewBalance begins with what the device was started with, and the room that there was for the model then.
func NewBalance(plan Plan, room int64) *Balance {
	return &Balance{plan: plan, now: plan.Bytes, room: room}
}

// Next is what the device may take from now on, while left bytes are left for pages of the model, of which a token reads rest, as far as is known.
func (b *Balance) Next(now time.Time, left, rest int64) int64 {
	rest = max(rest, b.plan.Rest)
	most, keep := b.plan.Least, b.slack() // with less than Least, tensors come back first
	if b.now >= b.plan.Least && b.plan.Finer {
		most, keep = b.plan.Bytes, rest+brim
	}
	switch {
	case left < b.tight():
		b.now = max(b.now-(b.slack()-left), 0)
		b.calm = time.Time{}
	case b.now > b.plan.Least && left < rest+edge:
		b.now = max(b.now-(keep-left), b.plan.Least)
		b.calm = time.Time{}
	case b.now >= most || left < keep+b.regain():
		b.calm = time.Time{}
	case b.calm.IsZero():
		b.calm = now
	case now.Sub(b.calm) >= calmTime:
		b.now = min(most, b.now+left-keep)
		b.calm = time.Time{}
	}
	return b.now
}
