package overhead

// This file runs the target and cuts its stream of tokens into generations.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama"
	"tensorcast/internal/proc"
	"tensorcast/internal/stats"
)

// target is a target that runs.
type target struct {
	cmd    *exec.Cmd
	stream *llama.Stream
	stderr proc.Tail
	whole  chan generation // the last one that is over and was not asked for; closed when there are no more
	err    error           // why there are no more, after whole is closed
	after  int64           // generations that began before are not asked for
	cancel context.CancelFunc
}

// generation is what one generation was.
type generation struct {
	begin int64 // of the first token, ns of CLOCK_MONOTONIC
	ms    []float64
	ids   []int32
}

// startTarget waits until the target has loaded its model.
func startTarget(ctx context.Context, args []string) (*target, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &target{cmd: proc.GroupCommand(ctx, args...), whole: make(chan generation, 1), cancel: cancel}
	t.cmd.Stderr = &t.stderr
	out, err := t.cmd.StdoutPipe()
	if err == nil {
		err = t.cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("start the target: %w", err)
	}
	if t.stream, err = llama.NewStream(&gather{out}); err != nil {
		t.err = err
		close(t.whole)
		if !errors.Is(err, io.ErrUnexpectedEOF) { // it may go on for ever
			cancel()
		}
		defer t.stop()
		return nil, t.failure()
	}
	go t.read()
	return t, nil
}

// read keeps the last whole generation. The first one is left out: caches and clocks warm up.
func (t *target) read() {
	defer close(t.whole)
	number, g := 0, generation{}
	for {
		tok, err := t.stream.Next()
		if err != nil {
			t.err = err
			return
		}
		if tok.Context != 0 || tok.Sequence != 0 {
			t.err = errors.New("the target decodes several sequences: their tokens share their times")
			return
		}
		if tok.Generation != number {
			if number > 0 {
				select {
				case <-t.whole:
				default:
				}
				t.whole <- g
			}
			number, g = tok.Generation, generation{}
		}
		if tok.Token == 0 {
			g.begin = tok.Begin
		}
		g.ms, g.ids = append(g.ms, float64(tok.End-tok.Begin)/1e6), append(g.ids, tok.ID)
	}
}

// next waits for the next whole generation: after the last, or from forget on.
func (t *target) next(ctx context.Context) (generation, error) {
	for {
		select {
		case <-ctx.Done():
			return generation{}, context.Cause(ctx)
		case g, ok := <-t.whole:
			if !ok {
				return generation{}, t.failure()
			}
			if g.begin > t.after {
				return g, nil
			}
		}
	}
}

// forget leaves out the generation that is under way.
func (t *target) forget() { t.after = monotonic() }

// failure says why the target ended, if it has.
func (t *target) failure() error {
	soon := time.After(time.Second) // it may just be ending
	for open := true; open; {
		select {
		case <-soon:
			return nil
		case _, open = <-t.whole:
		}
	}
	_ = t.cmd.Wait() // ProcessState has it
	text := t.stderr.LastLine()
	if text == "" {
		text = t.cmd.ProcessState.String()
	}
	if errors.Is(t.err, io.EOF) || errors.Is(t.err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the target ended: %s", text)
	}
	return fmt.Errorf("the target: %w", t.err)
}

// stop ends the target, and a command that started it.
func (t *target) stop() {
	_ = unix.Kill(-t.cmd.Process.Pid, unix.SIGINT) // it may have ended by now; what does not end is killed
	timer := time.AfterFunc(proc.Grace, t.cancel)
	for range t.whole {
	}
	_ = t.cmd.Wait() // a signal ended it
	timer.Stop()
	t.cancel()
}

func (g generation) segment() Segment {
	var sum float64
	for _, ms := range g.ms {
		sum += ms
	}
	if sum <= 0 {
		return Segment{}
	}
	return Segment{TokS: 1000 * float64(len(g.ms)) / sum, MedianMs: stats.Median(g.ms)}
}

// gather reads what has come in a while.
type gather struct{ r io.Reader }

func (g *gather) Read(b []byte) (int, error) {
	n, err := g.r.Read(b)
	if err == nil && n < len(b) { // the pipe is empty now
		time.Sleep(pollInterval)
	}
	return n, err
}

// monotonic is the clock of the target's tokens.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it cannot fail
	return t.Nano()
}
