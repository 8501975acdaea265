// Package capture runs a capture. It starts a command ([Start]) or finds a running process
// ([Attach]), attaches a capturer to it (the probes of package ebpf, or the library of package
// capture/preload), and passes on the capturer's events until the target has ended or the caller
// has seen enough ([Capture.Run]). cmd/tracer, cmd/prefetchd and the instruments use it.
//
// A command is stopped right after its execve and stays stopped until Run, so that its first op is
// observed. On error, everything is cleaned up. If this process dies, the kernel lets the command
// run and removes the probes.
package capture

// This file implements a capture from its start to its end.

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
	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
)

// Options configure how a target is observed. The zero value observes each op.
type Options struct {
	// Preload uses the preloaded library instead of probes. It needs no root, but observes whole
	// graphs instead of ops. Detail, Buffers and PerfEvents then have no effect. It works with
	// Start only.
	Preload bool
	// Detail, Buffers and PerfEvents are as in ebpf.Options.
	Detail     ebpf.Detail
	Buffers    bool
	PerfEvents bool
	// Selected, Lookups, Inputs, InputRows and AtOnce are as in ebpf.Options. With Preload the first
	// three are an error, because the library cannot see what they ask for.
	Selected          bool
	Lookups           int64
	Inputs, InputRows int
	AtOnce            bool
	// Follow also observes processes that the target starts. Attach observes those that it has started already, too.
	Follow bool
	// Late lets Attach accept a process that has not loaded ggml yet. Run then waits for its
	// libraries. Follow implies Late.
	Late bool
	// Small saves kernel memory: the probes' maps take about 3 MiB instead of 20. It suffices for a
	// helper with one target (see ebpf.Options.Small).
	Small bool
	// RingBytes is the size of the event buffer, a power of two; 0 means 8 MiB (probes with Small:
	// 512 KiB).
	RingBytes int
	// Interval is the longest time that an event waits before it is passed on. Run calls Tick as
	// often, after the pending events. 0 means the capturer's default: one second for probes, 10 ms
	// for the library.
	Interval time.Duration
	Tick     func() error
	// Pause is as in ebpf.Options; it has no effect with Preload.
	Pause func() time.Duration
	// Signals are passed on to a command that Start starts, from before its start until Close.
	// There are two exceptions. Signals that this process ignores are ignored by the command, too
	// (nohup). And a SIGINT or SIGQUIT from the terminal reaches both by itself.
	Signals []syscall.Signal
	Log     *slog.Logger // nil discards
}

// ErrNeedsProbes means that something was asked for that the preloaded library cannot see.
var ErrNeedsProbes = errors.New("is seen by the kernel's probes only")

// Capture is a target with a capturer attached. Its methods are for one goroutine, except for PID.
type Capture struct {
	target   target
	capturer capturer // nil after Unload
	// libraries are those that the capturer observed before Unload.
	libraries []string
}

// Start starts cmd in the caller's process group, stopped after its execve, and attaches to it. The
// caller must call Close. cmd is prepared as for cmd.Start, which must not be called. With
// Options.Preload its environment is changed. A set-user-ID program cannot be stopped unless it
// runs as root, so its first ops may be missed.
//
// ctx is for the preparation only. Errors are those of exec.Cmd.Start, event.ErrPermission,
// event.ErrUserNamespace, event.ErrNoBTF, proc.ErrForeignProc, preload.ErrNoCompiler and others.
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
	program := ebpf.Program{Path: executablePath(cmd), Env: cmd.Environ()}
	tracer, err := newTracer(target.PID(), cmd.Args, program, opts)
	if err == nil {
		if err = tracer.AttachLikely(program.Path, program.Env); err != nil {
			err = errors.Join(err, tracer.Close())
		}
	}
	if err != nil { // without observation there is no reason to run the command
		return nil, errors.Join(err, target.close())
	}
	// Either this program does not compute itself (a shell or a wrapper), or further processes may
	// compute. So ggml is looked for at each execve.
	if opts.Follow || tracer.Ready() != nil {
		target.release = func() error { return target.child.ReleaseHeld(opts.Follow, tracer.AttachExeced) }
	}
	return &Capture{target: target, capturer: probes{tracer}}, nil
}

