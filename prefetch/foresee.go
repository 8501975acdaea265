package prefetch

// This file says what a strategy would hold of a cycle, and how long a token would take then, before there is a target.

import (
	"time"

	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/room"
)

// Foreseen is what is expected of a strategy in the steady state.
type Foreseen struct {
	Room   int64         // bytes of memory for the model: those that are left free, and what prefetchd takes itself, taken off
	Held   []pages.Range // in memory all the time
	Window int64         // bytes that may be read ahead, or wait to be paged out
	Missed int64         // bytes that a token reads from disk, of what each token reads
	Token  time.Duration // that a token takes if what is missed is read ahead, as Strategy.Streams has it; else 0: it waits for its own faults
}

// ownMemory is what this process takes of the target's memory group once it has joined that, about.
const ownMemory = 8 << 20

// Foresee plans for a target that reads this cycle, computes for so long in a token, and has so many bytes of memory for its model and its helper, with a disk of so many bytes per second. It
// takes the file system to have large folios. Experts, and other slices that are gathered, are not in it.
func Foresee(c *pattern.Cycle, s Strategy, memory int64, compute time.Duration, disk float64) Foreseen {
	room := room.Room{Bytes: memory - ownMemory, Limit: memory}
	room.Bytes = max(room.Bytes-room.Margin(), 0)
	const unit = 2 << 20
	block := blockFor(c, unit)
	window := func(schedule *Schedule) int64 {
		if block <= pages.MinBlock {
			return windowIn(room.Bytes, defaultWindow)
		}
		return schedule.window(room.Bytes, block, busyBlocks(pages.LeastAtOnce, disk, firstPace, block))
	}
	h := newHelping(NewSchedule(c, block, windowIn(room.Bytes, defaultWindow)/2))
	h.unit, h.block = unit, block
	f := Foreseen{Room: room.Bytes, Window: window(h.schedule)}
	for _, b := range s.Plan(Input{Schedule: h.schedule, Held: h.held, Room: room.Bytes, Window: f.Window}).Hold {
		h.held[b] = true
		f.Held = append(f.Held, h.schedule.Blocks[b])
	}
	for _, v := range h.schedule.Visits {
		if !h.held[v.Block] {
			f.Missed += h.schedule.Blocks[v.Block].Length
		}
	}
	if !s.Streams() {
		return f
	}
	var bytes int64
	for _, r := range h.schedule.Reads {
		bytes += r.Length
	}
	t := opTimes{make([]float64, len(h.schedule.Reads)), make([]float64, len(h.schedule.Reads)+1)}
	for i, r := range h.schedule.Reads {
		t.reads[i] = float64(compute) * float64(r.Length) / float64(bytes)
	}
	f.Token = h.predict(f.Window, t, disk)
	return f
}
