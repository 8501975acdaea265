// Package capture runs a capture: it starts a command or finds a running process, attaches a capturer to it (the probes of package ebpf, or the
// library of package capture/preload), hands over what the capturer reports until the target has ended, and detaches.
//
// A command is started stopped, right behind its execve, and stays stopped until Run: its first op is seen. On error everything is cleaned up.
// If this process dies, the kernel lets the command run and removes the probes.
package capture

// This file is a capture from its beginning to its end.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"tensorcast/capture/preload"
	"tensorcast/ebpf"
	"tensorcast/event"
	"tensorcast/internal/proc"
)

// Options say how a target is observed. The zero Options observe each op.
type Options struct {
	// Preload observes by the preloaded library instead of probes: no root is needed, and no more than graphs is seen. Then Detail, Buffers and
	// PerfEvents have no effect. It is for Start only.
	Preload bool
	// Detail, Buffers and PerfEvents are those of ebpf.Options.
	Detail     ebpf.Detail
	Buffers    bool
	PerfEvents bool
	// Follow observes processes that the target starts, too.
	Follow bool
	// Late lets Attach find a process that has no ggml yet: its libraries are looked for while Run runs. Follow implies it.
	Late bool
	// Small takes a fifth of the kernel's memory, enough for one target of which each event is taken up at once (ebpf.Options.Small).
	Small bool
	// RingBytes is the size of the buffer of events, a power of two; 0 means 8 MiB.
	RingBytes int
	// Interval is how long an event may wait before it is handed over, and how often Tick is called; 0 leaves that to the capturer (a second for
	// probes, 10 ms for the library). Tick is called by Run, after the events at hand.
	Interval time.Duration
	Tick     func() error
	// Signals, if this process gets them, are passed on to a command that Start starts, from before its start to Close. Excepted are those that are
	// ignored, which the command ignores too (nohup), and a SIGINT or SIGQUIT that a terminal has sent to both.
	Signals []syscall.Signal
	Log     *slog.Logger // nil discards
}

// Capture is a target with a capturer attached. Its methods are for one goroutine, save for PID.
type Capture struct {
	target   target
	capturer capturer
}

// Start starts cmd, stopped, in the caller's process group, and attaches to it. The caller must call Close. cmd is set up as for cmd.Start, which
// must not be called; with Options.Preload its environment is changed. A set-user-ID program that is started for another user than root is not
// stopped: then its first ops may be missed.
//
// ctx bounds the preparation only. Errors are those of exec.Cmd.Start, event.ErrPermission, event.ErrNoBTF, preload.ErrNoCompiler and others.
func Start(ctx context.Context, cmd *exec.Cmd, opts Options) (*Capture, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	if opts.Preload {
		return startPreloaded(ctx, cmd, opts)
	}
	target, err := launch(cmd, opts.Signals, proc.Launch)
	if err != nil {
		return nil, err
	}
	tracer, err := newTracer(target.PID(), cmd.Args, opts)
	if err == nil {
		if err = tracer.AttachLikely(executable(cmd), cmd.Environ()); err != nil {
			err = errors.Join(err, tracer.Close())
		}
	}
	if err != nil { // the command was asked for to be observed: without that there is no reason to run it
		return nil, errors.Join(err, target.close())
	}
	// A shell, a wrapper or a server that starts workers: what computes comes later.
	if opts.Follow || tracer.Ready() != nil {
		target.release = func() error { return target.child.ReleaseHeld(opts.Follow, tracer.Execed) }
	}
	return &Capture{target, probes{tracer}}, nil
}

func startPreloaded(ctx context.Context, cmd *exec.Cmd, opts Options) (*Capture, error) {
	po := preload.Options{RingBytes: opts.RingBytes, Interval: opts.Interval, Tick: opts.Tick, Follow: opts.Follow, Log: opts.Log}
	if cmd.SysProcAttr != nil {
		po.Credential = cmd.SysProcAttr.Credential
	}
	session, err := preload.Start(ctx, po)
	if err != nil {
		return nil, err
	}
	cmd.Env = session.Environ(cmd.Environ())
	target, err := launch(cmd, opts.Signals, proc.Start)
	if err != nil {
		return nil, errors.Join(err, session.Close())
	}
	return &Capture{target, library{session, target.PID()}}, nil
}