// Launch starts cmd as Start does, stopped after its execve, but does not attach to it. Let then
// lets it run, and Attach may be called at any time. Of this capture only PID, Let, Wait, Ending
// and Close may be called. signals are as in Options. The errors are those of exec.Cmd.Start and
// proc.ErrForeignProc.
func Launch(cmd *exec.Cmd, signals []syscall.Signal) (*Capture, error) {
	if err := proc.CheckMount(); err != nil {
		return nil, err
	}
	target, err := launch(cmd, signals, proc.Launch)
	if err != nil {
		return nil, err
	}
	return &Capture{target: target}, nil
}

// Resume lets a command that was launched run.
func (c *Capture) Resume() { c.target.run() }

func startPreloaded(ctx context.Context, cmd *exec.Cmd, opts Options) (*Capture, error) {
	po := preload.Options{
		RingBytes: opts.RingBytes, Interval: opts.Interval, Tick: opts.Tick, Follow: opts.Follow,
		Log: opts.Log,
	}
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
	return &Capture{target: target, capturer: library{session, target.PID()}}, nil
}

// Attach attaches to the running process pid without stopping it. The caller must call Close.
// Errors are proc.ErrNoProcess (also if the process ends meanwhile), event.ErrNoGGML and
// event.ErrOldGGML (not with Late or Follow), event.ErrPermission, event.ErrNoBTF and others.
func Attach(pid int, opts Options) (*Capture, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	if opts.Preload {
		return nil, fmt.Errorf("process %d runs already: a library can be preloaded only into a command that is "+
			"started", pid)
	}
	p, err := proc.Open(pid)
	if err != nil {
		return nil, err
	}
	kills := cgroup.WatchKills(pid)
	tracer, err := attach(p, kills, opts)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return &Capture{target: process{p, kills}, capturer: probes{tracer}}, nil
}

func attach(p *proc.Process, kills cgroup.Kills, opts Options) (*ebpf.Tracer, error) {
	tracer, err := newTracer(p.PID(), proc.CommandLine(p.PID()), ebpf.Program{}, opts)
	if err != nil {
		return nil, err
	}
	err = tracer.AttachMapped()
	if err == nil && opts.Follow {
		err = tracer.AttachStarted()
	}
	if err == nil && !opts.Late && !opts.Follow { // with Follow, a process whose children compute needs no ggml itself
		err = tracer.Ready()
	}
	// Probes are set by process id, which may have been reused. If the process still runs, the
	// probes are on the right one; if it has ended, that explains any error.
	if ended, endErr := p.Ended(); endErr != nil {
		err = endErr
	} else if ended {
		err = &endedError{p.PID(), kills.Err()}
	}
	if err != nil {
		return nil, errors.Join(err, tracer.Close())
	}
	return tracer, nil
}

func newTracer(pid int, command []string, program ebpf.Program, opts Options) (*ebpf.Tracer, error) {
	return ebpf.New(ebpf.Options{
		PID: pid, Program: program, Hints: fileHints(command, pid), RingBytes: uint32(opts.RingBytes),
		PerfEvents: opts.PerfEvents, Interval: opts.Interval, Tick: opts.Tick, Pause: opts.Pause,
		Detail: opts.Detail, Buffers: opts.Buffers, Selected: opts.Selected, Lookups: opts.Lookups,
		Inputs: opts.Inputs, InputRows: opts.InputRows, AtOnce: opts.AtOnce,
		Follow: opts.Follow, Small: opts.Small, Log: opts.Log,
	})
}

