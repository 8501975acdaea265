// Package auto finds the processes that compute with ggml, as they come and go, and keeps a helper running for each.
//
// What a process says of itself (its name, what it maps) only decides whether a helper is started for it. The helper
// checks everything, and gives up where it is wrong.
package auto

// This file finds processes.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"tensorcast/internal/proc"
)

// Candidate is a process that a helper may be started for.
type Candidate struct {
	PID  int
	Name string // as it calls itself: at most 15 bytes
	// Loaded says that it maps a library of ggml; else it maps a *.gguf only, as a program that has ggml built in
	// does, or one that copies models.
	Loaded bool
}

// Looks at a process that was nothing yet come at intervals that double: a program may load ggml long after its start.
const (
	firstLook = time.Second
	lastLook  = 30 * time.Second
)

// Every is how often a Finder is to be asked.
const Every = time.Second

// Finder finds each process once. It is for one goroutine.
type Finder struct {
	names []string
	own   os.FileInfo // this program: it maps models, too
	known map[int]*known
}

type known struct {
	start    uint64 // of the process, in ticks since boot: with it a number that is used again is another process
	next     time.Time
	interval time.Duration
	found    bool
}

// NewFinder returns one for processes of these names (what the kernel calls the process, or its executable's last
// element); of any if there are none.
func NewFinder(names ...string) (*Finder, error) {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return &Finder{names: names, own: own, known: map[int]*known{}}, nil
}

// Look returns those that were not found before. A process that ends meanwhile, or may not be looked at, is none.
func (f *Finder) Look(now time.Time) (found []Candidate, err error) {
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
			k = &known{start: stat.Starttime, interval: firstLook / 2}
			f.known[p.PID] = k
		}
		k.interval = min(2*k.interval, lastLook)
		k.next = now.Add(k.interval)
		if k.found {
			continue
		}
		if c := (Candidate{PID: p.PID, Name: stat.Comm}); f.fits(&c) {
			k.found = true
			found = append(found, c)
		}
	}
	for pid := range f.known {
		if !there[pid] {
			delete(f.known, pid)
		}
	}
	return found, nil
}

// fits says whether a process is one, and sets Loaded.
func (f *Finder) fits(c *Candidate) bool {
	link := fmt.Sprintf("/proc/%d/exe", c.PID)
	exe, err := os.Stat(link)
	if err != nil || os.SameFile(exe, f.own) { // kernel threads have none
		return false
	}
	if len(f.names) > 0 && !slices.Contains(f.names, c.Name) {
		to, err := os.Readlink(link)
		if err != nil || !slices.Contains(f.names, path.Base(to)) {
			return false
		}
	}
	files, err := proc.Mappings(c.PID)
	if err != nil {
		return false
	}
	model := false
	for i := range files {
		base := path.Base(files[i].Path)
		c.Loaded = c.Loaded || strings.HasPrefix(base, "libggml")
		model = model || strings.HasSuffix(base, ".gguf")
	}
	return c.Loaded || model
}

// ErrNone says that the wait for a process ended without one.
var ErrNone = errors.New("no such process came")

// Wait waits for the first process that fits. The error wraps ErrNone and the cause of ctx's end.
func (f *Finder) Wait(ctx context.Context) (Candidate, error) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		found, err := f.Look(time.Now())
		if err != nil {
			return Candidate{}, err
		}
		if len(found) > 0 {
			return found[0], nil
		}
		select {
		case <-ctx.Done():
			return Candidate{}, fmt.Errorf("%w: %w", ErrNone, context.Cause(ctx))
		case <-tick.C:
		}
	}
}
