// This file reads what a group uses and what limits it.

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Limit returns the group's own limit in bytes: the lesser of memory.max and memory.high; on version 1 the lesser of the limits of memory
// and of memory plus swap. ok is false if it has none. The limits of its ancestors apply, too: see [Group.Levels].
func (g *Group) Limit() (limit int64, ok bool, err error) {
	levels, err := g.level(g.mem)
	if err != nil {
		return 0, false, err
	}
	for _, l := range levels {
		if !ok || l.Limit < limit {
			limit, ok = l.Limit, true
		}
	}
	return limit, ok, nil
}

// Usage returns the bytes charged to the group and its descendants, including page cache.
func (g *Group) Usage() (int64, error) {
	return number(g.mem.file(g.names().usage))
}

type names struct{ usage, events string }

func (g *Group) names() names {
	if g.version == 1 {
		return names{"memory.usage_in_bytes", "memory.oom_control"}
	}
	return names{"memory.current", "memory.events"}
}

// limits lists the files of the limits that a group may have, each with the file of the usage that counts against it.
func (g *Group) limits() []struct{ limit, usage string } {
	if g.version == 1 {
		// The second one includes swap. Without swap it equals the first; it does not exist if the kernel does not account for swap.
		return []struct{ limit, usage string }{{"memory.limit_in_bytes", "memory.usage_in_bytes"}, {"memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"}}
	}
	return []struct{ limit, usage string }{{"memory.max", "memory.current"}, {"memory.high", "memory.current"}}
}

// Level is a limit that applies to a group: its own, or an ancestor's.
type Level struct {
	Name  string // the limiting group's path and the kind of limit: "/a/b memory.max"
	Limit int64
	Usage int64 // what counts against the limit
}

// Headroom is how much may still be charged before the limit is reached. It is negative if the limit was lowered below the usage.
func (l Level) Headroom() int64 { return l.Limit - l.Usage }

// Levels returns the limits that apply to the group: its own first, then those of its ancestors up to the last visible one. It is empty if
// only the host limits the group. On version 1 the kernel also tells the least limit of hidden ancestors; it is one more level, with the
// usage of the highest visible group, which is the least that theirs can be. On version 2 hidden limits are unknown: see [Group.Hidden].
func (g *Group) Levels() ([]Level, error) {
	var all []Level
	least := int64(unlimited)
	for _, h := range g.mem.chain() {
		levels, err := g.level(h)
		if err != nil {
			return nil, err
		}
		for _, l := range levels {
			least = min(least, l.Limit)
		}
		all = append(all, levels...)
	}
	if g.version == 1 && g.Hidden() {
		stat, err := pairs(g.mem.file("memory.stat"))
		if err != nil {
			return nil, err
		}
		if limit, ok := stat["hierarchical_memory_limit"]; ok && limit < least {
			usage, err := number(hierarchy{g.mem.mount, "/"}.file(g.names().usage))
			if err != nil {
				return nil, err
			}
			all = append(all, Level{"a hidden ancestor", limit, usage})
		}
	}
	return all, nil
}