// check rejects options with which every capture would fail.
func (o *Options) check() error {
	if o.RingBytes < 0 || int64(o.RingBytes) > math.MaxUint32 {
		return fmt.Errorf("a buffer of %d bytes: want a power of two below 4 GiB", o.RingBytes)
	}
	if o.Preload && (o.Selected || o.Lookups != 0 || o.Inputs != 0) {
		return fmt.Errorf("the preloaded library sees whole graphs: what routers read and choose %w", ErrNeedsProbes)
	}
	return proc.CheckMount()
}

// PID is the process id of the target.
func (c *Capture) PID() int { return c.target.PID() }

// Run lets a command run, and passes events to handle until the target has ended or ctx is done.
// Then it passes on the remaining events, detaches and returns nil. handle and Options.Tick are
// called in the goroutine that calls Run, which may be locked to a thread. An *event.Op and its
// slices are valid until handle returns, and must not be modified.
//
// If handle, Tick or the capturer fails, Run returns the error at once. In any case the target
// continues to run, without probes; see Wait. Call Run once.
func (c *Capture) Run(ctx context.Context, handle func(event.Event) error) error {
	observing, stop := context.WithCancel(ctx)
	defer stop()
	c.target.run()
	var watch sync.WaitGroup
	var watchErr error
	watch.Go(func() {
		watchErr = c.target.waitEnded(observing)
		stop()
	})
	err := c.capturer.Run(observing, handle)
	stop()
	watch.Wait()
	return errors.Join(err, watchErr, c.capturer.Detach())
}

// Wait waits, after Run, until a command that Start has started ends, and returns its exit status
// as a shell would: 128+n after signal n. If ctx is done first, the command is killed. For a
// process that Attach has found, Wait returns 0 at once.
func (c *Capture) Wait(ctx context.Context) (status int, err error) { return c.target.wait(ctx) }

// Counters account for every hit (see event.Counters). The sums are exact once Run has returned.
func (c *Capture) Counters() (event.Counters, error) { return c.capturer.Counters() }

// WantInputs reports whether the inputs that Options.Inputs asks for are wanted from the next decode
// on. At first they are.
func (c *Capture) WantInputs(wanted bool) error { return c.capturer.WantInputs(wanted) }

// Libraries lists the files in which ops or graphs are observed, and after Unload those in which they were.
func (c *Capture) Libraries() []string {
	if c.capturer == nil {
		return c.libraries
	}
	return c.capturer.Libraries()
}

// Describe returns what is known about the ggml of an observed process.
func (c *Capture) Describe(pid int) event.TargetInfo { return c.capturer.Describe(pid) }

// Explain returns, after Run, why no decode or op was seen: event.ErrNoGGML, event.ErrOldGGML,
// preload.ErrNotLoaded, preload.ErrNoGraph or preload.ErrOtherProcess. After Wait the error also
// says how the target ended before. It is nil if nothing stood in the way. Even then the target may
// have ended before its first decode: see Ending.
func (c *Capture) Explain() error {
	err := c.capturer.Explain()
	// These two are the reason, no matter how the target ended.
	if err == nil || errors.Is(err, event.ErrOldGGML) || errors.Is(err, preload.ErrOtherProcess) {
		return err
	}
	if ending := c.Ending(); ending != "" {
		return fmt.Errorf("%s before anything was seen: %w", ending, err)
	}
	return err
}

// Ending returns, after Run and Wait, how the target ended ("the command ended with exit status
// 1"), or "" if it has not.
func (c *Capture) Ending() string { return c.target.ending() }

// Unload frees, after Run, what observing took. The target goes on, and may be attached to again.
// Of this capture only PID, Wait, Ending, Libraries and Close may be called then.
func (c *Capture) Unload() error {
	c.libraries = c.capturer.Libraries()
	err := c.capturer.Close()
	c.capturer = nil
	return err
}

// Close ends the capture and releases its resources. A command that is still running is killed. A
// process that Attach has found continues. Call it once, after Run has returned or instead of Run.
func (c *Capture) Close() error {
	err := c.target.close()
	if c.capturer != nil {
		err = errors.Join(err, c.capturer.Close())
	}
	return err
}
