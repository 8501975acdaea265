package main

// This file finds what limits the target's memory, and of what disk its model is.

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

// surroundings tells a capture of them.
type surroundings struct {
	probe bool   // the disk may be measured, when the target has ended
	cache string // file with what was measured before; "" for none
	log   *slog.Logger
}

// tell is trace.RecorderOptions.Surroundings. What cannot be found out is left out. When the capture is over the process may be another one.
func (s *surroundings) tell(pid int, model string, over bool) (memory *tables.Memory, disk *tables.Disk) {
	var err error
	if !over {
		if memory, err = memoryOf(pid); err != nil {
			s.log.Debug("cannot tell what limits the target's memory", "error", err)
		}
	}
	if disk, err = s.disk(model, over && gone(pid)); err != nil {
		s.log.Debug("cannot tell of the model's disk", "error", err)
	}
	return memory, disk
}

// gone says that there is no such process: the disk is not measured beside one that uses it.
func gone(pid int) bool {
	h, err := proc.Open(pid)
	if err == nil {
		h.Close()
	}
	return errors.Is(err, proc.ErrNoProcess)
}

// memoryOf is the least of the limits that apply to a process.
func memoryOf(pid int) (*tables.Memory, error) {
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

// disk tells of the one with a file, whose name is the target's. It is measured if that is allowed now, and was not done before.
func (s *surroundings) disk(name string, measure bool) (*tables.Disk, error) {
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
	known := s.measured()
	if was, ok := known[d.Device]; ok {
		d.BytesPerSecond = was.BytesPerSecond
		return d, nil
	}
	if !measure || !s.probe {
		return d, nil
	}
	if d.BytesPerSecond, err = bandwidth(f, name, st.Size); err != nil {
		return d, err
	}
	known[d.Device] = measurement{d.BytesPerSecond, time.Now().UTC()}
	return d, s.keep(known)
}

// bandwidth reads the file for a moment, past the page cache.
func bandwidth(f *os.File, name string, size int64) (float64, error) {
	const block = 2 << 20
	var blocks []pages.Range
	for at := int64(0); at+block <= size; at += block {
		blocks = append(blocks, pages.Range{Offset: at, Length: block})
	}
	const least = 16 // less is read before it can be timed
	if len(blocks) < least {
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

// measurement is what is kept of a disk.
type measurement struct {
	BytesPerSecond float64   `json:"bytes_per_second"`
	Measured       time.Time `json:"measured"`
}

// Measurements are kept for so long: device numbers come to be other disks'.
const measuredFor = 7 * 24 * time.Hour

// cacheFile is where measurements are kept; "" if there is no such place.
func cacheFile() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "tensorcast", "bandwidths.json") // disks.json, of earlier versions, has figures that are too low
}

// measured is what was kept, by device. What cannot be read is measured again.
func (s *surroundings) measured() map[string]measurement {
	all := map[string]measurement{}
	if s.cache == "" {
		return all
	}
	const most = 1 << 20
	text, err := regular.Read(s.cache, most)
	if err != nil {
		return all
	}
	if json.Unmarshal(text, &all) != nil || all == nil {
		return map[string]measurement{}
	}
	for device, m := range all {
		if age := time.Since(m.Measured); age < 0 || age > measuredFor || !(m.BytesPerSecond > 0) || math.IsInf(m.BytesPerSecond, 0) {
			delete(all, device)
		}
	}
	return all
}

func (s *surroundings) keep(all map[string]measurement) error {
	if s.cache == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(s.cache), 0o755); err != nil {
		return fmt.Errorf("keep what was measured: %w", err)
	}
	return outfile.Write(s.cache, func(w io.Writer) error { return json.NewEncoder(w).Encode(all) })
}
