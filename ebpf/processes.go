package ebpf

// This file follows the processes of a target: those that it starts, those that run another program
// (execve), and those that have ended.

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/internal/proc"
)

// execRequest asks Run to look at the program that a process runs after an execve.
type execRequest struct {
	pid   int
	found chan bool
}

// AttachExeced sets probes for the program that a process, stopped after its execve, is about to run. It
// returns true if ggml was found, or if Run has ended. It may be called by any goroutine while Run
// runs.
func (t *Tracer) AttachExeced(pid int) (found bool) {
	request := execRequest{pid, make(chan bool, 1)}
	select {
	case t.execs <- request:
	case <-t.ran:
		return true
	}
	t.reader.Flush() // wakes Run; the error means that Run has ended
	select {
	case found := <-request.found:
		return found
	case <-t.ran:
		return true
	}
}

// serveExecs answers the calls of AttachExeced that wait.
func (t *Tracer) serveExecs() error {
	for {
		select {
		case r := <-t.execs:
			p := t.targets[uint32(r.pid)]
			if p == nil {
				r.found <- false // the event of its fork was lost
				continue
			}
			if err := t.handleExec(p); err != nil {
				return err
			}
			r.found <- t.checkReady(p) == nil
		default:
			return nil
		}
	}
}

// handleFork adds a process that a target has started. Until it calls execve it runs the same code
// as its parent.
func (t *Tracer) handleFork(e *systemProcessEvent) error {
	parent := t.targets[e.Parent]
	if parent == nil || t.targets[e.Tgid] != nil {
		return nil
	}
	p, err := newTarget(int(e.Tgid), parent.pid, t.cache)
	if errors.Is(err, proc.ErrNoProcess) {
		return nil // it has ended already
	}
	if err != nil {
		return err
	}
	p.likely = parent.images()
	p.ops, p.layout, p.config, p.configured = parent.ops, parent.layout, parent.config, parent.configured
	t.targets[e.Tgid] = p
	return nil
}

// AttachStarted adds the processes that the target has started before it was followed, and sets probes on what they
// have mapped by now. Those that are started from now on are reported by the kernel. It is for Options.Follow.
func (t *Tracer) AttachStarted() error {
	for { // a process that has just been added may have started another one before
		below, err := proc.Below(t.main.pid)
		if err != nil {
			return err
		}
		added := false
		for _, s := range below {
			if t.targets[uint32(s.PID)] != nil || len(t.targets) >= maxStarted {
				continue
			}
			if err := t.addStarted(s); errors.Is(err, proc.ErrNoProcess) {
				continue // it has ended already
			} else if err != nil {
				return err
			}
			added = true
		}
		if !added {
			return nil
		}
	}
}

// maxStarted bounds how many processes are looked at that a target has started before. The programs' table of targets
// has room for more.
const maxStarted = 256

func (t *Tracer) addStarted(s proc.Started) error {
	p, err := newTarget(s.PID, s.Parent, t.cache)
	if err != nil {
		return err
	}
	p.readCommand()
	t.targets[uint32(s.PID)] = p
	if err := t.objs.Targets.Put(uint32(s.PID), traceTargetConfig{Follow: asFlag(true)}); err != nil {
		return fmt.Errorf("follow process %d: %w", s.PID, err)
	}
	if err := t.attachMapped(p); err != nil && !errors.Is(err, proc.ErrNoProcess) {
		return err
	}
	return nil
}

// handleExec looks at the program that a target runs after an execve. What was found in the old
// program is dropped.
func (t *Tracer) handleExec(p *target) error {
	p.sawOp, p.seesDecodes, p.mapped, p.likely, p.search = false, false, nil, nil, search{}
	p.readCommand()
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
	if err != nil {
		return nil // it has ended
	}
	env, err := proc.Environ(p.pid)
	if err != nil {
		return nil
	}
	err = t.attachLikely(p, proc.Locate(p.pid, exe, 0).Path, env)
	if err != nil && !errors.Is(err, proc.ErrNoProcess) {
		return err
	}
	return nil
}

// removeEnded removes processes that the target had started and that have ended.
func (t *Tracer) removeEnded(handle func(event.Event) error) error {
	for tgid, p := range t.targets {
		if p == t.main {
			continue
		}
		if ended, err := p.process.Ended(); err != nil {
			return err
		} else if !ended {
			continue
		}
		if err := p.derived.End(handle); err != nil {
			return err
		}
		if p.announced {
			var now unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
				return fmt.Errorf("read the monotonic clock: %w", err)
			}
			if err := handle(event.ProcessEnd{Time: now.Nano(), PID: int32(p.pid)}); err != nil {
				return err
			}
		}
		t.cache.dropTarget(p)
		delete(t.targets, tgid)
		if err := t.objs.Targets.Delete(tgid); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget process %d: %w", p.pid, err)
		}
		if err := p.process.Close(); err != nil {
			return err
		}
	}
	return nil
}
