package processes

// This file finds processes as they come and go.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/prometheus/procfs"
)

// Candidate is a process that computes with ggml, as far as can be told from outside. What it says of itself decides
// only whether it is looked at closely: whoever does that checks everything.
type Candidate struct {
	PID  int
	Name string // as it calls itself: at most 15 bytes
	// Root is the topmost process above it that was asked for, or the process itself.
	Root int
	Evidence
}

// Selection says which processes are asked for. The zero value asks for all.
type Selection struct {
	// Names are names of programs, as in IsNamed. They select processes and all that these have started.
	Names []string
	// Root, if it is not 0, selects this process and all that it has started.
	Root int
	// Never are names of programs, too. Such processes, and all that these have started, are not selected, whatever
	// else says so.
	Never []string
}

// A process is looked at in intervals that double, because a program may load ggml or a model long after its start.
const (
	minLookInterval = time.Second
	maxLookInterval = 30 * time.Second
)

// maxDepth is how many processes above one another are looked at.
const maxDepth = 1000

// Interval is how often FindNew is to be called.
const Interval = time.Second

// Finder finds each process when it begins to compute with ggml. It is for one goroutine.
//
// It is cheap where there are thousands of processes: most are looked at every 30 seconds, a memory map is read only
// where the size of the address space has changed, and each file is opened once a minute at most.
type Finder struct {
	selection Selection
	own       os.FileInfo // this program, which maps models, too, and is no candidate
	known     map[int]*knownProcess
	contents  contents
}

// knownProcess is a process that was looked at.
type knownProcess struct {
	// start is when the process started, in ticks since boot. A process with the same number and another start is
	// another process.
	start    uint64
	next     time.Time // when to look again
	interval time.Duration

	name   string
	parent int
	asked  bool // it is one that the selection names itself
	never  bool // it is one that Selection.Never names itself

	size     uint // of its address space when its memory map was read, in bytes; 0: it is to be read
	found    Evidence
	reported Evidence
}

// NewFinder returns a Finder of the selected processes.
func NewFinder(s Selection) (*Finder, error) {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return &Finder{
		selection: s, own: own, known: map[int]*knownProcess{}, contents: contents{map[fileKey]content{}},
	}, nil
}

// FindNew returns the candidates of which more is known than when it returned them last: it returns a process once
// when it has ggml's code, and once when it maps a model, or both at once. A process that ends meanwhile, or that this
// process may not look at, is no candidate.
func (f *Finder) FindNew(now time.Time) (found []Candidate, err error) {
	due, err := f.refresh(now)
	if err != nil {
		return nil, err
	}
	for _, pid := range due {
		k := f.known[pid]
		root, selected := f.rootOf(pid)
		if !selected || k.reported == (Evidence{GGML: true, Model: true}) {
			continue
		}
		f.look(pid, k, now)
		if k.found != k.reported {
			k.reported = k.found
			found = append(found, Candidate{PID: pid, Name: k.name, Root: root, Evidence: k.found})
		}
	}
	return found, nil
}

// refresh notes which processes there are, and returns those that are to be looked at now.
func (f *Finder) refresh(now time.Time) (due []int, err error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	there := make(map[int]bool, len(all))
	for _, p := range all {
		there[p.PID] = true
		k := f.known[p.PID]
		if k != nil && now.Before(k.next) {
			continue
		}
		stat, err := p.Stat()
		if err != nil {
			continue
		}
		if k == nil || k.start != stat.Starttime {
			k = &knownProcess{start: stat.Starttime, interval: minLookInterval / 2}
			f.known[p.PID] = k
		}
		k.interval = min(2*k.interval, maxLookInterval)
		k.next = now.Add(k.interval)
		if stat.VSize == 0 { // a thread of the kernel, or a process that is ending
			continue
		}
		if stat.VSize != k.size {
			k.size = 0
		}
		k.name, k.parent, k.asked = stat.Comm, stat.PPID, f.asksFor(p.PID)
		k.never = isOneOf(p.PID, f.selection.Never)
		due = append(due, p.PID)
	}
	for pid := range f.known {
		if !there[pid] {
			delete(f.known, pid)
		}
	}
	return due, nil
}

// asksFor says whether the selection names a process itself.
func (f *Finder) asksFor(pid int) bool {
	s := &f.selection
	switch {
	case s.Root != 0:
		return pid == s.Root
	}
	return isOneOf(pid, s.Names)
}

// isOneOf says whether a process has one of several names.
func isOneOf(pid int, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return IsNamed(pid, name) })
}

// Selects says whether a process is selected, as far as was known when FindNew was called last. A process that was not
// there then is not.
func (f *Finder) Selects(pid int) bool {
	if f.known[pid] == nil {
		return false
	}
	_, selected := f.rootOf(pid)
	return selected
}

// rootOf returns the topmost process above a process that the selection names, which may be the process itself.
func (f *Finder) rootOf(pid int) (root int, selected bool) {
	root = pid
	isAll := f.selection.Root == 0 && len(f.selection.Names) == 0
	if isAll && len(f.selection.Never) == 0 {
		return root, true
	}
	at, k := pid, f.known[pid]
	for range maxDepth {
		if k.never {
			return pid, false
		}
		if k.asked {
			root, selected = at, true
		}
		above := f.known[k.parent]
		if above == nil || above.start > k.start {
			break // its parent has ended, and the number is another process's
		}
		at, k = k.parent, above
	}
	return root, selected || isAll
}

// look finds out what a process maps, unless that is known.
func (f *Finder) look(pid int, k *knownProcess, now time.Time) {
	if k.size != 0 {
		return
	}
	exe, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || os.SameFile(exe, f.own) {
		return
	}
	stat, err := statOf(pid) // before the memory map: what comes later is seen the next time
	if err != nil {
		return
	}
	found, complete, err := f.contents.examine(pid, now)
	if err != nil {
		return
	}
	if complete {
		k.size = stat.VSize
	}
	k.found.GGML = k.found.GGML || found.GGML
	k.found.Model = k.found.Model || found.Model
}

func statOf(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return p.Stat()
}

// ErrNone says that the wait for a process ended without one.
var ErrNone = errors.New("no such process came")

// Wait waits for a candidate. If there are several, it returns one that maps a model, before others. The error wraps
// ErrNone and the cause of ctx's end.
func (f *Finder) Wait(ctx context.Context) (Candidate, error) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		found, err := f.FindNew(time.Now())
		if err != nil {
			return Candidate{}, err
		}
		if len(found) > 0 {
			slices.SortStableFunc(found, ModelsFirst)
			return found[0], nil
		}
		select {
		case <-ctx.Done():
			return Candidate{}, fmt.Errorf("%w: %w", ErrNone, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// ModelsFirst orders candidates: those that map a model come before others.
func ModelsFirst(a, b Candidate) int {
	switch {
	case a.Model == b.Model:
		return 0
	case a.Model:
		return -1
	}
	return 1
}
