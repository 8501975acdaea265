// Package preload observes a llama.cpp program without root. LD_PRELOAD loads a library in C (the
// shim) into the program. The shim intercepts the calls of ggml_graph_compute, llama_decode and
// llama_set_warmup, and writes what each graph reads to shared memory. A [Session] reads it there.
// Package capture is its user.
//
// It observes whole graphs, not the ops inside. An [event.Op] has the time at which its graph
// began, no duration, and no experts, because the router has not run yet when a graph begins. Ops
// that ggml fuses are reported one by one. Only calls between shared libraries, or through a
// library's own procedure linkage table, can be intercepted. A program that is linked with ggml
// statically, or with -Bsymbolic, needs the probes of package ebpf.
package preload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"tensorcast/event"
	"tensorcast/ggml"
)

var (
	// ErrNoCompiler means that the shim cannot be built.
	ErrNoCompiler = errors.New("the preloaded library is built by a C compiler")
	// ErrNotLoaded means that no process loaded the shim.
	ErrNotLoaded = errors.New("the shim was not loaded (the program is linked statically, has privileges of its " +
		"own, runs in a container, or uses another C library)")
	// ErrNoGraph means that the shim was loaded, but ggml_graph_compute was never called through it.
	ErrNoGraph = errors.New("no call of ggml_graph_compute could be interposed: the program computed nothing, or " +
		"holds ggml statically")
	// ErrOtherProcess means that graphs were computed only by processes that the target started.
	ErrOtherProcess = errors.New("the program itself computed nothing, but a process that it started did")
)

const (
	defaultRing     = 8 << 20
	minRing         = 4 << 10
	maxRing         = 1 << 30
	defaultInterval = 10 * time.Millisecond

	envPath    = "TENSORCAST_PRELOAD"
	envPreload = "LD_PRELOAD"
)

// Options configure a Session.
type Options struct {
	// RingBytes is the size of each process's ring buffer, a power of two of at least 4 KiB; 0
	// means 8 MiB.
	RingBytes int
	// Interval is how often Run looks for events; 0 means 10 ms. Run calls Tick at this interval,
	// after the pending events.
	Interval time.Duration
	Tick     func() error
	Follow   bool // also report processes that the target starts
	// Credential is what the program runs with. nil means the caller's.
	Credential *syscall.Credential
	// Layouts are those found in the target's files (see [ggml.Infer]), if any. The shim tries them
	// before those of released versions.
	Layouts []ggml.Layout
	Log     *slog.Logger
}

// Session is the shared memory that programs write to, and its reader. Its methods are not safe for
// concurrent use.
type Session struct {
	opts    Options
	shim    string     // path of the library
	temp    *temporary // where the shim is, if not in the cache
	mem     *memory
	layouts []ggml.Layout // those in the header, in order
	target  int           // pid of the target; 0 before Run
	procs   map[int]*process
	strays  map[int]string // command lines of processes that compute but are not followed, maxStrays at most
	weights int            // sources of the templates of all processes
	loaded  bool           // set by Close: some process has loaded the shim
	ended   event.Counters // sums over followed processes that have ended
	images  []imageInfo
	unread  uint64 // graphs of ended processes that the shim could not read
}

// imageInfo is a library whose ggml_graph_compute was called.
type imageInfo struct {
	pid                   int
	path, version, commit string
	layout                ggml.Layout
}

