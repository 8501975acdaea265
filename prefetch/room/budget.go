package room

// This file derives how many bytes of the model may be in memory. The least headroom decides, of the target's
// memory cgroup, its ancestors and the host.
//
// At each level that has a limit (v2: memory.max and memory.high, v1: memory and memory plus swap):
//
//	room = limit - usage + min(max(resident, O), the level's own page cache of files)
//
// resident is how many bytes of the model are in memory and charged to the target's own group. O is the page
// cache of all files that this group pays for. Other files give way to the model: otherwise they would grow into
// what is left free. Only what is charged at a level can make room there. Shared memory and tmpfs are page cache
// that cannot be dropped, and do not count.
//
// What another group has read, and pays for, is in memory at no cost to the target's group. It is no part of the
// room: the target needs none for it as long as it stays.
//
// On the host:
//
//	room = MemAvailable + locked - borrowed - floor - the active page cache of others
//
// borrowed is how many bytes of the model other groups pay for. On the host they take as much memory as any.
// MemAvailable is what is free, and the page cache and slabs that can be dropped, less what the kernel itself
// wants to keep free (see the kernel's documentation of /proc/meminfo). So it has the model's resident bytes,
// unless they are locked. The floor is left to others ([MemoryOptions.Leave]). The active page cache of
// others is what programs use again and again. It is Active(file) of /proc/meminfo, less what the target's
// group has of it, but no more than all page cache that is not the model's. A desktop's programs and
// libraries are there. If they were taken, the desktop would read them from disk again.

import (
	"fmt"
	"math"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/cgroup"
)

// Room says how many bytes of model pages fit now, including those that are resident, and what bounds them. Pages
// that other groups pay for are not among them.
type Room struct {
	Bytes int64  // negative if usage is above a limit that was lowered
	Limit int64  // bytes, of the level that bounds
	Level string // the name of that level: a cgroup, "host", LevelBudget or LevelHidden
	// Lockable is how many of these bytes may be locked, so that enough that can be reclaimed remains at each
	// level: see defaultReserve. It is never negative.
	Lockable int64
	// OwnGroup is the control group that the target's memory is charged to, by the inode of its directory. It is 0
	// where no control group has a limit: then it makes no difference who pays for a page.
	OwnGroup uint64
	// Delays says that the kernel ends nobody at the limit, but delays whoever asks for more: it is a memory.high.
	Delays bool
	// Others is how many bytes of other models, which are read at the same time, want to be in the same room. Bytes
	// is the rest, see [Room.ShareWith].
	Others int64
}

// ShareWith returns what is left of a room for a model of own bytes when models of so many others want to be in it,
// too. Where all of them have room at once, each may have all of it. Otherwise each gets a part by its size.
func (r Room) ShareWith(own, others int64) Room {
	if own <= 0 || others <= 0 || r.Bytes <= 0 || others <= r.Bytes-own {
		return r
	}
	r.Bytes = int64(float64(r.Bytes) * float64(own) / (float64(own) + float64(others)))
	r.Others = others
	return r
}

// Bound says what bounds the room, for people.
func (r *Room) Bound() string {
	if r.Others > 0 {
		return fmt.Sprintf("%s, shared with other models of %s", r.Level, humanize.IBytes(uint64(r.Others)))
	}
	return r.Level
}

// LevelHost is Room.Level where the host's memory bounds the room.
const LevelHost = "host"

// LevelBudget is Room.Level where the user's own budget bounds the room.
const LevelBudget = "budget"

// Margin is how much of the room, in bytes, is left free. The target's own memory grows. The kernel updates
// its counters in batches per processor, so they are never exact.
func (r *Room) Margin() int64 { return max(12<<20, r.Limit/128) }

// Change is what happened to the memory since the last PollChange.
type Change struct {
	RoomChanged bool // the room may have changed: ask for it now
	// ShortReason says why memory is short, in the words of the kernel's field: "memory.events: high",
	// "memory pressure (PSI)", "swapping in". It is empty if nothing says that memory is short.
	ShortReason string
	// OnlyUsage says that only usage seems to have changed, which reading and paging out do by themselves.
	OnlyUsage bool
}

// InMemory is how many bytes of a model are in memory.
type InMemory struct {
	Bytes    int64 // that the target's group pays for
	Borrowed int64 // that other groups pay for
	Locked   int64 // of Bytes: locked
}

// Memory says how much room there is for a model.
type Memory interface {
	// Room says how much room there is now for a model.
	Room(model InMemory) (Room, error)
	// PollChange says, at little cost, whether to ask for the room at once, and why memory is short.
	PollChange() Change
}

// defaultReserve is how many bytes locking leaves at a limit. Locked pages cannot be reclaimed. So whatever a
// neighbour in the group needs at once must be free, or page cache that is not locked. If the neighbour needs
// more, the kernel kills a process. It does not wait until the locked pages of that process are free, and
// kills again: the target. In a group that held 85 % of a model in about a gigabyte, with 28 MB free or
// reclaimable, a process that took 150 MB got the target killed in 10 of 15 runs. A quarter of the limit
// would have covered it. A need beyond that still kills. Only what is kept without a lock gives way to any
// need.
func defaultReserve(limit int64) int64 { return limit / 4 }

// hostReserveShare is the share of the machine's memory that locking leaves available. Daemons that watch it
// (earlyoom, by default) begin to kill below a tenth.
const hostReserveShare = 10

// bounds is what bounds the room for a model. Sizes are bytes.
type bounds struct {
	levels      []cgroup.Level // of the target's group, and of those above it
	groupCache  int64          // page cache of files that the target's group pays for
	groupActive int64          // the active part of it; 0 if the group is the whole machine
	host        cgroup.HostMemory
	floor       int64 // of MemAvailable
	reserve     int64 // what locking leaves at each limit; 0 chooses
}

// room applies the formulas at the head of this file.
func (u *bounds) room(model InMemory) Room {
	least := Room{Bytes: math.MaxInt64, Lockable: math.MaxInt64}
	bound := func(bytes, reserve int64, by cgroup.Level) {
		if bytes < least.Bytes {
			least.Bytes, least.Limit, least.Level, least.Delays = bytes, by.Limit, by.Name, by.Delays
		}
		least.Lockable = max(min(least.Lockable, bytes-reserve), 0)
	}
	for _, l := range u.levels {
		kept := u.reserve
		if kept == 0 {
			kept = defaultReserve(l.Limit)
		}
		bound(l.Headroom()+min(max(model.Bytes, u.groupCache), l.Cache), kept, l)
	}
	h := u.host
	cached := max(model.Bytes+model.Borrowed-model.Locked, 0)
	others := min(max(h.ActiveFile-u.groupActive, 0), max(h.ActiveFile+h.InactiveFile-cached, 0))
	free := h.Available + model.Locked - model.Borrowed - u.floor - others
	bound(free, max(h.Total/hostReserveShare-u.floor, 0), cgroup.Level{Name: LevelHost, Limit: h.Total})
	return least
}
