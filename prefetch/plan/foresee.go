package plan

// This file says what a strategy would hold of a cycle, and how long a token would take then, before there is
// a target.

import (
	"time"

	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/room"
)

// Foreseen is what is expected of a strategy in the steady state.
type Foreseen struct {
	Room   int64         // bytes of memory for the model, without the reserve and what prefetchd takes itself
	Held   []pages.Range // in memory all the time
	Window int64         // bytes that may be read ahead, or wait to be paged out
	Missed int64         // bytes that a token reads from disk, of what each token reads
	// Token is how long a token takes if what is missed is read ahead (Traits.Streams). Otherwise it is 0:
	// the token waits for its own faults.
	Token time.Duration
}

// ReachedShare is which share of a disk's best rate counts where somebody tells beforehand what prefetchd will reach.
// The disk delivers less while a target computes, and a window is not always filled at the moment when the disk is
// free. With this share what is expected was within 25 % of what was measured, with several programs and limits
// (docs/measurements/analyze.md).
const ReachedShare = 0.9

const (
	// ownMemory is about what prefetchd takes of the target's memory group once it has joined that, in bytes.
	ownMemory = 8 << 20
	// folio is the size of a large folio, in bytes.
	folio = 2 << 20
)

// ForeseeReached is [Foresee] for prefetchd's default strategy, with the share of the disk's best rate that it reaches.
func ForeseeReached(c *pattern.Cycle, memory int64, compute time.Duration, disk float64) Foreseen {
	return Foresee(c, Auto{}, memory, compute, ReachedShare*disk)
}

// Foresee plans for a target that reads this cycle and computes for so long in a token. memory is how many
// bytes there are for the model and its helper, and disk how many bytes per second the disk delivers. The
// file system is taken to have large folios. Experts, and other slices that are gathered, are not counted.
func Foresee(c *pattern.Cycle, s Strategy, memory int64, compute time.Duration, disk float64) Foreseen {
	free := room.Room{Bytes: memory - ownMemory, Limit: memory}
	free.Bytes = max(free.Bytes-free.Margin(), 0)
	block := BlockSize(c, folio)
	schedule := NewSchedule(c, block, BoundWindow(free.Bytes, DefaultWindow)/2)
	f := Foreseen{Room: free.Bytes, Window: BoundWindow(free.Bytes, DefaultWindow)}
	if block > pages.MinBlock {
		f.Window = schedule.Window(free.Bytes, block, BusyBlocks(pages.MinFoliosAtOnce, disk, FirstPace, block))
	}
	held := make([]bool, len(schedule.Blocks))
	for _, b := range s.Plan(Input{Schedule: schedule, Held: held, Room: free.Bytes, Window: f.Window}).Hold {
		held[b] = true
		f.Held = append(f.Held, schedule.Blocks[b])
	}
	for _, v := range schedule.Visits {
		if !held[v.Block] {
			f.Missed += schedule.Blocks[v.Block].Length
		}
	}
	if !s.Traits().Streams {
		return f
	}
	var bytes int64
	for _, r := range schedule.Reads {
		bytes += r.Length
	}
	t := OpTimes{make([]float64, len(schedule.Reads)), make([]float64, len(schedule.Reads)+1)}
	for i, r := range schedule.Reads {
		t.Reads[i] = float64(compute) * float64(r.Length) / float64(bytes)
	}
	f.Token = schedule.ExpectToken(held, f.Window, Lead(block, folio), t, disk)
	return f
}
