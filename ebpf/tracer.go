package ebpf

// This file is responsible for a Tracer's life: New loads the programs for a target, Detach and
// Close take everything away again. What happens in between is in attach.go (probes), run.go (the
// ring buffer), events.go (what its records mean) and processes.go (children).

import (
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sync/errgroup"

	"tensorcast/event"
	"tensorcast/ggml"
	"tensorcast/internal/proc"
)

// Tracer observes a process and, with Options.Follow, the processes that it starts. Of its methods
// only Counters and AttachExeced may be called concurrently with others.
type Tracer struct {
	opts        Options
	glanceEvery time.Duration // how often a target without ggml is asked for its size, see search

	// The programs in the kernel.
	objs   traceObjects
	system *system // nil if the kernel supports none of these programs
	reader *ringbuf.Reader
	links  []link.Link
	multi  bool // attach by uprobe_multi rather than perf events
	// wide is set if probes fire in every process that runs the file. The programs ignore those
	// that are no targets.
	wide           bool
	configurations uint32 // how often the programs were configured

	// The files that were scanned.
	scanned map[string]scannedFile // by path: scanned ahead, and not asked for yet
	images  map[proc.FileID]*ggml.Image
	// files holds those of the images that can carry probes, open. Probes go to what was scanned,
	// wherever its name leads by then.
	files         map[*ggml.Image]*os.File
	probeGroups   map[probeGroup]bool // those that are attached
	attachedPaths []string            // files that carry probes

	// The targets.
	main    *target
	targets map[uint32]*target // all, by process id
	cache   *cache             // shared by all targets
	execs   chan execRequest
	ran     chan struct{} // closed when Run returns

	// What Run counts and reuses.
	received   atomic.Uint64
	unresolved atomic.Uint64 // sources whose mapping could not be found
	incomplete atomic.Uint64 // ops whose ids or template did not arrive
	missed     atomic.Uint64 // hits for which the kernel did not run the programs
	graphOps   uint64        // number of the last op, in graph detail
	probedAt   int64         // when probes on ops or graphs were last set (ns, CLOCK_MONOTONIC); 0: never
	scratch    event.Op
}

// New loads the programs for one target process. The caller must call Close.
func New(opts Options) (*Tracer, error) {
	glanceEvery := glanceInterval
	if opts.Pause != nil {
		glanceEvery = patientInterval
	}
	setDefaults(&opts)
	if err := rlimit.RemoveMemlock(); err != nil { // kernels before 5.11 charge maps to RLIMIT_MEMLOCK
		opts.Log.Debug("cannot raise RLIMIT_MEMLOCK", "error", err)
	}
	main, err := newTarget(opts.PID, 0, nil)
	if err != nil {
		return nil, err
	}
	if err := opts.check(); err != nil {
		return nil, errors.Join(err, main.process.Close())
	}
	var beside sync.WaitGroup
	var ahead map[string]scannedFile
	if opts.Program.Path != "" {
		beside.Go(func() { ahead = scanLikely(opts.Program) })
	}
	t := &Tracer{
		opts: opts, glanceEvery: glanceEvery,
		multi:  !opts.PerfEvents && features.HaveBPFLinkUprobeMulti() == nil,
		images: map[proc.FileID]*ggml.Image{}, files: map[*ggml.Image]*os.File{}, probeGroups: map[probeGroup]bool{},
		main: main, targets: map[uint32]*target{uint32(opts.PID): main},
		execs: make(chan execRequest, 1), ran: make(chan struct{}),
	}
	// Before Linux 6.10, uprobe_multi filters by thread and would miss the compute threads.
	if t.wide = opts.Follow; t.multi && !t.wide {
		remove, err := hitOwnUprobe(true)
		t.wide = err != nil
		beside.Go(func() {
			if err := remove(); err != nil {
				opts.Log.Debug("cannot remove the probe of a test", "error", err)
			}
		})
	}
	err = t.load()
	beside.Wait()
	t.scanned = ahead
	if err != nil {
		return nil, errors.Join(err, main.process.Close(), t.closeScanned())
	}
	return t, nil
}

// setDefaults fills in the options that the caller left out.
func setDefaults(opts *Options) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Interval == 0 {
		opts.Interval = defaultInterval
	}
	if opts.Pause == nil {
		interval := opts.Interval
		opts.Pause = func() time.Duration { return interval }
	}
	if opts.Tick == nil {
		opts.Tick = func() error { return nil }
	}
}

// Detach removes all probes from the target. Call it in Run's goroutine, or after Run has returned.
func (t *Tracer) Detach() error {
	t.countMissed()
	// Removing a probe waits for an RCU grace period (about 50 ms): remove all in parallel.
	var group errgroup.Group
	for _, l := range t.links {
		group.Go(l.Close)
	}
	t.links = nil
	group.Go(t.system.detach)
	return group.Wait()
}

// Close removes all probes and unloads the programs. Call it after Run has returned.
func (t *Tracer) Close() error {
	errs := []error{t.Detach(), t.reader.Close()}
	t.system.close()
	errs = append(errs, t.objs.Close())
	for _, p := range t.targets {
		errs = append(errs, p.process.Close())
	}
	clear(t.targets)
	for _, f := range t.files {
		errs = append(errs, f.Close())
	}
	clear(t.files)
	return errors.Join(append(errs, t.closeScanned())...)
}
