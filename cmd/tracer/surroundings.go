package main

// This file finds out the limit of the target's memory, and the disk on which its model is.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/outfile"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
	"tensorcast/prefetch/costs"
	"tensorcast/prefetch/pages"
	"tensorcast/trace/tables"
)

// surroundings describes the memory limit and the disk for a capture.
type surroundings struct {
	probe bool   // the disk may be measured once the target has ended
	cache string // file with earlier measurements; "" for none
	log   *slog.Logger
}

// describe implements trace.RecorderOptions.Surroundings. It returns nil for facts that cannot be
// found out. over says that the capture is over; then another process may have the id.
func (s *surroundings) describe(pid int, model string, over bool) (memory *tables.Memory, disk *tables.Disk) {
	var err error
	if !over {
		if memory, err = memoryLimit(pid); err != nil {
			s.log.Debug("cannot tell what limits the target's memory", "error", err)
		}
	}
	// The disk is not measured while the process may use it.
	if disk, err = s.describeDisk(model, over && hasEnded(pid)); err != nil {
		s.log.Debug("cannot tell of the model's disk", "error", err)
	}
	return memory, disk
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

// describeDisk describes the disk with a file. The file's name comes from the target. The disk is
// measured if measure allows it, and there is no measurement yet.
func (s *surroundings) describeDisk(name string, measure bool) (*tables.Disk, error) {
	f, err := regular.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("look at %s: %w", name, err)
	}
	d := &tables.Disk{Device: fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))}
	if text, err := regular.Read("/sys/class/bdi/"+d.Device+"/read_ahead_kb", 64); err == nil {
		d.ReadaheadKiB, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	known := s.readCache()
	if earlier, ok := known[d.Device]; ok {
		d.BytesPerSecond = earlier.BytesPerSecond
		return d, nil
	}
	if !measure || !s.probe {
		return d, nil
	}
	if d.BytesPerSecond, err = measureBandwidth(f, name, st.Size); err != nil {
		return d, err
	}
	known[d.Device] = measurement{d.BytesPerSecond, time.Now().UTC()}
	return d, s.writeCache(known)
}

// measureBandwidth reads the file for a moment, bypassing the page cache. It returns bytes per second.
func measureBandwidth(f *os.File, name string, size int64) (float64, error) {
	const block = 2 << 20
	var blocks []pages.Range
	for at := int64(0); at+block <= size; at += block {
		blocks = append(blocks, pages.Range{Offset: at, Length: block})
	}
	const minBlocks = 16 // fewer are read too fast to be timed
	if len(blocks) < minBlocks {
		return 0, fmt.Errorf("%s is too small to measure its disk", name)
	}
	id, err := proc.FileOf(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return 0, err
	}
	perSecond, err := costs.Bandwidth(proc.Place{Path: name, ID: id}, blocks)
	if err == nil && !(perSecond > 0 && perSecond < 1e15) {
		err = fmt.Errorf("the disk of %s cannot read %g bytes per second", name, perSecond)
	}
	return perSecond, err
}

// measurement is a disk's entry in the cache file.
type measurement struct {
	BytesPerSecond float64   `json:"bytes_per_second"`
	Measured       time.Time `json:"measured"`
}

// maxAge is how long measurements are valid, because other disks may get the same device numbers.
const maxAge = 7 * 24 * time.Hour

// cacheFile is the name of the file with measurements; "" if there is no directory for it.
func cacheFile() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	// Earlier versions wrote disks.json, with figures that are too low.
	return filepath.Join(dir, "tensorcast", "bandwidths.json")
}

// readCache returns the valid measurements by device. Entries that cannot be read are left out, and
// are measured again.
func (s *surroundings) readCache() map[string]measurement {
	all := map[string]measurement{}
	if s.cache == "" {
		return all
	}
	const maxBytes = 1 << 20
	text, err := regular.Read(s.cache, maxBytes)
	if err != nil {
		return all
	}
	if json.Unmarshal(text, &all) != nil || all == nil {
		return map[string]measurement{}
	}
	for device, m := range all {
		age := time.Since(m.Measured)
		if age < 0 || age > maxAge || !(m.BytesPerSecond > 0) || math.IsInf(m.BytesPerSecond, 0) {
			delete(all, device)
		}
	}
	return all
}

// writeCache writes the measurements to the cache file.
func (s *surroundings) writeCache(all map[string]measurement) error {
	if s.cache == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(s.cache), 0o755); err != nil {
		return fmt.Errorf("keep what was measured: %w", err)
	}
	return outfile.Write(s.cache, func(w io.Writer) error { return json.NewEncoder(w).Encode(all) })
}
