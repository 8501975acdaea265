package pressure

// This file starts and ends the processes of a run: the target and its helper.

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/confine"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
)

// markFD is the descriptor on which the target finds the pipe for its marks.
const markFD = 3

// target is a running target.
type target struct {
	cmd            *exec.Cmd
	marks          *os.File // from which its marks are read
	stdout, stderr bytes.Buffer
}

func startTarget(ctx context.Context, group *cgroup.Group, args []string, flags string) (*target, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	all := confine.In(group, args, flags)
	t := &target{cmd: exec.CommandContext(ctx, all[0], all[1:]...), marks: r}
	t.cmd.WaitDelay = time.Second // for processes that keep its output open
	t.cmd.ExtraFiles = []*os.File{w}
	t.cmd.Stdout, t.cmd.Stderr = &t.stdout, &t.stderr
	err = t.cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("start the target: %w", err)
	}
	confine.AwaitJoined(ctx, t.cmd.Process.Pid)
	return t, nil
}

// waitForExit returns when the target has ended. The target is not reaped yet.
func (t *target) waitForExit() {
	for unix.Waitid(unix.P_PID, t.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

func (t *target) kill() error {
	err := t.cmd.Process.Kill()
	_ = t.cmd.Wait() // that it was killed is expected
	return err
}

// helper is a running helper; nil if there is none.
type helper struct{ *proc.Group }

// HelperEnd says how the helper ended.
type HelperEnd struct {
	Early  bool          `json:"early"` // it ended before the last token
	Status string        `json:"status"`
	Output string        `json:"output"` // the end of its stdout and stderr
	Report *HelperReport `json:"told,omitempty"`
}

// fillIn replaces the names in braces in a helper's command: see [Variant].
func (s *series) fillIn(command string, target int, limit int64) string {
	return strings.NewReplacer("{pid}", strconv.Itoa(target), "{limit}", strconv.FormatInt(limit, 10), "{room}",
		strconv.FormatInt(limit-s.report.Own, 10),
		"{model}", proc.Quote(s.cfg.Model)).Replace(command)
}

func startHelper(ctx context.Context, group *cgroup.Group, command string) (*helper, error) {
	g, err := proc.StartGroup(ctx, confine.In(group, nil, command)...)
	if err != nil {
		return nil, fmt.Errorf("start the helper: %w", err)
	}
	return &helper{g}, nil
}

// hasEnded reports whether there is no helper, or it has ended.
func (h *helper) hasEnded() bool { return h == nil || h.Ended() }

// stop ends the helper and returns how it ended. early says that it ended while the target was still running. Ending
// together with the target is not early.
func (h *helper) stop(early bool) *HelperEnd {
	if h == nil {
		return nil
	}
	_ = h.Stop(syscall.SIGTERM) // if it does not end, it is killed
	h.Kill()
	output := h.Output.String()
	return &HelperEnd{Early: early, Status: h.State().String(), Output: output, Report: parseHelperReport(output)}
}
