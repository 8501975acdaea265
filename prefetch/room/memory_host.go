package room

// This file tells whether the host is short of memory, and how much of it is left to others therefore.

import (
	"time"

	"tensorcast/internal/cgroup"
)

const (
	// leaveShare of the machine's memory is left available to others, but no more than leaveMost; while the host is
	// short, up to leaveShort.
	leaveShare = 16
	leaveMost  = 2 << 30
	leaveShort = 4
	// The floor rises by a riseShare of the machine's memory in each riseTime in which the host was short, and falls
	// by as much in each fallTime in which it was not.
	riseShare = 64
	riseTime  = time.Second
	fallTime  = 10 * time.Second
)

// floor is how much of MemAvailable is left to others: a share of the machine's memory, more while it is short, for
// some minutes after.
type floor struct {
	total   int64
	extra   int64
	changed time.Time // when it rose, fell, or was found too low while it was at its highest
}

func (f *floor) base() int64 { return min(f.total/leaveShare, leaveMost) }

func (f *floor) bytes() int64 { return f.base() + f.extra }

// see takes in whether the host is short now.
func (f *floor) see(now time.Time, short bool) {
	since := now.Sub(f.changed)
	switch {
	case short && since >= riseTime:
		f.extra = min(f.extra+f.total/riseShare, max(f.total/leaveShort-f.base(), 0))
	case !short && since >= fallTime:
		f.extra = max(f.extra-f.total/riseShare, 0)
	default:
		return
	}
	f.changed = now
}

const (
	// swappedIn is how many bytes must come back from swap between two looks: a page now and then is what nobody
	// waits for.
	swappedIn = 1 << 20
	// stallTime is over how long stalls are added up, as the kernel adds them up every two seconds, for each group at
	// a time of its own. Others are short of memory if they wait for a stallShare of it.
	stallTime  = 4 * time.Second
	stallShare = 20
)

// The reasons of a shortage, as Change.ShortReason has them.
const (
	shortSwap = "swapping in"
	shortHost = "memory pressure of the host (PSI)"
)

// shortage tells from the kernel's counters whether the host is short of memory, rather than a group below its limit:
// reclaim looks for pages because the host has none free, and somebody waits for memory, or for what was swapped out.
// That reclaim looks is no shortage by itself: so it does wherever page cache fills all memory.
type shortage struct {
	at      time.Time
	paging  cgroup.Paging
	stallAt time.Time
	stalled time.Duration // of others than the target's group
	scanned int64         // at stallAt
}

// see takes in the counters, and whether a trigger on the host's pressure has fired since the last look. It returns
// why the host is short, nothing if it is not, or not known to be; and whether others than the target's group suffer
// from it. stalls asks how long tasks outside of that have waited for memory; false if the kernel does not tell. The
// target's own waiting is none of the others' business: it may be at its own limit, or stream a model that does not
// fit.
func (s *shortage) see(now time.Time, p cgroup.Paging, fired bool, stalls func() (time.Duration, bool)) (why string, others bool) {
	before, first := s.paging, s.at.IsZero()
	s.at, s.paging = now, p
	if first {
		before = p
	}
	if p.Scanned > before.Scanned {
		if fired {
			why = shortHost
		}
		if p.SwapIns-before.SwapIns >= swappedIn {
			why, others = shortSwap, true
		}
	}
	if now.Sub(s.stallAt) < stallTime {
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

// moved forgets the stalls: they were counted against another group.
func (s *shortage) moved() { s.stallAt = time.Time{} }

// UsualFloor is how many of the host's available bytes are left to others while nobody is short of memory, on a
// machine with total bytes.
func UsualFloor(total int64) int64 { return (&floor{total: total}).base() }
