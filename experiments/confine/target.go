package confine

// This file runs a target in a group, and reads the tokens that it generates.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
)

// Target is a running target, which prints what llamarun --stream prints. Its fields are for the
// goroutine that calls Follow, except PID and Done.
type Target struct {
	PID  int             // process id of the target, which leads a process group
	Done <-chan struct{} // closed when it has ended

	IDs  []int32 // ids of the generated tokens
	Text strings.Builder

	cmd         *exec.Cmd
	done        chan struct{}
	stdout      io.Reader
	stderr      proc.Tail
	first, last llama.Token
	err         error // what was wrong with the output
	waited      bool
}

// StartTarget starts a target in a group, with more variables in its environment (see [ListMarked]).
// The caller must call Follow, and Kill in any case. It is killed when ctx ends. If ctx has ended before, the error
// wraps the cause of that.
func StartTarget(ctx context.Context, group *cgroup.Group, args []string, variables ...string) (*Target, error) {
	done := make(chan struct{})
	t := &Target{cmd: proc.GroupCommand(ctx, In(group, args, "")...), Done: done, done: done}
	t.cmd.Env = append(os.Environ(), variables...)
	t.cmd.Stderr = &t.stderr
	var err error
	if t.stdout, err = t.cmd.StdoutPipe(); err == nil {
		err = t.cmd.Start()
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // it says why there is no more time
		}
		return nil, fmt.Errorf("start the target: %w", err)
	}
	t.PID = t.cmd.Process.Pid
	AwaitJoined(ctx, t.PID)
	return t, nil
}

// Follow reads the target's tokens until it ends, and waits for it. each is called with the number of tokens so far.
func (t *Target) Follow(each func(n int, token llama.Token)) {
	stream, err := llama.NewStream(t.stdout)
	for err == nil {
		var token llama.Token
		if token, err = stream.Next(); err != nil {
			break
		}
		if len(t.IDs) == 0 {
			t.first = token
		}
		t.last = token
		t.IDs = append(t.IDs, token.ID)
		t.Text.WriteString(token.Text)
		each(len(t.IDs), token)
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.err = err
	}
	_, _ = io.Copy(io.Discard, t.stdout) // the target must not wait for a reader
	_ = t.cmd.Wait()                     // its state is looked at later
	t.waited = true
	close(t.done)
}

// Kill ends a target that was not followed to its end; cancel ends the context that it was started with.
func (t *Target) Kill(cancel context.CancelFunc) {
	if t.waited {
		return
	}
	cancel()
	_ = t.cmd.Wait() // that it was killed is expected
	t.waited = true
	close(t.done)
}

// Speed returns generated tokens per second.
func (t *Target) Speed() float64 {
	if took := time.Duration(t.last.End - t.first.Begin); took > 0 {
		return float64(len(t.IDs)) / took.Seconds()
	}
	return 0
}

// Problem says why a target did not generate all its tokens.
func (t *Target) Problem() string {
	message := fmt.Sprintf("%v after %d tokens", t.cmd.ProcessState, len(t.IDs))
	if t.err != nil {
		message += ": " + t.err.Error()
	}
	if line := t.stderr.LastLine(); line != "" {
		message += ": " + line
	}
	return message
}

// State says how the target ended. It is valid once Done is closed.
func (t *Target) State() *os.ProcessState { return t.cmd.ProcessState }

// OutputError returns what was wrong with the target's output, besides its end.
func (t *Target) OutputError() error { return t.err }
