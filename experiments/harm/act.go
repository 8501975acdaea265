package harm

// This file makes a scene happen.

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
)

//go:embed hog.c
var hogSource string

// actor makes one scene happen in one run.
type actor struct {
	scene  Scene
	group  *cgroup.Group // the one with the limit
	limit  int64
	target int // process id; 0: the helper starts the target, see launched
	model  string
	helper *proc.Group // nil: none, or launched

	// launched returns the process ids of helper and target, 0 for one that is not there. It is nil
	// if the helper does not start the target.
	launched func() (helper, target int)

	hold    time.Duration
	done    <-chan struct{} // closed when the target has ended: a scene ends then, too
	hogs    []*hog
	gate    *os.File // the hogs begin when it is closed
	acted   bool
	refused bool // the kernel did not set the limit
	killed  int  // hogs that somebody killed
	ended   bool // the scene has killed the target
}

// hog is a process that takes memory.
type hog struct {
	cmd *exec.Cmd
	has io.Reader // a byte comes when it has its memory
}

// prepare starts the hogs of the scene. They wait outside of the target's group. release must be
// called in any case.
func (a *actor) prepare(ctx context.Context, program, marker string) error {
	if a.scene.hogs == 0 {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	a.gate = w
	args := append([]string{program, strconv.FormatInt(a.scene.size, 10), strconv.FormatInt(a.scene.rate, 10)},
		a.group.ProcsFiles()...)
	for range a.scene.hogs {
		cmd := proc.GroupCommand(ctx, args...)
		cmd.Env = append(os.Environ(), marker)
		cmd.Stdin = r
		has, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return fmt.Errorf("start a process that takes memory: %w", err)
		}
		a.hogs = append(a.hogs, &hog{cmd, has})
	}
	return nil
}

// release ends the hogs. It returns how many of them were killed by somebody else, or an error if
// one could not enter the group.
func (a *actor) release() (killed int, err error) {
	for _, h := range a.hogs {
		_ = h.cmd.Process.Signal(syscall.SIGTERM) // it may have been killed
	}
	if a.gate != nil {
		_ = a.gate.Close() // for hogs that had not begun; it may be closed already
	}
	for _, h := range a.hogs {
		_ = h.cmd.Wait() // its status is looked at below
		switch status, _ := h.cmd.ProcessState.Sys().(syscall.WaitStatus); {
		case status.Signaled() && status.Signal() == syscall.SIGKILL:
			killed++
		case status.Exited() && status.ExitStatus() != 0:
			err = fmt.Errorf("a process that was to take %d bytes ended with %d", a.scene.size, status.ExitStatus())
		}
	}
	a.hogs = nil
	return killed, err
}

// actAfter makes the scene happen after the time that comes on moment, unless the target ends
// before such a time comes. The channel that it returns then gets the error of act, once.
func (a *actor) actAfter(ctx context.Context, moment <-chan time.Duration) <-chan error {
	acting := make(chan error, 1)
	go func() {
		select {
		case wait := <-moment:
			select {
			case <-time.After(wait):
			case <-a.done:
			}
			acting <- a.act(ctx)
		case <-a.done:
			acting <- nil
		}
	}()
	return acting
}

