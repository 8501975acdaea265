package room

// This file finds out whether the host is short of memory, and how much of its memory is left to others
// therefore.

import (
	"time"

	"tensorcast/internal/cgroup"
)

const (
	// A leaveShare of the machine's memory is left available to others, but no more than maxLeave bytes.
	// While the host is short, it is up to a shortLeaveShare.
	leaveShare      = 16
	maxLeave        = 2 << 30
	shortLeaveShare = 4
	// The floor rises by a riseShare of the machine's memory in each riseTime in which the host was short. It
	// falls by as much in each fallTime in which the host was not.
	riseShare = 64
	riseTime  = time.Second
	fallTime  = 10 * time.Second
)

// floor is how much of MemAvailable is left to others. It is a share of the machine's memory, and more while
// that is short and for some minutes after. Sizes are bytes.
type floor struct {
	total   int64     // the machine's memory
	extra   int64     // beyond the usual floor
	changed time.Time // when it rose or fell, or could not rise any more
}

// usual is the floor while nobody is short of memory.
func (f *floor) usual() int64 { return min(f.total/leaveShare, maxLeave) }

func (f *floor) bytes() int64 { return f.usual() + f.extra }

// update notes whether the host is short now.
func (f *floor) update(now time.Time, short bool) {
	since := now.Sub(f.changed)
	switch {
	case short && since >= riseTime:
		f.extra = min(f.extra+f.total/riseShare, max(f.total/shortLeaveShare-f.usual(), 0))
	case !short && since >= fallTime:
		f.extra = max(f.extra-f.total/riseShare, 0)
	default:
		return
	}
	f.changed = now
}

const (
	// minSwapIns is how many bytes must come back from swap between two looks to count. Nobody waits for a
	// page now and then.
	minSwapIns = 1 << 20
	// stallWindow is over how long stalls are added up. The kernel adds them up every two seconds, for each
	// group at a time of its own. Others are short of memory if they wait for a stallShare of the window.
	stallWindow = 4 * time.Second
	stallShare  = 20
)

// The reasons of a shortage, as Change.ShortReason has them.
const (
	shortSwap = "swapping in"
	shortHost = "memory pressure of the host (PSI)"
)

// shortage tells from the kernel's counters whether the host is short of memory, and not only a group that is
// at its limit. The host is short if reclaim looks for pages because none are free, and somebody waits for
// memory, or for what was swapped out. That reclaim looks for pages is no shortage by itself: it does so
// wherever page cache fills all memory.
type shortage struct {
	at      time.Time     // of the last look; zero: there was none
	paging  cgroup.Paging // then
	stallAt time.Time     // when stalls were read last; zero: they are not known
	stalled time.Duration // then, of others than the target's group
	scanned int64         // then
}

// update takes the kernel's counters. fired says whether a trigger on the host's pressure has fired since the
// last update. stalls returns how long tasks outside of the target's group have waited for memory, or false
// if the kernel does not tell. The target's own waiting does not concern the others: it may be at its own
// limit, or stream a model that does not fit.
//
// why says why the host is short. It is empty if the host is not, or not known to be. others says whether
// others than the target's group suffer from it.
func (s *shortage) update(
	now time.Time, p cgroup.Paging, fired bool, stalls func() (time.Duration, bool),
) (why string, others bool) {
	before, first := s.paging, s.at.IsZero()
	s.at, s.paging = now, p
	if first {
		before = p
	}
	if p.Scanned > before.Scanned {
		if fired {
			why = shortHost
		}
		if p.SwapIns-before.SwapIns >= minSwapIns {
			why, others = shortSwap, true
		}
	}
	if now.Sub(s.stallAt) < stallWindow {
		return why, others
	}
	stalled, ok := stalls()
	if !ok {
		s.stallAt = time.Time{}
		return why, others
	}
	if !s.stallAt.IsZero() && p.Scanned > s.scanned && stalled-s.stalled > now.Sub(s.stallAt)/stallShare {
		why, others = shortHost, true
	}
	s.stallAt, s.stalled, s.scanned = now, stalled, p.Scanned
	return why, others
}

// forgetStalls drops the stalls that were read, because the target is in another group now.
func (s *shortage) forgetStalls() { s.stallAt = time.Time{} }

// UsualFloor is how many of the host's available bytes are left to others while nobody is short of memory, on
// a machine with total bytes.
func UsualFloor(total int64) int64 { return (&floor{total: total}).usual() }
