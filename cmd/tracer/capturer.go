package main

// This file chooses what observes the target: probes in the kernel, or a library inside it.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"tensorcast/capture/preload"
	"tensorcast/ebpf"
	"tensorcast/event"
	"tensorcast/internal/invoker"
	"tensorcast/internal/proc"
)

// capturer observes a target.
type capturer interface {
	// Run hands events to handle until ctx is done, then those that are under way.
	Run(ctx context.Context, handle func(event.Event) error) error
	Counters() (event.Counters, error)
	Libraries() []string
	Describe(pid int) event.TargetInfo
	// Why explains, after Run, that no decode was seen; nil if there is nothing to explain.
	Why() error
	// Detach lets the target go on at full speed, after Run.
	Detach() error
	Close() error
}

// begin starts or finds the target, observed from its beginning. The target stands until its Run; of a failure nothing is left.
func begin(ctx context.Context, o options, user *invoker.User, args []string, tick func() error, log *slog.Logger) (target, capturer, error) {
	if o.pid != 0 {
		p, err := findProcess(int(o.pid))
		if err != nil {
			return nil, nil, err
		}
		c, err := attachRunning(o, p, tick, log)
		if err != nil {
			return nil, nil, errors.Join(err, p.Abandon())
		}
		return p, c, nil
	}
	cmd, err := describe(user, args, o)
	if err != nil {
		return nil, nil, err
	}
	if o.preload {
		session, err := preload.Start(ctx, preload.Options{
			RingBytes: int(o.ringKiB) << 10, Tick: tick, Follow: o.follow, Credential: cmd.SysProcAttr.Credential, Log: log,
		})
		if err != nil {
			return nil, nil, err
		}
		cmd.Env = session.Environ(cmd.Env)
		c, err := launch(cmd, proc.Start)
		if err != nil {
			return nil, nil, errors.Join(err, session.Close())
		}
		return c, shim{session, c.PID()}, nil
	}
	c, err := launch(cmd, proc.Launch)
	if err != nil {
		return nil, nil, err
	}
	tracer, err := newTracer(o, c.PID(), args, tick, log)
	if err == nil {
		if err = tracer.AttachLikely(cmd.Path, cmd.Env); err != nil {
			err = errors.Join(err, tracer.Close())
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, c.Abandon()) // it was asked for to be traced: without that there is no reason to run it
	}
	// A shell, a wrapper or a server that starts workers: what computes comes later.
	if o.follow || tracer.Ready() != nil {
		c.release = func() error { return c.ReleaseHeld(o.follow, tracer.Execed) }
	}
	return c, probes{tracer}, nil
}

func newTracer(o options, pid int, command []string, tick func() error, log *slog.Logger) (*ebpf.Tracer, error) {
	return ebpf.New(ebpf.Options{
		PID: pid, Hints: hints(command, pid), RingBytes: o.ringKiB << 10, PerfEvents: o.perf, Tick: tick,
		Detail: o.detail.Detail, Buffers: o.buffers, Follow: o.follow, Log: log,
	})
}

// hints are the files that a command's arguments may name, alone or as --flag=file, as seen from the process's directory.
func hints(command []string, pid int) []string {
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		dir = "." // a command of ours is where we are
	}
	var files []string
	for _, arg := range command {
		if _, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(arg, "-") {
			arg = value
		}
		if !filepath.IsAbs(arg) {
			arg = filepath.Join(dir, arg)
		}
		files = append(files, arg)
	}
	return files
}

func attachRunning(o options, p *process, tick func() error, log *slog.Logger) (capturer, error) {
	tracer, err := newTracer(o, p.PID(), proc.CommandLine(p.PID()), tick, log)
	if err != nil {
		return nil, err
	}
	err = tracer.AttachMapped()
	if err == nil && !o.follow { // a process that leaves the work to its children needs no ggml
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
	return probes{tracer}, nil
}

// probes observe from the kernel.
type probes struct{ *ebpf.Tracer }

func (p probes) Libraries() []string { return p.Attached() }
func (p probes) Why() error          { return p.Ready() }

// shim observes from inside.
type shim struct {
	*preload.Session
	pid int
}

func (s shim) Run(ctx context.Context, handle func(event.Event) error) error {
	return s.Session.Run(ctx, s.pid, handle)
}
func (s shim) Describe(pid int) event.TargetInfo { return s.Target(pid) }
func (s shim) Why() error                        { return s.Seen() }
func (s shim) Detach() error                     { return nil } // it passes through what nobody takes
