package handover

// This file gives a device's memory back when the target's cgroup needs it, and lets the device have it again later.

import "time"

// Balance decides how much memory a device takes, by how much is left for the rest of the model. It is for one goroutine.
type Balance struct {
	most int64 // as it began
	now  int64
	room int64     // for the model, as it began
	calm time.Time // since when more is left than was planned
}

// The device gives way when less than tight is left, until slack is. It takes memory again when slack and regain more were left for calmTime: a neighbour that comes and goes would have it
// read and fit weights again and again, each time for seconds.
const calmTime = 20 * time.Second

func (b *Balance) tight() int64  { return min(40<<20, b.room/14) }
func (b *Balance) slack() int64  { return min(96<<20, b.room/6) }
func (b *Balance) regain() int64 { return min(64<<20, b.room/9) }

// NewBalance begins with what the device was started with, and the room that there was for the model then.
func NewBalance(bytes, room int64) *Balance { return &Balance{most: bytes, now: bytes, room: room} }

// Next is what the device may take from now on, while left bytes are left for pages of the model.
func (b *Balance) Next(now time.Time, left int64) int64 {
	switch {
	case left < b.tight():
		b.now = max(b.now-(b.slack()-left), 0)
		b.calm = time.Time{}
	case b.now == b.most || left < b.slack()+b.regain():
		b.calm = time.Time{}
	case b.calm.IsZero():
		b.calm = now
	case now.Sub(b.calm) >= calmTime:
		b.now = min(b.most, b.now+left-b.slack())
		b.calm = time.Time{}
	}
	return b.now
}
