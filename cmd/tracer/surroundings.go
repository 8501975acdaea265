package main

// This file finds out the limit of the target's memory, the disk on which its model is, and how fast both are.

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/disk"
	"tensorcast/internal/host"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
	"tensorcast/prefetch/costs"
	"tensorcast/prefetch/pages"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// surroundings describes the memory limit and the disk for a capture.
type surroundings struct {
	probe  bool // disk and memory may be measured once the target has ended
	again  bool // the disk is measured, once, though a fresh measurement is kept
	speeds disk.Speeds
	log    *slog.Logger

	memoryRate float64 // bytes per second; 0: not measured yet
}

// diskMoments is how often a disk is measured, one time after the other, so that it is known how much its speed varies.
const diskMoments = 3

// contradiction is how many times as fast as its disk was measured a target has to read, for the measurement to be
// wrong. What it reads for a moment varies by less.
const contradiction = 1.25

// describe implements trace.RecorderOptions.Surroundings. It returns nil for facts that cannot be
// found out. over says that the capture is over; then another process may have the id.
func (s *surroundings) describe(pid int, model trace.Seen, over bool) (a trace.Surroundings) {
	var err error
	if !over {
		if a.Memory, err = memoryLimit(pid); err != nil {
			s.log.Debug("cannot tell what limits the target's memory", "error", err)
		}
	}
	// Nothing is measured while the process may use it.
	measure := over && hasEnded(pid) && s.probe
	if a.Disk, err = s.describeDisk(model, measure); err != nil {
		s.log.Debug("cannot tell of the model's disk", "error", err)
	}
	if measure && s.memoryRate == 0 {
		if s.memoryRate, err = measureMemory(); err != nil {
			s.log.Debug("cannot tell how fast memory is", "error", err)
		}
	}
	a.MemoryRate = s.memoryRate
	return a
}

// measureMemory measures how many bytes per second all processors read from memory together. It takes half of the
// memory that this process may have, at most: the target may have been the larger part of its group.
func measureMemory() (perSecond float64, err error) {
	room := int64(math.MaxInt64)
	if m, err := memoryLimit(os.Getpid()); err == nil && m.LimitBytes > 0 {
		room = (m.LimitBytes - m.OtherBytes) / 2
	}
	return host.MemoryRate(room)
}

// hasEnded reports whether there is no such process.
func hasEnded(pid int) bool {
	h, err := proc.Open(pid)
	if err == nil {
		h.Close()
	}
	return errors.Is(err, proc.ErrNoProcess)
}

// memoryLimit returns the least of the limits that apply to a process.
func memoryLimit(pid int) (*tables.Memory, error) {
	g, err := cgroup.Find(pid)
	if err != nil {
		return nil, err
	}
	levels, err := g.Levels()
	if err != nil {
		return nil, err
	}
	m := &tables.Memory{}
	for _, l := range levels {
		if m.LimitBytes == 0 || l.Limit < m.LimitBytes {
			m.LimitBytes, m.Of, m.OtherBytes = l.Limit, l.Name, max(l.Usage-l.Cache, 0)
		}
	}
	return m, nil
}

// describeDisk describes the disk with a file. The file's name comes from the target. The disk is measured if measure
// allows it, and no fresh measurement of this disk is kept. Only then the file is opened, because on FUSE that drops
// its pages.
func (s *surroundings) describeDisk(model trace.Seen, measure bool) (*tables.Disk, error) {
	var st unix.Stat_t
	if err := unix.Stat(model.Path, &st); err != nil {
		return nil, fmt.Errorf("look at %s: %w", model.Path, err)
	}
	number := cmp.Or(model.Device, uint64(unix.Major(st.Dev))<<20|uint64(unix.Minor(st.Dev)))
	d := &tables.Disk{Device: fmt.Sprintf("%d:%d", number>>20, number&(1<<20-1))}
	if text, err := regular.Read("/sys/class/bdi/"+d.Device+"/read_ahead_kb", 64); err == nil {
		d.ReadaheadKiB, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	is, err := disk.Find(number)
	if err != nil {
		s.log.Debug("cannot tell which disk it is", "device", d.Device, "error", err)
	}
	d.Identity = is.Identity
	if is.InMemory {
		return d, nil
	}
	kept := s.speeds.Get(is)
	contradicted := kept.BytesPerSecond > 0 && model.BytesPerSecond > contradiction*kept.BytesPerSecond
	use := func(speed disk.Speed) {
		d.BytesPerSecond, d.Least, d.Most, d.Measured = speed.BytesPerSecond, speed.Least, speed.Most, speed.Measured
	}
	if use(kept); contradicted {
		use(disk.SpeedOf(model.BytesPerSecond))
	}
	if !measure || kept.Fresh() && !contradicted && !s.again {
		return d, nil
	}
	var moments []float64
	for range diskMoments {
		perSecond, err := measureBandwidth(model.Path)
		if err != nil {
			return d, err
		}
		moments = append(moments, perSecond)
	}
	s.again = false
	// Somebody else may have used the disk meanwhile. It can do what the target has seen it do.
	speed := disk.SpeedOf(moments...).AtLeast(model.BytesPerSecond)
	use(speed)
	return d, s.speeds.Put(is, speed)
}

// measureBandwidth reads the file for a moment, bypassing the page cache. It returns bytes per second.
func measureBandwidth(name string) (float64, error) {
	f, err := regular.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	const block = 2 << 20
	var blocks []pages.Range
	for at := int64(0); at+block <= info.Size(); at += block {
		blocks = append(blocks, pages.Range{Offset: at, Length: block})
	}
	const minBlocks = 16 // fewer are read too fast to be timed
	if len(blocks) < minBlocks {
		return 0, fmt.Errorf("%s is too small to measure its disk", name)
	}
	perSecond, err := costs.Bandwidth(proc.Place{Path: name, ID: proc.IDOf(info)}, blocks)
	if err == nil && !(perSecond > 0 && perSecond < 1e15) {
		err = fmt.Errorf("the disk of %s cannot read %g bytes per second", name, perSecond)
	}
	return perSecond, err
}
