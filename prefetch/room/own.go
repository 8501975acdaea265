package room

// This file derives how much memory of its own a process can have, which gives way to nothing: the kernel drops page
// cache for it.

import (
	"errors"
	"fmt"

	"tensorcast/internal/cgroup"
)

// ForOwnMemory returns how many bytes of memory of its own a process of pid's memory cgroup can have besides what is
// taken already, without swapping. Room.Lockable is not set. The error is cgroup.ErrHidden if the limits are not known.
func ForOwnMemory(pid int) (Room, error) {
	host, err := cgroup.Host()
	if err != nil {
		return Room{}, fmt.Errorf("ask for the host's memory: %w", err)
	}
	least := Room{Bytes: host.Available, Limit: host.Total, Level: LevelHost}
	group, err := cgroup.Find(pid)
	if errors.Is(err, cgroup.ErrNoController) {
		return least, nil
	}
	if err != nil {
		return Room{}, err
	}
	levels, err := group.Levels()
	if err != nil {
		return Room{}, fmt.Errorf("ask for the limits of memory: %w", err)
	}
	for _, l := range levels {
		if bytes := l.Headroom() + l.Cache; bytes < least.Bytes {
			least.Bytes, least.Limit, least.Level, least.Delays = bytes, l.Limit, l.Name, l.Delays
		}
	}
	return least, nil
}