// act makes the scene happen and ends it: after a while, or with the target. An error is a failure of the instrument.
func (a *actor) act(ctx context.Context) error {
	select {
	case <-a.done: // too late
		return nil
	default:
	}
	a.acted = true
	launcher := 0
	if a.launched != nil {
		launcher, a.target = a.launched()
		// It is too late or too early: nothing that was asked for can happen.
		if a.target == 0 && a.scene.kind != none {
			a.acted = false
			return nil
		}
	}
	switch a.scene.kind {
	case instant, slow, swarm:
		return a.takeMemory(ctx)
	case limit:
		if err := a.setLimit(ctx, int64(a.scene.factor*float64(a.limit))); err != nil || a.refused {
			return err
		}
		a.wait(ctx)
		return a.setLimit(ctx, a.limit)
	case moved:
		return a.move()
	case killHelper, termHelper:
		signal := syscall.SIGKILL
		if a.scene.kind == termHelper {
			signal = syscall.SIGTERM
		}
		if a.helper != nil && !a.helper.Ended() {
			_ = unix.Kill(a.helper.PID, signal) // it may have just ended
		}
		if launcher != 0 {
			a.ended = unix.Kill(launcher, signal) == nil && signal == syscall.SIGTERM // it passes the signal on
		}
	case stopHelper:
		if a.helper != nil && !a.helper.Ended() {
			_ = unix.Kill(-a.helper.PID, syscall.SIGSTOP)
			a.wait(ctx)
			_ = unix.Kill(-a.helper.PID, syscall.SIGCONT)
		}
		if launcher != 0 {
			_ = unix.Kill(launcher, syscall.SIGSTOP)
			a.wait(ctx)
			_ = unix.Kill(launcher, syscall.SIGCONT)
		}
	case stopTarget:
		_ = unix.Kill(a.targetOrGroup(), syscall.SIGSTOP)
		a.wait(ctx)
		_ = unix.Kill(a.targetOrGroup(), syscall.SIGCONT)
	case killTarget:
		a.ended = unix.Kill(a.targetOrGroup(), syscall.SIGKILL) == nil
	}
	return nil
}

// takeMemory lets the hogs take their memory, and ends them after a while or with the target.
func (a *actor) takeMemory(ctx context.Context) (err error) {
	_ = a.gate.Close()
	var taking sync.WaitGroup
	for _, h := range a.hogs {
		taking.Go(func() { _, _ = h.has.Read(make([]byte, 1)) }) // also returns when the hog ends
	}
	taken := make(chan struct{})
	go func() {
		taking.Wait()
		close(taken)
	}()
	select {
	case <-taken:
		a.wait(ctx)
	case <-a.done:
	case <-ctx.Done():
	}
	for _, h := range a.hogs {
		_ = h.cmd.Process.Signal(syscall.SIGTERM)
	}
	<-taken
	a.killed, err = a.release()
	return err
}

// targetOrGroup is the target for kill(2): its process group, unless the helper is in that, too.
func (a *actor) targetOrGroup() int {
	if a.launched != nil {
		return a.target
	}
	return -a.target
}

// wait waits while the scene lasts.
func (a *actor) wait(ctx context.Context) {
	select {
	case <-time.After(a.hold):
	case <-a.done:
	case <-ctx.Done():
	}
}

// retry is for how long a limit is tried again that the kernel refuses.
const retry = 5 * time.Second

// setLimit sets the group's limit. Version 1 of control groups refuses a limit that it cannot
// reclaim down to. That is tried again for a while, as an administrator would.
func (a *actor) setLimit(ctx context.Context, to int64) error {
	end := time.Now().Add(retry)
	for {
		err := a.group.SetLimit(to)
		if err == nil || !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-a.done:
			return nil
		case <-ctx.Done():
			return nil
		}
		if time.Now().After(end) {
			a.refused = true
			return nil
		}
	}
}

// move moves the target to the group with the limit. Pages stay charged to the group that they were
// read in. So those of the model are reclaimed, and the target reads them again, now on the account
// of its new group. Pages that the helper holds stay where they are.
func (a *actor) move() error {
	if err := a.group.Join(a.target); errors.Is(err, unix.ESRCH) {
		return nil // it has just ended
	} else if err != nil {
		return err
	}
	target, err := proc.Open(a.target)
	if errors.Is(err, proc.ErrNoProcess) {
		return nil
	}
	if err != nil {
		return err
	}
	defer target.Close()
	model, err := proc.FileOf(a.model)
	if err != nil {
		return err
	}
	mappings, err := proc.Mappings(a.target)
	if err != nil && !errors.Is(err, proc.ErrNoProcess) {
		return err
	}
	for _, m := range mappings {
		if m.File.Ino != model.Ino { // device numbers differ on overlayfs and btrfs
			continue
		}
		if err := target.PageOut(m.Start, int64(m.End-m.Start)); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
