package soak

// This file looks for what a round has left behind (processes, groups, files, BPF objects), and for
// growth.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/prometheus/procfs"

	"tensorcast/experiments/confine"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
)

// settle is how long it may take until everything is taken down.
const settle = 10 * time.Second

// waitUntilClean calls look until it finds nothing, for at most limit, and returns what it found last.
// It goes on when ctx is about to end: a look that is cut short would find things that are only
// late.
func waitUntilClean(limit time.Duration, look func() ([]string, error)) ([]string, error) {
	end := time.Now().Add(limit)
	for {
		left, err := look()
		if err != nil || len(left) == 0 || time.Now().After(end) {
			return left, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// leftProcesses lists the processes with a marker, except for those that are to live on.
func leftProcesses(marker string, alive ...int) ([]string, error) {
	pids, err := confine.ListMarked(marker)
	if err != nil {
		return nil, err
	}
	var left []string
next:
	for _, pid := range pids {
		for _, a := range alive {
			if pid == a {
				continue next
			}
		}
		left = append(left, fmt.Sprintf("process %d %s", pid, strings.Join(proc.CommandLine(pid), " ")))
	}
	return left, nil
}

// leftGroups lists groups below root whose names begin with prefix, in all hierarchies.
func leftGroups(root *cgroup.Group, prefix string) ([]string, error) {
	var left []string
	for _, file := range root.ProcsFiles() {
		entries, err := os.ReadDir(filepath.Dir(file))
		if err != nil {
			return nil, fmt.Errorf("list control groups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && strings.HasPrefix(e.Name(), prefix) {
				left = append(left, "control group "+filepath.Join(filepath.Dir(file), e.Name()))
			}
		}
	}
	return left, nil
}

// leftFiles lists the contents of directories, without the directories themselves.
func leftFiles(dirs ...string) ([]string, error) {
	var left []string
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
				return nil
			}
			if err == nil && path != dir {
				left = append(left, "file "+path)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list files left: %w", err)
		}
	}
	return left, nil
}

// leftPages says what of a model remains when the page cache is dropped: pages that somebody locks
// or maps.
func leftPages(ctx context.Context, m *confine.Model, what string) ([]string, error) {
	n, err := m.DropAndCount(ctx)
	if err != nil || n == 0 {
		return nil, err
	}
	return []string{fmt.Sprintf("%d bytes of %s stay in memory", n, what)}, nil
}

// object is a BPF object; kind is prog, map or link, as in /proc/PID/fdinfo.
type object struct {
	kind string
	id   uint32
}

func (o object) String() string { return fmt.Sprintf("BPF %s %d", o.kind, o.id) }

// objects lists all BPF objects of the machine. uses has the maps of each program.
func objects() (all map[object]bool, uses map[object][]object, err error) {
	all, uses = map[object]bool{}, map[object][]object{}
	for id := ebpf.ProgramID(0); ; {
		if id, err = ebpf.ProgramGetNextID(id); errors.Is(err, os.ErrNotExist) {
			break
		} else if err != nil {
			return nil, nil, fmt.Errorf("list BPF programs: %w", err)
		}
		o := object{"prog", uint32(id)}
		all[o] = true
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // the object has just gone
		}
		if info, err := p.Info(); err == nil {
			maps, _ := info.MapIDs()
			for _, m := range maps {
				uses[o] = append(uses[o], object{"map", uint32(m)})
			}
		}
		if err := p.Close(); err != nil {
			return nil, nil, fmt.Errorf("close a BPF program: %w", err)
		}
	}
	for id := ebpf.MapID(0); ; {
		if id, err = ebpf.MapGetNextID(id); errors.Is(err, os.ErrNotExist) {
			break
		} else if err != nil {
			return nil, nil, fmt.Errorf("list BPF maps: %w", err)
		}
		all[object{"map", uint32(id)}] = true
	}
	var it link.Iterator
	defer it.Close()
	for it.Next() {
		o := object{"link", uint32(it.ID)}
		all[o] = true
		if info, err := it.Link.Info(); err == nil {
			uses[o] = []object{{"prog", uint32(info.Program)}}
		}
	}
	if err := it.Err(); err != nil {
		return nil, nil, fmt.Errorf("list BPF links: %w", err)
	}
	return all, uses, nil
}

// holdings is what processes have of BPF's.
type holdings struct {
	open   map[object]bool // by descriptors of processes without the marker, this one among them
	marked map[object]bool // by descriptors of those with it
	// mapped says that a process without the marker has a BPF map in its memory map. That holds the map, whether a
	// descriptor is open or not, and does not tell its id. github.com/cilium/ebpf unmaps variables when they are
	// collected as garbage, which may be long after all is closed.
	mapped bool
}

// findHoldings looks through all processes.
func findHoldings(marker string) (h holdings, err error) {
	ours := map[int]bool{}
	if marker != "" {
		pids, err := confine.ListMarked(marker)
		if err != nil {
			return h, err
		}
		for _, pid := range pids {
			ours[pid] = true
		}
	}
	all, err := procfs.AllProcs()
	if err != nil {
		return h, fmt.Errorf("list processes: %w", err)
	}
	h.open, h.marked = map[object]bool{}, map[object]bool{}
	for _, p := range all {
		if ours[p.PID] {
			addOpenObjects(p.PID, h.marked)
			continue
		}
		addOpenObjects(p.PID, h.open)
		h.mapped = h.mapped || mapsObject(p.PID)
	}
	return h, nil
}

