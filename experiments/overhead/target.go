package overhead

// This file runs the target and splits its stream of tokens into generations.

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

// target is a running target.
type target struct {
	cmd    *exec.Cmd
	stream *llama.Stream
	stderr proc.Tail
	whole  chan generation // the latest generation that is complete and not taken yet; closed at the end of the stream
	err    error           // why the stream ended; set before whole is closed
	// notBefore is a time in ns. Generations that began before it are dropped.
	notBefore int64
	cancel    context.CancelFunc
}

// generation is one complete generation.
type generation struct {
	begin int64 // start of the first token, ns of CLOCK_MONOTONIC
	ms    []float64
	ids   []int32
}

// startTarget starts the target and waits until it has loaded its model.
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
	if t.stream, err = llama.NewStream(&batchReader{out}); err != nil {
		t.err = err
		close(t.whole)
		if !errors.Is(err, io.ErrUnexpectedEOF) { // otherwise the target still runs, perhaps for ever
			cancel()
		}
		defer t.stop()
		return nil, t.failure()
	}
	go t.readGenerations()
	return t, nil
}

// readGenerations keeps the latest complete generation. It drops the first one, in which caches and
// clocks warm up.
func (t *target) readGenerations() {
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

// nextGeneration waits for the next complete generation that began after the last call of
// dropCurrent.
func (t *target) nextGeneration(ctx context.Context) (generation, error) {
	for {
		select {
		case <-ctx.Done():
			return generation{}, context.Cause(ctx)
		case g, ok := <-t.whole:
			if !ok {
				return generation{}, t.failure()
			}
			if g.begin > t.notBefore {
				return g, nil
			}
		}
	}
}

// dropCurrent drops the current generation.
func (t *target) dropCurrent() { t.notBefore = monotonic() }

// failure returns why the target has ended; nil if it has not.
func (t *target) failure() error {
	soon := time.After(time.Second) // the target may be about to end
	for open := true; open; {
		select {
		case <-soon:
			return nil
		case _, open = <-t.whole:
		}
	}
	_ = t.cmd.Wait() // the result is in ProcessState
	text := t.stderr.LastLine()
	if text == "" {
		text = t.cmd.ProcessState.String()
	}
	if errors.Is(t.err, io.EOF) || errors.Is(t.err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the target ended: %s", text)
	}
	return fmt.Errorf("the target: %w", t.err)
}

// stop ends the target, and the command that started it, if any.
func (t *target) stop() {
	// It may have ended already. If it does not end, it is killed.
	_ = unix.Kill(-t.cmd.Process.Pid, unix.SIGINT)
	timer := time.AfterFunc(proc.Grace, t.cancel)
	for range t.whole {
	}
	_ = t.cmd.Wait() // ended by a signal
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

// batchReader reads all that has arrived during an interval.
type batchReader struct{ r io.Reader }

func (g *batchReader) Read(b []byte) (int, error) {
	n, err := g.r.Read(b)
	if err == nil && n < len(b) { // the pipe is empty now
		time.Sleep(pollInterval)
	}
	return n, err
}

// monotonic returns the time of the clock that the target uses, in ns.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it cannot fail
	return t.Nano()
}
