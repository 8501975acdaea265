package proc

// This file starts a command so that probes are in place before its first instruction.

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

// Child is a command that was started stopped, right behind its execve. If the tracer dies before Release, the kernel
// lets the child run (ptrace's detach on exit): it is never left hanging.
type Child struct {
	cmd     *exec.Cmd
	release chan struct{}
	done    chan error
	hold    *hold // nil unless it is stopped at each execve
}

// Launch starts cmd, stopped, in the caller's process group. The caller must call Release, then Wait.
//
// A program with privileges of its own (set-user-ID, as sudo; file capabilities) is not stopped if it runs as another user than
// root: the kernel does not grant them under ptrace. Probes then come while it runs.
func Launch(cmd *exec.Cmd) (*Child, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	uid := os.Geteuid()
	if c := cmd.SysProcAttr.Credential; c != nil {
		uid = int(c.Uid)
	}
	// The child asks to be traced, so execve stops it. The kernel takes the request as made with the child's own
	// credentials (since 5.2), whoever the parent is.
	cmd.SysProcAttr.Ptrace = uid == 0 || !privileged(cmd.Path)
	return start(cmd)
}

// Start starts cmd as Launch does, but does not stop it: for what needs no probes. Release must be called all the same.
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
			_ = cmd.Process.Kill() // nothing is left of it
			_ = cmd.Wait()
		}
		started <- err
		if err != nil {
			return
		}
		<-c.release
		h := c.hold
		if err = c.letRun(); err != nil {
			_ = unix.Kill(c.PID(), unix.SIGKILL) // it is not left stopped
			err = fmt.Errorf("let %s run: %w", cmd.Path, err)
		}
		held := c.hold != nil
		c.done <- err
		if held {
			h.run(c.PID())
		}
		if h != nil {
			runtime.LockOSThread() // what it has started may still be traced: the kernel lets go of it when this thread ends
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// letRun ends the stop behind execve.
func (c *Child) letRun() error {
	switch {
	case c.hold != nil:
		err := c.seize()
		if err != nil {
			c.hold = nil // Wait waits for it as for any other
		}
		return ignoreGone(err)
	case c.cmd.SysProcAttr.Ptrace:
		return ignoreGone(unix.PtraceDetach(c.PID()))
	}
	return nil
}

// privileged says whether a program gains privileges by being executed. What cannot be read is left to execve to refuse.
func privileged(path string) bool {
	if info, err := os.Stat(path); err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		return true
	}
	n, err := unix.Getxattr(path, "security.capability", nil)
	return err == nil && n > 0
}

// start returns when the child is stopped, if it is to be.
func (c *Child) start() error {
	if err := c.cmd.Start(); err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err // it names the path again
		}
		return fmt.Errorf("start %s: %w", c.cmd.Path, err)
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
		default: // a signal came before execve did: let it have its effect
			if err := unix.PtraceCont(pid, int(status.StopSignal())); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("start %s: %w", c.cmd.Path, err)
			}
		}
	}
}

// PID is the child's process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Release lets the child run. It must be called once, and Wait after it, also if it fails: then the child is killed.
func (c *Child) Release() error {
	close(c.release)
	return <-c.done
}

// Wait waits for the child to end and returns its exit status as a shell would: 128+n after signal n.
func (c *Child) Wait() (int, error) {
	if c.hold != nil {
		<-c.hold.ended
		if err := c.cmd.Wait(); err != nil && !errors.Is(err, unix.ECHILD) { // it was waited for already
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

// Signal passes a signal on to the child. One that was sent while it is stopped takes effect at Release, SIGKILL at once.
func (c *Child) Signal(s syscall.Signal) error { return c.cmd.Process.Signal(s) }
