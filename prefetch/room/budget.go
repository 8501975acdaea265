package room

// This file derives how many bytes of the model may be in memory from the least headroom among the target's memory
// cgroup, its ancestors and the host.
//
// At each level that has a limit (v2: memory.max and memory.high, v1: memory and memory plus swap):
//
//	room = limit - usage + min(max(resident, O), the level's own page cache of files)
//
// resident are the bytes of the model in memory; O is the page cache of files that the target's own group pays for,
// of whichever files: those of others give way to the model, else they would grow into what is left free. What makes
// room at a level is only what is charged there: of a model that another group has read, and pays for, nothing is.
// Shared memory and tmpfs are page cache that cannot be dropped, and do not count.
//
// On the host:
//
//	room = MemAvailable + locked - floor - the active page cache of others
//
// MemAvailable (the kernel's documentation of /proc/meminfo) is what is free, and the page cache and slabs that can
// be dropped, less what the kernel itself wants to keep free. So the model's resident bytes are in it, unless they
// are locked. The floor is left to others ([MemoryOptions.Leave]). The active page cache of others is what programs
// use again and again: Active(file) of /proc/meminfo, less what the target's group has of it, but no more than all
// page cache that is not the model's. A desktop's programs and libraries are there: to take them would have it read
// its own programs from disk.

import (
	"math"

	"tensorcast/internal/cgroup"
)

// Room says how many bytes of model pages fit now, those that are resident included, and what bounds them.
type Room struct {
	Bytes int64
	Limit int64  // of the level that bounds
	Level string // its name: a cgroup, or "host"
	// Lockable is how much of Bytes may be locked, so that enough that can be reclaimed remains at each level: see
	// reserve. It is never negative.
	Lockable int64
}

// LevelBudget is the Level of a room that the user's own budget bounds.
const LevelBudget = "budget"

// Margin is how much of the room, in bytes, is left free: the target's own memory grows, and the kernel updates its
// counters in batches per processor, so they are never exact.
func (r *Room) Margin() int64 { return max(12<<20, r.Limit/128) }

// Change is what happened to the memory since the last look.
type Change struct {
	RoomChanged bool   // the room may have changed: ask for it now
	ShortReason string // why memory is short, in the words of the kernel's field: "memory.events: high", "memory pressure (PSI)", "swapping in"; empty if nothing says that it is
	OnlyUsage   bool   // for all that is known only how much is used has changed, as reading and paging out do by themselves
}

// Memory answers how much room there is for a model of which resident bytes are in memory, locked ones of them locked.
type Memory interface {
	Room(resident, locked int64) (Room, error)
	// PollChange says, at little cost, whether to ask for the room at once, and why memory is short.
	PollChange() Change
}

// reserve is what locking leaves at a limit. Locked pages cannot be reclaimed, so whatever a neighbour in the group
// needs at once must be free, or page cache that is not locked: if it needs more, the kernel kills, and as it does
// not wait until the locked pages of whom it killed are free, it kills again, the target. In a group that held 85 %
// of a model in about a gigabyte, with 28 MB free or reclaimable, a process that took 150 MB had the target killed in
// 10 of 15 runs. A quarter of the limit would have covered it. A need beyond that still kills: only what is kept
// without a lock gives way to any need.
func reserve(limit int64) int64 { return limit / 4 }

// hostReserve is the least share of the machine's memory that locking leaves available: daemons that watch it
// (earlyoom, by default) begin to kill below a tenth.
const hostReserve = 10

// usedBy is what bounds a model.
type usedBy struct {
	levels []cgroup.Level
	cache  int64 // of files, that the target's group pays for
	active int64 // of that, in use; only what is not all the machine's
	host   cgroup.HostMemory
	floor  int64 // of MemAvailable
	// reserve is what locking leaves at each limit; 0 chooses.
	reserve int64
}

// room applies the formulas above.
func (u *usedBy) room(resident, locked int64) Room {
	least := Room{Bytes: math.MaxInt64, Lockable: math.MaxInt64}
	bound := func(bytes, limit, reserve int64, level string) {
		if bytes < least.Bytes {
			least.Bytes, least.Limit, least.Level = bytes, limit, level
		}
		least.Lockable = max(min(least.Lockable, bytes-reserve), 0)
	}
	for _, l := range u.levels {
		kept := u.reserve
		if kept == 0 {
			kept = reserve(l.Limit)
		}
		bound(l.Headroom()+min(max(resident, u.cache), l.Cache), l.Limit, kept, l.Name)
	}
	h := u.host
	others := min(max(h.ActiveFile-u.active, 0), max(h.ActiveFile+h.InactiveFile-max(resident-locked, 0), 0))
	bound(h.Available+locked-u.floor-others, h.Total, max(h.Total/hostReserve-u.floor, 0), "host")
	return least
}
