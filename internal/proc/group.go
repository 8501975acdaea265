package proc

// This file runs commands in process groups of their own. A group is asked to end with a signal,
// and killed as a whole if it does not.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Grace is how long a Group may take to end after a signal: removing many probes takes seconds.
const Grace = 30 * time.Second

// GroupCommand is exec.CommandContext for a command in a process group of its own: a terminal's
// Ctrl-C does not reach it, and the whole group is killed when ctx ends.
func GroupCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second // for processes that keep its output open
	return cmd
}

// Group is a command that runs in a process group of its own, together with the processes that it
// has started. Its methods are safe for concurrent use.
type Group struct {
	PID    int             // process id of the command and process group id
	Done   <-chan struct{} // closed when the command has ended
	Output Tail            // the end of the command's output
	cmd    *exec.Cmd
	cancel context.CancelFunc
}

// StartGroup starts a command. The caller must call Kill in any case. The group is also killed when
// ctx ends.
func StartGroup(ctx context.Context, args ...string) (*Group, error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	g := &Group{cmd: GroupCommand(ctx, args...), Done: done, cancel: cancel}
	g.cmd.Stdout, g.cmd.Stderr = &g.Output, &g.Output
	if err := g.cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	g.PID = g.cmd.Process.Pid
	go func() {
		defer close(done)
		_ = g.cmd.Wait() // its result is in State
	}()
	return g, nil
}

// Ended reports whether the command has ended.
func (g *Group) Ended() bool {
	select {
	case <-g.Done:
		return true
	default:
		return false
	}
}

// Stop sends a signal to the group and waits for the end of the command. It fails after Grace.
func (g *Group) Stop(signal syscall.Signal) error {
	_ = unix.Kill(-g.PID, signal) // it may have ended already
	select {
	case <-g.Done:
		return nil
	case <-time.After(Grace):
		return fmt.Errorf("it did not end within %v of %v: %s", Grace, signal, g.LastLine())
	}
}

// Kill kills the group unless the command has ended, and waits for the command's end.
func (g *Group) Kill() {
	g.cancel()
	<-g.Done
}

// State is how the command ended; it is valid once Done is closed.
func (g *Group) State() *os.ProcessState { return g.cmd.ProcessState }

// LastLine is the last line that the command wrote, for an error message.
func (g *Group) LastLine() string {
	if text := g.Output.LastLine(); text != "" {
		return text
	}
	return "it said nothing"
}