// level returns the limits of one group of the chain.
func (g *Group) level(h hierarchy) ([]Level, error) {
	var all []Level
	for _, kind := range g.limits() {
		limit, err := number(h.file(kind.limit))
		if errors.Is(err, fs.ErrNotExist) {
			// The root of version 2 has no limit files, nor has a group whose parent does not enable the controller. But a group that no
			// longer exists must not look unlimited: that is an error.
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
		usage, err := number(h.file(kind.usage))
		if err != nil {
			return nil, err
		}
		all = append(all, Level{h.rel + " " + kind.limit, limit, usage})
	}
	return all, nil
}

// HostMemory is the machine's memory, in bytes.
type HostMemory struct {
	Total     int64
	Available int64 // MemAvailable: what new programs can have without swapping; it includes page cache that can be dropped
}

// Host reads the machine's memory, which limits a group like one more level.
func Host() (HostMemory, error) { return system{"/"}.host() }

func (s system) host() (HostMemory, error) {
	proc, err := s.proc()
	if err != nil {
		return HostMemory{}, err
	}
	info, err := proc.Meminfo()
	if err != nil {
		return HostMemory{}, fmt.Errorf("read meminfo: %w", err)
	}
	if info.MemTotalBytes == nil || info.MemAvailableBytes == nil {
		return HostMemory{}, errors.New("meminfo does not say MemTotal and MemAvailable (Linux has both since 3.14)")
	}
	return HostMemory{int64(min(*info.MemTotalBytes, unlimited)), int64(min(*info.MemAvailableBytes, unlimited))}, nil
}

// Stat is what a group's memory is used for, in bytes, including its descendants. Mapped and Shmem are parts of File.
type Stat struct {
	Anon        int64 // memory of no file: heap, stack
	File        int64 // page cache
	Mapped      int64 // page cache that some process maps
	Shmem       int64 // shared memory and tmpfs, which have no file on disk
	Unevictable int64 // locked memory (mlock), which reclaim cannot take
	Kernel      int64 // memory of the kernel itself, used for the group
}

// Stat reads the group's memory statistics. A number that this kernel does not report is 0.
func (g *Group) Stat() (Stat, error) {
	m, err := pairs(g.mem.file("memory.stat"))
	if err != nil {
		return Stat{}, err
	}
	if g.version == 2 {
		return Stat{m["anon"], m["file"], m["file_mapped"], m["shmem"], m["unevictable"], m["kernel"]}, nil
	}
	kernel, err := number(g.mem.file("memory.kmem.usage_in_bytes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Stat{}, err
	}
	return Stat{m["total_rss"], m["total_cache"], m["total_mapped_file"], m["total_shmem"], m["total_unevictable"], kernel}, nil
}

// OOMKills returns how many processes of the group the kernel has killed for lack of memory since the group was created.
func (g *Group) OOMKills() (int64, error) {
	file := g.mem.file(g.names().events)
	m, err := pairs(file)
	if err != nil {
		return 0, err
	}
	n, ok := m["oom_kill"]
	if !ok {
		return 0, fmt.Errorf("%s: no oom_kill (Linux has it since 4.13): %w", file, fs.ErrNotExist)
	}
	return n, nil
}

// Pressure is the time lost waiting for memory since the group was created. The kernel updates it every two seconds.
type Pressure struct {
	Some  time.Duration // at least one task waited
	Full  time.Duration // all tasks that could have run waited
	Whole bool          // the values are those of the whole machine since boot, because the group has none of its own
}

// Pressure reads the group's memory pressure. The error wraps [fs.ErrNotExist] if the kernel does not account for pressure (new in Linux
// 4.20, optional).
func (g *Group) Pressure() (Pressure, error) {
	if g.v2 != (hierarchy{}) && g.v2.rel != "/" {
		p, err := pressure(g.v2.file("memory.pressure"))
		if !errors.Is(err, fs.ErrNotExist) {
			return p, err
		}
	}
	p, err := pressure(filepath.Join(g.sys.root, "/proc/pressure/memory"))
	p.Whole = true
	return p, err
}

// pressure parses lines of the form "some avg10=0.00 avg60=0.00 avg300=0.00 total=123"; total is in microseconds.
func pressure(file string) (Pressure, error) { return parsed(file, parsePressure) }

func parsePressure(text string) (Pressure, error) {
	var p Pressure
	for line := range strings.Lines(text) {
		kind, _, _ := strings.Cut(line, " ")
		_, total, ok := strings.Cut(line, "total=")
		if !ok {
			continue
		}
		us, err := strconv.ParseUint(strings.TrimSpace(total), 10, 64)
		if err != nil {
			return Pressure{}, err
		}
		if us > uint64(math.MaxInt64/time.Microsecond) {
			return Pressure{}, fmt.Errorf("%s: %d us are not a time", kind, us)
		}
		switch d := time.Duration(us) * time.Microsecond; kind {
		case "some":
			p.Some = d
		case "full":
			p.Full = d
		}
	}
	return p, nil
}

// ReadBytes returns how many bytes the group and its descendants have read from a disk since the group was created. The disk is given by
// the device number that stat(2) reports for a file. Partitions have no account of their own; use the number of their disk. See
// [Group.AccountReads].
func (g *Group) ReadBytes(major, minor uint32) (int64, error) {
	if g.io == (hierarchy{}) {
		return 0, fmt.Errorf("no disk account of control groups is mounted: %w", fs.ErrNotExist)
	}
	name := "io.stat"
	if g.version == 1 {
		name = "blkio.throttle.io_service_bytes_recursive"
	}
	device := fmt.Sprintf("%d:%d", major, minor)
	return parsed(g.io.file(name), func(text string) (int64, error) { return parseReads(text, g.version, device) })
}

// parseReads finds how much was read from a device; 0 if there is nothing of it.
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
