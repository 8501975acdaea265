package serve

// This file starts a command that is helped from its beginning, and reads the head of its model meanwhile.

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"tensorcast/capture"
	"tensorcast/prefetch"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/plan"
	"tensorcast/prefetch/room"
)

// Target is a command that was started to be helped.
type Target struct {
	server  *server
	capture *capture.Capture
	head    *headReader
}

// command is what the server knows of a command that it started.
type command struct {
	pending  *capture.Capture // stopped behind its execve; nil once it runs
	started  bool             // it is one; otherwise the target was running already
	unprobed bool             // it has no probes of its start, or has them no more
	// room and modelBytes say why the command needs no help at first. modelBytes is 0 if it is observed from its
	// start.
	room       room.Room
	modelBytes int64
}

// isUnobserved says whether the command began without probes, because its models fit for certain.
func (c *command) isUnobserved() bool { return c.modelBytes > 0 }

// Start starts a command, stopped behind its execve, so that it is helped from its first touch of the model on.
// While probes are set, the head of the model that its arguments name is read. Where the model fits for certain,
// the command gets no probes: they take two tenths of a second of a processor. Then Help lets it run at once, and
// observes it only when its model does not fit any more. signals are passed on to the command, see capture.Options.
// The errors are those of capture.Start, and cgroup.ErrHidden. The caller must call Close.
func Start(ctx context.Context, cmd *exec.Cmd, signals []syscall.Signal, o Options) (t *Target, err error) {
	s := newServer(o)
	s.command.started = true
	s.foreseeForCommand(cmd.Args, cmd.Environ())
	if o.changesReadahead() {
		s.faults.beginHurry(o.Log)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.faults.endHurry())
		}
	}()
	head, free, err := startHeadReader(ctx, cmd.Args, &o)
	if err != nil {
		return nil, err
	}
	ample := !o.Dry && o.OnPlanned == nil && o.Elsewhere == nil && o.Cap == nil &&
		o.Prefetch.IsAmple(head.modelBytes, free)
	var c *capture.Capture
	if ample {
		c, err = capture.Launch(cmd, signals)
	} else {
		opts := s.captureOptions()
		opts.Signals = signals
		c, err = capture.Start(ctx, cmd, opts)
	}
	if err != nil {
		return nil, errors.Join(err, head.close())
	}
	s.opts.PID, s.command.pending = c.PID(), c
	if ample {
		s.opts.Late, s.command.unprobed = true, true
		s.command.room, s.command.modelBytes = free, head.modelBytes
	}
	return &Target{s, c, head}, nil
}

// Help lets the command run, and helps until it ends, as Run does. On an error the command goes on without help, if
// it runs: see Runs.
func (t *Target) Help(ctx context.Context) (prefetch.Summary, error) { return t.server.run(ctx) }

// PID is the process id of the command.
func (t *Target) PID() int { return t.capture.PID() }

// Runs says whether Help has let the command run. If not, Close ends it before its first instruction.
func (t *Target) Runs() bool { return t.server.command.pending == nil }

// Wait waits, if the command runs, until it ends, and returns its exit status as a shell would.
func (t *Target) Wait(ctx context.Context) (status int, err error) { return t.capture.Wait(ctx) }

// Explain says, after Help and Wait, why nothing of the command was seen, see capture.Capture.Explain. It returns
// nil if something was seen, or if nothing stood in the way.
func (t *Target) Explain() error {
	if t.server.command.unprobed || t.server.hasSeenTarget() {
		return nil
	}
	return t.capture.Explain()
}

// Close ends the command if it still runs.
func (t *Target) Close() error {
	return errors.Join(t.capture.Close(), t.head.close(), t.server.faults.endHurry())
}

// runUnobserved lets a command run whose models fit for certain.
func (s *server) runUnobserved() *prefetch.StandBack {
	stood := s.controller.Early(s.command.modelBytes, s.command.room)
	s.command.pending.Resume()
	s.command.pending = nil
	s.awaitWatch() // after Let: the command does not wait for what it may never need
	return stood
}

// headReader reads the head of a command's model in goroutines of its own, until close.
type headReader struct {
	head       *pages.Head // nil if there is none
	modelBytes int64       // of all models that the command names; 0 if that is not known
	cancel     context.CancelFunc
	running    sync.WaitGroup
	memoryErr  error // of closing the memory that was asked for room; valid after running
}

// startHeadReader begins to read the head of the model that a command names. It also returns how much room there
// is.
func startHeadReader(ctx context.Context, args []string, o *Options) (*headReader, room.Room, error) {
	h := &headReader{cancel: func() {}}
	memory, err := room.NewProcessMemory(os.Getpid(), o.memoryOptions()) // the command begins in this process's cgroup
	if err != nil {
		return nil, room.Room{}, err
	}
	free, err := memory.Room(room.InMemory{})
	// In the background, because closing waits for all CPUs: 20 ms on two busy ones.
	h.running.Go(func() { h.memoryErr = memory.Close() })
	if err != nil {
		return nil, free, errors.Join(err, h.close())
	}
	if o.Elsewhere != nil {
		return h, free, nil
	}
	most := plan.Keepable(free)
	if budget := o.Prefetch.Budget; budget > 0 {
		most = min(most, budget)
	}
	if h.head = pages.OpenNamedHead(args, most); h.head == nil {
		return h, free, nil
	}
	h.modelBytes = h.head.NamedBytes()
	ctx, h.cancel = context.WithCancel(ctx)
	h.running.Go(func() { h.head.Read(ctx) })
	return h, free, nil
}

func (h *headReader) close() error {
	h.cancel()
	h.running.Wait()
	if h.head == nil {
		return h.memoryErr
	}
	return errors.Join(h.memoryErr, h.head.Close())
}