// addOpenObjects adds the BPF objects that a process has open. It may end meanwhile, or close some.
func addOpenObjects(pid int, to map[object]bool) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), ":")
			kind, ok := strings.CutSuffix(name, "_id")
			if !ok || kind != "prog" && kind != "map" && kind != "link" {
				continue
			}
			if id, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32); err == nil {
				to[object{kind, uint32(id)}] = true
			}
		}
		_ = f.Close()
	}
}

// mapsObject says whether a process has a BPF map in its memory map, where the kernel writes this name since Linux 5.5.
func mapsObject(pid int) bool {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return false // it has ended
	}
	defer f.Close()
	found := false
	_ = proc.EachArea(f, func(a *proc.Area) { // it may end meanwhile
		found = found || a.Path == "anon_inode:bpf-map"
	})
	return found
}

// unheldObjects lists the BPF objects that were not there before, and that no unmarked process
// holds: neither itself nor by way of a link or a program. Maps that nobody has open are left out while an
// unmarked process maps some.
func unheldObjects(before map[object]bool, marker string) (map[object]bool, error) {
	// The order matters: an object that is made between the two calls is held and not listed.
	all, uses, err := objects()
	if err != nil {
		return nil, err
	}
	h, err := findHoldings(marker)
	if err != nil {
		return nil, err
	}
	by := h.open
	// A link holds a program, and the program holds its maps.
	for _, kind := range []string{"link", "prog"} {
		for o, used := range uses {
			if o.kind == kind && (by[o] || before[o]) {
				for _, u := range used {
					by[u] = true
				}
			}
		}
	}
	left := map[object]bool{}
	for o := range all {
		isMapped := o.kind == "map" && h.mapped && !h.marked[o]
		if !by[o] && !before[o] && !isMapped {
			left[o] = true
		}
	}
	return left, nil
}

// leftObjects lists the BPF objects that nobody held at each of several looks. Objects of others
// are there for a moment, too, while they load or unload.
func leftObjects(limit time.Duration, before map[object]bool, marker string) ([]string, error) {
	var always map[object]bool
	return waitUntilClean(limit, func() ([]string, error) {
		now, err := unheldObjects(before, marker)
		if err != nil {
			return nil, err
		}
		if always == nil {
			always = now
		}
		var left []string
		for o := range always {
			if !now[o] {
				delete(always, o)
				continue
			}
			left = append(left, o.String())
		}
		return left, nil
	})
}

// Sample is what prefetchd --auto holds while it helps nobody.
type Sample struct {
	Seconds     float64 `json:"seconds"` // since the start
	PID         int     `json:"pid"`
	RssAnon     int64   `json:"rss_anon_bytes"`
	Descriptors int     `json:"descriptors"`
}

// takeSample measures a process.
func takeSample(pid int, since time.Time) (Sample, error) {
	s := Sample{Seconds: time.Since(since).Seconds(), PID: pid}
	p, err := procfs.NewProc(pid)
	if err != nil {
		return s, fmt.Errorf("measure the automatic prefetchd: %w", err)
	}
	status, err := p.NewStatus()
	if err != nil {
		return s, fmt.Errorf("measure the memory of the automatic prefetchd: %w", err)
	}
	if s.Descriptors, err = p.FileDescriptorsLen(); err != nil {
		return s, fmt.Errorf("count the descriptors of the automatic prefetchd: %w", err)
	}
	s.RssAnon = int64(status.RssAnon)
	return s, nil
}

const (
	maxAnon   = 20e6    // bytes that prefetchd --auto may hold
	maxGrowth = 4 << 20 // bytes by which anonymous memory may grow in the last half
	// extraDescriptors is by how many descriptors may grow: the runtime opens a few.
	extraDescriptors = 4
)

// findGrowth says what grew too much. Only samples of the last process count: one that was
// restarted begins anew.
func findGrowth(samples []Sample) []string {
	var found []string
	for _, s := range samples {
		if s.RssAnon > maxAnon {
			found = append(found, fmt.Sprintf("the automatic prefetchd holds %d bytes of anonymous memory", s.RssAnon))
			break
		}
	}
	if len(samples) == 0 {
		return found
	}
	last := samples[len(samples)-1]
	for _, s := range samples {
		if s.PID != last.PID || s.Seconds < last.Seconds/2 {
			continue
		}
		if more := last.RssAnon - s.RssAnon; more > maxGrowth {
			found = append(found, fmt.Sprintf("the automatic prefetchd's anonymous memory grew by %d bytes in the "+
				"last half", more))
		}
		if more := last.Descriptors - s.Descriptors; more > extraDescriptors {
			found = append(found, fmt.Sprintf("the automatic prefetchd's descriptors grew by %d in the last half",
				more))
		}
		break
	}
	return found
}
