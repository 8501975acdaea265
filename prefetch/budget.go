package prefetch

// This file derives how many bytes of the model may be in memory from the least headroom among the target's memory
// cgroup, its ancestors and the host.

import (
	"fmt"
	"math"

	"tensorcast/internal/cgroup"
)

// Room says how many bytes of model pages fit now, those that are resident included, and what bounds them.
type Room struct {
	Bytes int64
	Limit int64  // of the level that bounds
	Level string // its name: a cgroup, or "host"
}

// Memory answers how much room there is for a model of which resident bytes are in memory, pinned ones of them locked.
type Memory interface {
	Room(resident, pinned int64) (Room, error)
	// Changed reports, at little cost, whether somebody has set a limit since the last call.
	Changed() bool
}

// CgroupMemory is the memory of a process as its cgroups and the host bound it. Not for concurrent use.
type CgroupMemory struct {
	group *cgroup.Group // nil: only the host bounds it
	watch *cgroup.Watch
}

// NewCgroupMemory asks about a group's memory; nil stands for none but the host's. Close it.
func NewCgroupMemory(group *cgroup.Group) (*CgroupMemory, error) {
	if group == nil {
		return &CgroupMemory{}, nil
	}
	watch, err := group.Watch()
	if err != nil {
		return nil, err
	}
	return &CgroupMemory{group, watch}, nil
}

// Close releases descriptors.
func (m *CgroupMemory) Close() error {
	if m.watch == nil {
		return nil
	}
	return m.watch.Close()
}

// Changed implements Memory.
func (m *CgroupMemory) Changed() bool { return m.watch != nil && m.watch.Changed() }

// Room implements Memory. Page cache of the target's cgroup gives way to the model, that of other files too: else it would
// grow into what is left free, and take the room of pins. All of it is taken to be charged to each level: where
// another cgroup pays for some of it, the answer is too large by that, but then it does not press on this level either.
func (m *CgroupMemory) Room(resident, pinned int64) (Room, error) {
	host, err := cgroup.Host()
	if err != nil {
		return Room{}, fmt.Errorf("ask for the host's memory: %w", err)
	}
	least := Room{Bytes: math.MaxInt64}
	if m.group != nil {
		stat, err := m.group.Stat()
		if err != nil {
			return Room{}, fmt.Errorf("ask what the target's memory is used for: %w", err)
		}
		cache := max(resident, stat.File-stat.Shmem)
		levels, err := m.group.Levels()
		if err != nil {
			return Room{}, fmt.Errorf("ask for the target's memory limits: %w", err)
		}
		for _, l := range levels {
			if room := l.Headroom() + min(cache, l.Usage); room < least.Bytes {
				least = Room{Bytes: room, Limit: l.Limit, Level: l.Name}
			}
		}
	}
	// MemAvailable counts clean page cache as available, but not what is locked.
	if room := host.Available + pinned; room < least.Bytes {
		least = Room{Bytes: room, Limit: host.Total, Level: "host"}
	}
	return least, nil
}