// Attach attaches to the running process pid, which stays as it is. The caller must call Close. Errors are proc.ErrNoProcess (also if the process
// ends meanwhile), event.ErrNoGGML and event.ErrOldGGML (not with Late or Follow), event.ErrPermission, event.ErrNoBTF and others.
func Attach(pid int, opts Options) (*Capture, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	if opts.Preload {
		return nil, fmt.Errorf("process %d runs already: a library can be preloaded only into a command that is started", pid)
	}
	p, err := proc.Open(pid)
	if err != nil {
		return nil, err
	}
	tracer, err := attach(p, opts)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return &Capture{process{p}, probes{tracer}}, nil
}

func attach(p *proc.Process, opts Options) (*ebpf.Tracer, error) {
	tracer, err := newTracer(p.PID(), proc.CommandLine(p.PID()), opts)
	if err != nil {
		return nil, err
	}
	err = tracer.AttachMapped()
	if err == nil && !opts.Late && !opts.Follow { // a process that leaves the work to its children needs no ggml
		err = tracer.Ready()
	}
	// Probes are set by process id. If the process is still there, they are on it and no other. If not, that explains any error.
	if ended, endErr := p.Ended(); endErr != nil {
		err = endErr
	} else if ended {
		err = fmt.Errorf("process %d ended while probes were set: %w", p.PID(), proc.ErrNoProcess)
	}
	if err != nil {
		return nil, errors.Join(err, tracer.Close())
	}
	return tracer, nil
}

func newTracer(pid int, command []string, opts Options) (*ebpf.Tracer, error) {
	return ebpf.New(ebpf.Options{
		PID: pid, Hints: hints(command, pid), RingBytes: uint32(opts.RingBytes), PerfEvents: opts.PerfEvents, Interval: opts.Interval, Tick: opts.Tick,
		Detail: opts.Detail, Buffers: opts.Buffers, Follow: opts.Follow, Small: opts.Small, Log: opts.Log,
	})
}

func (o *Options) check() error {
	if o.RingBytes < 0 || int64(o.RingBytes) > math.MaxUint32 {
		return fmt.Errorf("a buffer of %d bytes: want a power of two below 4 GiB", o.RingBytes)
	}
	return nil
}

// PID is the process id of the target.
func (c *Capture) PID() int { return c.target.PID() }

// Run lets a command run, and hands events to handle until the target has ended or ctx is done; then it hands over those that are under way,
// detaches and returns nil. handle and Options.Tick are called by the goroutine that calls Run, which may be locked to a thread. An *event.Op and
// its slices are valid until handle returns, and must not be modified.
//
// It returns the first error of handle, Tick or the capturer at once. Whatever it returns, the target goes on at full speed, without probes: see
// Wait. Call it once.
func (c *Capture) Run(ctx context.Context, handle func(event.Event) error) error {
	observing, stop := context.WithCancel(ctx)
	defer stop()
	c.target.run()
	var watch sync.WaitGroup
	var watchErr error
	watch.Go(func() {
		watchErr = c.target.ended(observing)
		stop()
	})
	err := c.capturer.Run(observing, handle)
	stop()
	watch.Wait()
	return errors.Join(err, watchErr, c.capturer.Detach())
}

// Wait waits, after Run, for the end of a command that Start has started, and returns its exit status as a shell would: 128+n after signal n. If
// ctx is done earlier, the command is killed. A process that Attach has found is not waited for: its status is 0.
func (c *Capture) Wait(ctx context.Context) (status int, err error) { return c.target.wait(ctx) }

// Counters account for every hit (see event.Counters). Their sums hold once Run has returned.
func (c *Capture) Counters() (event.Counters, error) { return c.capturer.Counters() }

// Libraries lists the files in which ops or graphs are observed.
func (c *Capture) Libraries() []string { return c.capturer.Libraries() }

// Describe says what is known of the ggml of a process that is observed.
func (c *Capture) Describe(pid int) event.TargetInfo { return c.capturer.Describe(pid) }

// Explain says, after Run, why no decode or no op was seen: event.ErrNoGGML, event.ErrOldGGML, preload.ErrNotLoaded, preload.ErrNoGraph,
// preload.ErrOtherProcess, or nil if nothing stood in the way.
func (c *Capture) Explain() error { return c.capturer.Explain() }

// Close ends the capture and frees what it holds. A command that has not ended is killed; a process that Attach has found goes on. Call it once,
// after Run has returned or instead of it.
func (c *Capture) Close() error { return errors.Join(c.target.close(), c.capturer.Close()) }
