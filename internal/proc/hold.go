package proc

// This file stops a command, and what it starts, behind each execve: behind a shell, a wrapper or a server that starts workers the
// probes are in place before the first instruction of the program that computes.

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// hold is what a Child does at each execve.
type hold struct {
	follow bool
	look   func(pid int) (found bool)
	status int
	err    error
	reaped bool          // the child has ended, and nobody else will hear of it
	ended  chan struct{} // closed when status and err are valid
}

// reap takes the status of the child's end.
func (h *hold) reap(status unix.WaitStatus) {
	h.reaped = true
	if h.status = status.ExitStatus(); status.Signaled() {
		h.status = 128 + int(status.Signal())
	}
}

// ReleaseHeld lets the child run as Release does, but calls look, in another goroutine, whenever it has called execve and waits
// for probes; with follow also what it starts. Once look has found something, that process is let go for good. Until then the
// process is under ptrace, which no second debugger can join; if the caller dies, the kernel lets it go.
func (c *Child) ReleaseHeld(follow bool, look func(pid int) (found bool)) error {
	if c.cmd.SysProcAttr.Ptrace { // else it runs already
		c.hold = &hold{follow: follow, look: look, ended: make(chan struct{})}
	}
	return c.Release()
}

// seize exchanges the trace that began with the child's own request for one that leaves stops and their ends to the terminal
// and the shell as they are (PTRACE_SEIZE, Linux 3.4), and lets the child run. The child is stopped. The error is unix.ESRCH if it was
// killed meanwhile and is still to be waited for.
func (c *Child) seize() error {
	pid := c.PID()
	if err := ptrace(unix.PTRACE_DETACH, pid, uintptr(unix.SIGSTOP)); err != nil {
		return err
	}
	if ended, err := c.hold.stopped(pid, unix.WUNTRACED); ended || err != nil {
		return err
	}
	if err := unix.PtraceSeize(pid); err != nil {
		return err
	}
	if ended, err := c.hold.stopped(pid, unix.WALL); ended || err != nil {
		return err
	}
	options := unix.PTRACE_O_TRACEEXEC
	if c.hold.follow {
		options |= unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK
	}
	if err := ignoreGone(unix.PtraceSetOptions(pid, options)); err != nil {
		return err
	}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		return err
	}
	return ignoreGone(unix.PtraceCont(pid, 0)) // from here on run hears of its end
}

// stopped waits for the child's next stop, or its end.
func (h *hold) stopped(pid, options int) (ended bool, err error) {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, options, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return false, err
		case status.Exited() || status.Signaled():
			h.reap(status)
			return true, nil
		default:
			return false, nil
		}
	}
}

// run serves the stops of the child and what it starts until the child has ended. Its thread is the tracer.
func (h *hold) run(child int) {
	defer close(h.ended)
	for !h.reaped {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			h.err = err
			return
		case pid == child && (status.Exited() || status.Signaled()):
			h.reap(status)
			return
		case !status.Stopped():
			continue
		}
		switch event, sig := int(uint32(status)>>16), status.StopSignal(); {
		case event == unix.PTRACE_EVENT_EXEC:
			if h.look(pid) {
				err = unix.PtraceDetach(pid)
			} else {
				err = unix.PtraceCont(pid, 0)
			}
		case event == unix.PTRACE_EVENT_STOP && sig != unix.SIGTRAP: // stopped by the terminal or kill -STOP: so it stays
			err = ptrace(unix.PTRACE_LISTEN, pid, 0)
		case event != 0:
			err = unix.PtraceCont(pid, 0)
		default:
			err = unix.PtraceCont(pid, int(sig))
		}
		if err = ignoreGone(err); err != nil {
			h.err = fmt.Errorf("let process %d go on: %w", pid, err)
		}
	}
}

// ignoreGone: a process may be killed at any time, stopped or not.
func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

func ptrace(request, pid int, data uintptr) error {
	_, _, errno := syscall.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), 0, data, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