// Start makes the shared memory, and compiles the shim if it is not in the user's cache, which
// needs a C compiler ([ErrNoCompiler]). The caller must call Close.
func Start(ctx context.Context, opts Options) (*Session, error) {
	if opts.RingBytes == 0 {
		opts.RingBytes = defaultRing
	}
	if opts.RingBytes < minRing || opts.RingBytes > maxRing || opts.RingBytes&(opts.RingBytes-1) != 0 {
		return nil, fmt.Errorf("a buffer of %d bytes: want a power of two from %d to %d", opts.RingBytes, minRing,
			maxRing)
	}
	if opts.Interval == 0 {
		opts.Interval = defaultInterval
	}
	if opts.Tick == nil {
		opts.Tick = func() error { return nil }
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	s := &Session{opts: opts, procs: map[int]*process{}, strays: map[int]string{}}
	var err error
	if s.shim, s.temp, err = buildShim(ctx, isForeign(opts.Credential)); err != nil {
		return nil, err
	}
	if s.mem, err = newMemory(opts.RingBytes, opts.Credential); err != nil {
		return nil, errors.Join(err, s.temp.remove())
	}
	for _, l := range slices.Concat(opts.Layouts, ggml.Candidates()) {
		s.offerLayout(l)
	}
	return s, nil
}

// offerLayout adds a layout for the shim to try. It returns false if the layout was offered before,
// or if there is no room.
func (s *Session) offerLayout(l ggml.Layout) bool {
	same := func(o ggml.Layout) bool {
		o.Origin = l.Origin
		return o == l
	}
	if len(s.layouts) >= maxLayouts || slices.ContainsFunc(s.layouts, same) {
		return false
	}
	s.mem.putLayout(len(s.layouts), l)
	s.layouts = append(s.layouts, l)
	return true
}

// Environ returns env with the variables that load the shim into a program. Other preloaded
// libraries stay.
func (s *Session) Environ(env []string) []string {
	preload := s.shim
	out := make([]string, 0, len(env)+2)
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		switch {
		case name == envPreload && value != "":
			preload = s.shim + ":" + value
		case name == envPreload || name == envPath:
		default:
			out = append(out, v)
		}
	}
	return append(out, envPreload+"="+preload, envPath+"="+s.mem.path())
}

// Libraries lists the files whose ggml_graph_compute reported graphs.
func (s *Session) Libraries() []string {
	var paths []string
	for _, im := range s.images {
		if !slices.Contains(paths, im.path) {
			paths = append(paths, im.path)
		}
	}
	return paths
}

// Target returns what a process has reported about its ggml.
func (s *Session) Target(pid int) event.TargetInfo {
	for _, im := range s.images {
		if im.pid == pid {
			return event.TargetInfo{GGMLVersion: im.version, GGMLCommit: im.commit, LayoutOrigin: im.layout.Origin}
		}
	}
	return event.TargetInfo{}
}

// Explain returns, after Run, why the target reported no graph: [ErrNotLoaded], [ErrOtherProcess]
// or [ErrNoGraph]. It returns nil if the target reported one.
func (s *Session) Explain() error {
	switch {
	case len(s.images) > 0:
		return nil
	case len(s.strays) > 0:
		for pid, command := range s.strays {
			return fmt.Errorf("%w (process %d, %q)", ErrOtherProcess, pid, command)
		}
	case !s.wasLoaded():
		return ErrNotLoaded
	}
	return ErrNoGraph
}

// Counters reads the counters of the followed processes. The sums are exact once these have
// stopped. Hits are the nodes of graphs, not calls.
func (s *Session) Counters() (event.Counters, error) {
	sum := s.ended
	for _, p := range s.procs {
		if p.followed {
			addCounters(&sum, s.mem.counters(p))
		}
	}
	return sum, nil
}

func addCounters(sum *event.Counters, c event.Counters) {
	sum.Hits += c.Hits
	sum.NoWeight += c.NoWeight
	sum.OpsSent += c.OpsSent
	sum.OpsLost += c.OpsLost
	sum.Unfinished += c.Unfinished
	sum.Received += c.Received
	sum.OthersLost += c.OthersLost
	sum.Clipped += c.Clipped
}

// wasLoaded reports whether any process has loaded the shim.
func (s *Session) wasLoaded() bool {
	if s.mem.b == nil { // closed
		return s.loaded
	}
	return atomic.LoadUint32(&s.mem.header().Loaded) > 0
}

// Close tells programs that still run to report nothing more, and removes the shared memory. Call
// it once, after Run has returned. Counters, Explain, Libraries and Target still work afterwards.
func (s *Session) Close() error {
	for _, p := range s.procs {
		p.close()
		if p.followed {
			addCounters(&s.ended, s.mem.counters(p))
		}
	}
	clear(s.procs)
	s.loaded = s.wasLoaded()
	return errors.Join(s.mem.close(), s.temp.remove())
}
