package cgroup

// This file reads the usage of a group and its limits.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Limit returns the group's own limit in bytes, at which the kernel ends a process if it finds no page
// to take. That is memory.max; on version 1 the lesser of the limits of memory and of memory plus swap.
// ok is false if the group has none. The limits of its ancestors apply, too, and memory.high: see
// [Group.Levels].
func (g *Group) Limit() (limit int64, ok bool, err error) {
	levels, err := g.ownLevels(g.mem)
	if err != nil {
		return 0, false, err
	}
	for _, l := range levels {
		if !l.Delays && (!ok || l.Limit < limit) {
			limit, ok = l.Limit, true
		}
	}
	return limit, ok, nil
}

// Usage returns the bytes charged to the group and its descendants, including page cache.
func (g *Group) Usage() (int64, error) {
	return readNumber(g.mem.file(g.fileNames().usage))
}

// fileNames are the names of a group's files that differ between the versions.
type fileNames struct{ usage, events string }

func (g *Group) fileNames() fileNames {
	if g.version == 1 {
		return fileNames{"memory.usage_in_bytes", "memory.oom_control"}
	}
	return fileNames{"memory.current", "memory.events"}
}

// limitFiles are the file of a limit and the file of the usage that counts against it.
type limitFiles struct {
	limit, usage string
	delays       bool // see Level.Delays
}

// limitFiles lists the limits that a group may have.
func (g *Group) limitFiles() []limitFiles {
	if g.version == 1 {
		// The second limit includes swap. Without swap it equals the first. It does not exist if
		// the kernel does not account for swap.
		return []limitFiles{
			{"memory.limit_in_bytes", "memory.usage_in_bytes", false},
			{"memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", false},
		}
	}
	return []limitFiles{{"memory.max", "memory.current", false}, {"memory.high", "memory.current", true}}
}

// Level is a limit that applies to a group: its own, or an ancestor's.
type Level struct {
	Name  string // the limiting group's path and the kind of limit: "/a/b memory.max"
	Limit int64
	Usage int64 // the bytes that count against the limit
	// Cache is the page cache of files that is part of Usage, without shared memory and tmpfs.
	// Reclaim can take it unless it is locked.
	Cache int64
	// Delays says that nobody is ended for lack of memory at this limit, which is memory.high of version 2.
	// Above it whoever asks for memory has to look for pages to take, and is delayed the more the further
	// the usage is above it, by up to two seconds each time (mem_cgroup_handle_over_high in mm/memcontrol.c).
	Delays bool
}

// Headroom is how many bytes may still be charged before the limit is reached. It is negative if
// the limit was lowered below the usage.
func (l Level) Headroom() int64 { return l.Limit - l.Usage }

// Levels returns the limits that apply to the group: its own first, then those of its ancestors up
// to the last visible one. It is empty if only the host limits the group.
//
// On version 1 the kernel also reports the least limit of hidden ancestors. It becomes one more
// level, with the usage of the highest visible group as a lower bound of the usage. On version 2
// hidden limits are unknown: see [Group.Hidden].
func (g *Group) Levels() ([]Level, error) {
	var all []Level
	least := int64(unlimited)
	for _, h := range g.mem.chain() {
		levels, err := g.ownLevels(h)
		if err != nil {
			return nil, err
		}
		for _, l := range levels {
			least = min(least, l.Limit)
		}
		all = append(all, levels...)
	}
	if g.version == 1 && g.Hidden() {
		stat, err := readPairs(g.mem.file("memory.stat"))
		if err != nil {
			return nil, err
		}
		if limit, ok := stat["hierarchical_memory_limit"]; ok && limit < least {
			top := hierarchy{g.mem.mount, "/"}
			usage, err := readNumber(top.file(g.fileNames().usage))
			if err != nil {
				return nil, err
			}
			stat, err := g.stat(top)
			if err != nil {
				return nil, err
			}
			all = append(all, Level{"a hidden ancestor", limit, usage, stat.Cache(), false})
		}
	}
	return all, nil
}

