package proc

// This file stops a command, and the processes that it starts, after each execve. So probes are in
// place before the first instruction of the program that computes, even if a shell, a wrapper or a
// server starts it.

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// hold handles the stops of a Child at each execve.
type hold struct {
	follow  bool                        // stop processes that the child starts, too
	inspect func(pid int) (detach bool) // is called after each execve
	status  int                         // the child's exit status
	err     error
	reaped  bool          // the child has ended and its status was taken
	ended   chan struct{} // closed once status and err are valid
}

// reap stores the child's exit status.
func (h *hold) reap(status unix.WaitStatus) {
	h.reaped = true
	if h.status = status.ExitStatus(); status.Signaled() {
		h.status = 128 + int(status.Signal())
	}
}

// ReleaseHeld lets the child run as Release does, and stops it after each execve. With follow,
// processes that the child starts are stopped, too. At each stop, inspect is called in another
// goroutine. Once inspect returns true, that process is detached for good. Until then it is under
// ptrace, so no debugger can attach to it. If the caller dies, the kernel lets the process run.
func (c *Child) ReleaseHeld(follow bool, inspect func(pid int) (detach bool)) error {
	if c.cmd.SysProcAttr.Ptrace { // else it is already running
		c.hold = &hold{follow: follow, inspect: inspect, ended: make(chan struct{})}
	}
	return c.Release()
}

// seize lets the child run under another kind of trace. The child itself has requested a trace that
// also takes its stop signals. PTRACE_SEIZE (Linux 3.4) leaves those to the terminal and the shell.
// The child must be stopped. The error is unix.ESRCH if the child was killed meanwhile; it must
// still be waited for.
func (c *Child) seize() error {
	pid := c.PID()
	if err := ptrace(unix.PTRACE_DETACH, pid, uintptr(unix.SIGSTOP)); err != nil {
		return err
	}
	if ended, err := c.hold.waitForStop(pid, unix.WUNTRACED); ended || err != nil {
		return err
	}
	if err := unix.PtraceSeize(pid); err != nil {
		return err
	}
	if ended, err := c.hold.waitForStop(pid, unix.WALL); ended || err != nil {
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
	return ignoreGone(unix.PtraceCont(pid, 0)) // from here on, run handles its end
}

// waitForStop waits for the next stop or the end of the process.
func (h *hold) waitForStop(pid, options int) (ended bool, err error) {
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

// run handles the stops of the child and of the processes that it starts, until the child has
// ended. It must run on the thread that is the tracer.
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
			if h.inspect(pid) {
				err = unix.PtraceDetach(pid)
			} else {
				err = unix.PtraceCont(pid, 0)
			}
		case event == unix.PTRACE_EVENT_STOP && sig != unix.SIGTRAP:
			// Stopped by the terminal or kill -STOP: leave it stopped.
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

// ignoreGone drops ESRCH: a process may be killed at any time, even while it is stopped.
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
