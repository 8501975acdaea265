package cgroup

// This file reads the memory use of the whole machine, and signs of a shortage of memory.

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// HostMemory is the machine's memory, in bytes.
type HostMemory struct {
	Total int64
	// MemAvailable: memory for new programs without swapping; it includes page cache that can be
	// dropped
	Available int64
	// ActiveFile and InactiveFile are page cache of files that reclaim can take. Active pages were
	// used more than once recently. Locked pages are in neither.
	ActiveFile, InactiveFile int64
}

// Host reads the machine's memory, which limits a group like one more level.
func Host() (HostMemory, error) { return system{"/"}.host() }

func (s system) host() (HostMemory, error) { return readParsed(s.file("/proc/meminfo"), parseHost) }

// parseHost parses the lines of /proc/meminfo that it needs, such as "Active(file): 52444 kB".
// Package procfs parses all lines, which takes ten times as long.
func parseHost(text string) (HostMemory, error) {
	h := HostMemory{Total: -1, Available: -1}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		var field *int64
		switch name {
		case "MemTotal":
			field = &h.Total
		case "MemAvailable":
			field = &h.Available
		case "Active(file)":
			field = &h.ActiveFile
		case "Inactive(file)":
			field = &h.InactiveFile
		default:
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return HostMemory{}, fmt.Errorf("%s: %w", name, err)
		}
		*field = int64(min(kib, unlimited>>10)) << 10
	}
	if h.Total < 0 || h.Available < 0 {
		return HostMemory{}, errors.New("it does not say MemTotal and MemAvailable (Linux has both since 3.14)")
	}
	return h, nil
}

// Paging counts what the whole machine did for lack of memory since boot.
type Paging struct {
	SwapIns int64 // bytes read back from swap of any kind, because somebody needed them
	// Scanned is how many bytes reclaim looked at because the machine was short of free memory. It
	// also rises in normal operation where page cache fills all memory. Reclaim because a group
	// reached its limit does not count.
	Scanned int64
}

// HostPaging reads the machine's counters of virtual memory. The error wraps [fs.ErrNotExist] if
// the kernel has none.
func HostPaging() (Paging, error) { return system{"/"}.paging() }

func (s system) paging() (Paging, error) { return readParsed(s.file("/proc/vmstat"), parsePaging) }

// parsePaging sums counters of /proc/vmstat, which count pages. Before Linux 4.8, reclaim had one
// counter per zone, such as pgscan_direct_normal. pgscan_direct_throttle counts no pages. zswpin
// (Linux 5.19) counts pages that did not come from a swap device, because they were kept compressed
// in memory.
func parsePaging(text string) (Paging, error) {
	var p Paging
	page := int64(unix.Getpagesize())
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		field := &p.Scanned
		switch {
		case name == "pswpin" || name == "zswpin":
			field = &p.SwapIns
		case name == "pgscan_direct_throttle":
			continue
		case !strings.HasPrefix(name, "pgscan_kswapd") && !strings.HasPrefix(name, "pgscan_direct"):
			continue
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return Paging{}, fmt.Errorf("%s: %w", name, err)
		}
		// A page has at most 64 KiB, so this cannot overflow.
		*field = min(*field+int64(min(n, unlimited>>20))*page, unlimited)
	}
	return p, nil
}

// Pressure is the time lost waiting for memory since the group was created. The kernel updates it
// every two seconds. (A trigger fires sooner, see [Watch].)
type Pressure struct {
	Some  time.Duration // at least one task waited
	Full  time.Duration // all tasks that could have run waited
	Whole bool          // the values are those of the whole machine since boot, because the group has none of its own
}

// Pressure reads the group's memory pressure. The error wraps [fs.ErrNotExist] if the kernel does
// not account for pressure (new in Linux 4.20, optional).
func (g *Group) Pressure() (Pressure, error) {
	if g.v2 != (hierarchy{}) && g.v2.rel != "/" {
		p, err := readPressure(g.v2.file("memory.pressure"))
		if !errors.Is(err, fs.ErrNotExist) {
			return p, err
		}
	}
	return g.sys.pressure()
}

// HostPressure is the time lost on the whole machine since boot, by all groups.
func HostPressure() (Pressure, error) { return system{"/"}.pressure() }

func (s system) pressure() (Pressure, error) {
	p, err := readPressure(s.file("/proc/pressure/memory"))
	p.Whole = true
	return p, err
}

func readPressure(file string) (Pressure, error) { return readParsed(file, parsePressure) }

// parsePressure parses lines of the form "some avg10=0.00 avg60=0.00 avg300=0.00 total=123". total
// is in microseconds.
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