// ownLevels returns the limits of one group: of g or of one of its ancestors.
func (g *Group) ownLevels(h hierarchy) ([]Level, error) {
	var all []Level
	for _, kind := range g.limitFiles() {
		limit, err := readNumber(h.file(kind.limit))
		if errors.Is(err, fs.ErrNotExist) {
			// The root of version 2 has no limit files, and neither has a group whose parent does
			// not enable the controller. But a group that no longer exists must not look unlimited,
			// so that is an error.
			if _, err := os.Stat(h.dir()); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if limit >= unlimited {
			continue
		}
		usage, err := readNumber(h.file(kind.usage))
		if err != nil {
			return nil, err
		}
		all = append(all, Level{Name: h.rel + " " + kind.limit, Limit: limit, Usage: usage, Delays: kind.delays})
	}
	if len(all) == 0 {
		return nil, nil
	}
	stat, err := g.stat(h)
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i].Cache = stat.Cache()
	}
	return all, nil
}

// Stat breaks down the memory of a group and its descendants, in bytes. Mapped, Shmem and
// ActiveFile are parts of File.
type Stat struct {
	Anon        int64 // memory without a file, such as heap and stack
	File        int64 // page cache
	Mapped      int64 // page cache that some process maps
	Shmem       int64 // shared memory and tmpfs, which have no file on disk
	Unevictable int64 // locked memory (mlock), which reclaim cannot take
	ActiveFile  int64 // page cache that was used more than once recently, as far as reclaim knows; without locked pages
	Kernel      int64 // memory of the kernel itself, used for the group; only [Group.Stat] has it
}

// Cache is the page cache of files. It excludes shared memory and tmpfs, which can be dropped only
// by swapping them out.
func (s Stat) Cache() int64 { return max(s.File-s.Shmem, 0) }

// Stat reads the group's memory statistics. A number that this kernel does not report is 0.
func (g *Group) Stat() (Stat, error) {
	stat, err := g.stat(g.mem)
	if err != nil || g.version == 2 {
		return stat, err
	}
	stat.Kernel, err = readNumber(g.mem.file("memory.kmem.usage_in_bytes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Stat{}, err
	}
	return stat, nil
}

// stat reads the statistics of one group: of g or of one of its ancestors.
func (g *Group) stat(h hierarchy) (Stat, error) {
	m, err := readPairs(h.file("memory.stat"))
	if err != nil {
		return Stat{}, err
	}
	if g.version == 2 {
		return Stat{
			Anon: m["anon"], File: m["file"], Mapped: m["file_mapped"], Shmem: m["shmem"],
			Unevictable: m["unevictable"], ActiveFile: m["active_file"], Kernel: m["kernel"],
		}, nil
	}
	return Stat{
		Anon: m["total_rss"], File: m["total_cache"], Mapped: m["total_mapped_file"], Shmem: m["total_shmem"],
		Unevictable: m["total_unevictable"], ActiveFile: m["total_active_file"],
	}, nil
}

// OOMKills returns how many processes of the group the kernel has killed for lack of memory since
// the group was created.
func (g *Group) OOMKills() (int64, error) {
	file := g.mem.file(g.fileNames().events)
	m, err := readPairs(file)
	if err != nil {
		return 0, err
	}
	n, ok := m["oom_kill"]
	if !ok {
		return 0, fmt.Errorf("%s: no oom_kill (Linux has it since 4.13): %w", file, fs.ErrNotExist)
	}
	return n, nil
}

// ReadBytes returns how many bytes the group and its descendants have read from a disk since the
// group was created. The disk is given by the device number that stat(2) reports for a file.
// Partitions have no account of their own; use the number of their disk. See [Group.AccountReads].
func (g *Group) ReadBytes(major, minor uint32) (int64, error) {
	if g.io == (hierarchy{}) {
		return 0, fmt.Errorf("no disk account of control groups is mounted: %w", fs.ErrNotExist)
	}
	name := "io.stat"
	if g.version == 1 {
		name = "blkio.throttle.io_service_bytes_recursive"
	}
	device := fmt.Sprintf("%d:%d", major, minor)
	return readParsed(g.io.file(name), func(text string) (int64, error) {
		return parseReads(text, g.version, device)
	})
}

// parseReads finds the bytes that were read from a device. It returns 0 if the device is not listed.
func parseReads(text string, version int, device string) (int64, error) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != device {
			continue
		}
		value := ""
		if version == 1 { // "8:0 Read 4096"
			if words[1] != "Read" || len(words) != 3 {
				continue
			}
			value = words[2]
		} else { // "8:0 rbytes=4096 wbytes=0 ..."
			for _, w := range words[1:] {
				if v, ok := strings.CutPrefix(w, "rbytes="); ok {
					value = v
				}
			}
		}
		n, err := strconv.ParseUint(value, 10, 63)
		return int64(n), err
	}
	return 0, nil // nothing has been read yet
}
