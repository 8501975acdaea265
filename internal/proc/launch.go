package proc

// This file starts a command that stays stopped until probes are attached.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Child is a command that was started and is stopped right after its execve. If the tracer dies
// before Release, the kernel lets the child run (ptrace detaches on exit).
type Child struct {
	cmd     *exec.Cmd
	release chan struct{}
	done    chan error
	hold    *hold // nil unless the child is to be stopped at each execve
}

// Launch starts cmd in the caller's process group, stopped after its execve. The caller must call
// Release, then Wait.
//
// A program with privileges of its own (set-user-ID, such as sudo, or file capabilities) is not
// stopped unless it runs as root, because the kernel does not grant the privileges under ptrace. It
// runs while probes are attached.
func Launch(cmd *exec.Cmd) (*Child, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	uid := os.Geteuid()
	if c := cmd.SysProcAttr.Credential; c != nil {
		uid = int(c.Uid)
	}
	// The child itself asks to be traced (PTRACE_TRACEME), so execve stops it. Since Linux 5.2 the
	// kernel checks this request with the child's own credentials, whoever the parent is.
	cmd.SysProcAttr.Ptrace = uid == 0 || !privileged(cmd.Path)
	return start(cmd)
}

// Start starts cmd as Launch does, but does not stop it. Release and Wait must be called nevertheless.
func Start(cmd *exec.Cmd) (*Child, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Ptrace = false
	return start(cmd)
}

func start(cmd *exec.Cmd) (*Child, error) {
	c := &Child{cmd: cmd, release: make(chan struct{}), done: make(chan error, 1)}
	started := make(chan error, 1)
	go func() {
		// ptrace requests must come from the thread that is the tracer.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.start()
		if err != nil && cmd.Process != nil {
			_ = cmd.Process.Kill() // do not leave a stopped process behind
			_ = cmd.Wait()
		}
		started <- err
		if err != nil {
			return
		}
		<-c.release
		h := c.hold
		if err = c.letRun(); err != nil {
			_ = unix.Kill(c.PID(), unix.SIGKILL) // do not leave it stopped
			err = fmt.Errorf("let %s run: %w", cmd.Path, err)
		}
		held := c.hold != nil
		c.done <- err
		if held {
			h.run(c.PID())
		}
		if h != nil {
			// Processes that it has started may still be traced. The kernel detaches them when this
			// thread ends.
			runtime.LockOSThread()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// letRun lets the child run after the stop at its execve.
func (c *Child) letRun() error {
	switch {
	case c.hold != nil:
		err := c.seize()
		if err != nil {
			c.hold = nil // it has ended; Wait reaps it as usual
		}
		return ignoreGone(err)
	case c.cmd.SysProcAttr.Ptrace:
		return ignoreGone(unix.PtraceDetach(c.PID()))
	}
	return nil
}

// privileged reports whether a program gains privileges when it is executed. If the file cannot be
// read, execve will report it.
func privileged(path string) bool {
	if info, err := os.Stat(path); err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		return true
	}
	n, err := unix.Getxattr(path, "security.capability", nil)
	return err == nil && n > 0
}

// StartError says that a program could not be executed: there is none, permission is denied, or the
// file is not a program.
type StartError struct {
	Path string
	Err  error
}

func (e *StartError) Error() string { return fmt.Sprintf("start %s: %v", e.Path, e.Err) }

func (e *StartError) Unwrap() error { return e.Err }

// start returns once the child has been started and, if requested, is stopped.
func (c *Child) start() error {
	if err := c.cmd.Start(); err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err // the message names the path anyway
		}
		return &StartError{c.cmd.Path, err}
	}
	if !c.cmd.SysProcAttr.Ptrace {
		return nil
	}
	pid := c.cmd.Process.Pid
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for %s to start: %w", c.cmd.Path, err)
		case !status.Stopped():
			return fmt.Errorf("%s ended before it began", c.cmd.Path)
		case status.StopSignal() == unix.SIGTRAP:
			return nil
		default: // a signal arrived before execve: deliver it
			if err := unix.PtraceCont(pid, int(status.StopSignal())); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("start %s: %w", c.cmd.Path, err)
			}
		}
	}
}

// PID is the child's process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Release lets the child run. It must be called once, and then Wait, even if Release fails; in that
// case the child is killed.
func (c *Child) Release() error {
	close(c.release)
	return <-c.done
}

// Wait waits until the child has ended and returns its exit status as a shell would: 128+n after
// signal n.
func (c *Child) Wait() (int, error) {
	if c.hold != nil {
		<-c.hold.ended
		if err := c.cmd.Wait(); err != nil && !errors.Is(err, unix.ECHILD) { // already reaped
			return 0, fmt.Errorf("wait for %s: %w", c.cmd.Path, err)
		}
		return c.hold.status, c.hold.err
	}
	err := c.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, fmt.Errorf("wait for %s: %w", c.cmd.Path, err)
	}
	status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return c.cmd.ProcessState.ExitCode(), nil
}

// Signal sends a signal to the child. While the child is stopped, SIGKILL takes effect at once,
// others at Release.
func (c *Child) Signal(s syscall.Signal) error { return c.cmd.Process.Signal(s) }
