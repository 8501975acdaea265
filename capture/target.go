package capture

// This file implements the two kinds of target: a command that is started here, and a process that
// is already running.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
)

// target is the observed program.
type target interface {
	PID() int
	// run lets the target run. If that fails, wait returns the error.
	run()
	// ended returns when the target has ended or ctx is done.
	waitEnded(ctx context.Context) error
	// wait waits, after run, until a command has ended. It kills the command if ctx is done first.
	wait(ctx context.Context) (status int, err error)
	// ending returns, after run, how the target ended, or "" if it has not.
	ending() string
	close() error
}

// command is a target that was started here.
type command struct {
	child   *proc.Child
	relay   *proc.Relay
	release func() error // lets the command run
	kills   cgroup.Kills
	over    chan struct{} // closed when the command has ended; nil before run
	status  int           // valid when over is closed
	err     error         // valid when over is closed: the command could not be released or waited for
}

// launch starts a command with one of proc's functions. Signals are caught from before the start,
// so that an early one reaches the command.
func launch(cmd *exec.Cmd, signals []syscall.Signal, start func(*exec.Cmd) (*proc.Child, error)) (*command, error) {
	relay := proc.NewRelay(signals...)
	child, err := start(cmd)
	if err != nil {
		relay.Stop()
		return nil, err
	}
	return &command{child: child, relay: relay, release: child.Release, kills: cgroup.WatchKills(child.PID())}, nil
}

func (c *command) PID() int { return c.child.PID() }

func (c *command) run() {
	c.over = make(chan struct{})
	err := c.release()
	go func() { // ends when the child does; close kills it
		defer close(c.over)
		relaying, stop := context.WithCancel(context.Background())
		relayed := make(chan struct{})
		go func() {
			defer close(relayed)
			c.relay.Run(relaying, func(s syscall.Signal) { _ = c.child.Signal(s) }) // it may have ended already
		}()
		status, waitErr := c.child.Wait()
		stop()
		<-relayed
		if c.status, c.err = status, waitErr; err != nil {
			c.status, c.err = 0, err
		}
	}()
}

func (c *command) waitEnded(ctx context.Context) error {
	select {
	case <-c.over:
	case <-ctx.Done():
	}
	return nil
}

func (c *command) wait(ctx context.Context) (int, error) {
	select {
	case <-c.over:
	case <-ctx.Done():
		if err := c.kill(); err != nil {
			return 0, err
		}
		<-c.over
	}
	return c.status, c.err
}

func (c *command) ending() string {
	select {
	case <-c.over:
	default:
		return ""
	}
	text := fmt.Sprintf("the command ended with exit status %d", c.status)
	if name := unix.SignalName(syscall.Signal(c.status - 128)); name != "" {
		text += fmt.Sprintf(" (128 + %s)", name) // killed by that signal, or a shell whose last command was
	}
	if c.status != 128+int(syscall.SIGKILL) {
		return text
	}
	return addKill(text, cmp.Or(c.kills.Err(), c.kills.ErrOnMachine())) // a shell may have joined another group first
}

func (c *command) kill() error {
	if err := c.child.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", c.PID(), err)
	}
	return nil
}

func (c *command) close() error {
	defer c.relay.Stop()
	if c.over == nil { // the command is still stopped
		err := errors.Join(c.kill(), c.child.Release())
		_, _ = c.child.Wait() // the status is known: it was killed
		return err
	}
	select {
	case <-c.over:
		return nil
	default:
	}
	err := c.kill()
	if err == nil {
		<-c.over
	}
	return err
}

// addKill adds to how a target ended that the kernel has ended a process for lack of memory meanwhile.
func addKill(text string, killed error) string {
	if killed != nil {
		return fmt.Sprintf("%s, and %s,", text, killed)
	}
	return text
}

// endedError says that a process has ended while it was attached to.
type endedError struct {
	pid    int
	killed error // nil if the kernel has killed none meanwhile
}

func (e *endedError) Error() string {
	text := fmt.Sprintf("process %d ended while probes were set", e.pid)
	if e.killed != nil {
		return text + ": " + e.killed.Error()
	}
	return text + ": " + proc.ErrNoProcess.Error()
}

func (e *endedError) Unwrap() []error { return []error{proc.ErrNoProcess, e.killed} }

// process is a target that was already running.
type process struct {
	*proc.Process
	kills cgroup.Kills
}

func (p process) run() {}

func (p process) waitEnded(ctx context.Context) error {
	err := p.Wait(ctx)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (p process) wait(context.Context) (int, error) { return 0, nil }

func (p process) ending() string {
	if ended, err := p.Ended(); !ended || err != nil {
		return ""
	}
	return addKill(fmt.Sprintf("process %d ended", p.PID()), p.kills.Err())
}

func (p process) close() error { return p.Close() }

// executablePath returns the path of the file that cmd executes.
func executablePath(cmd *exec.Cmd) string {
	if filepath.IsAbs(cmd.Path) {
		return cmd.Path
	}
	return filepath.Join(cmd.Dir, cmd.Path)
}

// fileHints returns the files that a command's arguments may name, alone or as --flag=file. Names are
// relative to the process's working directory.
func fileHints(command []string, pid int) []string {
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		dir = "." // the process has ended
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
