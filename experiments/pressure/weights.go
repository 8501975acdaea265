package pressure

// This file measures M, the bytes of weights that a generated token reads, by tracing a run of the target.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"

	"tensorcast/ebpf"
	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/internal/stats"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// weights is what a generated token reads.
type weights struct {
	tokenBytes int64    // distinct bytes; the median of the tokens
	routed     bool     // which ones depends on a router (MoE)
	extents    []Extent // whole tensors that a token reads from, in the order of first access; embedding rows are left out
}

// traceWeights runs the command to its end, traced.
func traceWeights(ctx context.Context, args []string, log *slog.Logger) (w weights, err error) {
	dir, err := os.MkdirTemp("", "tensorcast-pressure-")
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := capture(ctx, dir, args, log); err != nil {
		return w, err
	}
	c, err := trace.Open(dir)
	if err != nil {
		return w, err
	}
	return countWeights(c)
}

// capture traces a run of the command.
func capture(ctx context.Context, dir string, args []string, log *slog.Logger) (err error) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	cmd := exec.Command(args[0], args[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr, cmd.ExtraFiles = &stderr, []*os.File{null}
	child, err := proc.Launch(cmd)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = child.Signal(syscall.SIGKILL) }) // it may have ended by now
	defer stop()
	tracer, recorder, err := attach(dir, cmd.Path, args, child.PID(), log)
	if err != nil {
		err = errors.Join(err, child.Signal(syscall.SIGKILL), child.Release())
		_, _ = child.Wait()
		return err
	}
	defer func() { err = errors.Join(err, tracer.Close()) }()

	running, end := context.WithCancel(context.Background())
	defer end()
	recorded := make(chan error, 1)
	go func() { recorded <- tracer.Run(running, recorder.Handle) }()
	status, waitErr := 0, child.Release()
	if waitErr == nil {
		status, waitErr = child.Wait()
	}
	end()
	runErr := <-recorded
	meta, finishErr := recorder.Finish(runErr)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case runErr != nil || waitErr != nil:
		return errors.Join(runErr, waitErr)
	case status != 0:
		return fmt.Errorf("the target ends with status %d: %s", status, bytes.TrimSpace(stderr.Bytes()))
	case errors.Is(finishErr, event.ErrNoDecode) && tracer.Ready() != nil:
		return tracer.Ready() // says why none was seen
	case finishErr != nil:
		return finishErr
	case meta.Counters.Lost() > 0:
		return fmt.Errorf("%d events were lost", meta.Counters.Lost())
	}
	return nil
}

func attach(dir, exe string, args []string, pid int, log *slog.Logger) (*ebpf.Tracer, *trace.Recorder, error) {
	tracer, err := ebpf.New(ebpf.Options{PID: pid, Hints: args, Log: log})
	if err != nil {
		return nil, nil, err
	}
	if err := tracer.AttachLikely(exe, os.Environ()); err != nil {
		return nil, nil, errors.Join(err, tracer.Close())
	}
	recorder, err := trace.NewRecorder(trace.RecorderOptions{Dir: dir, Command: args, PID: pid, Log: log, Counters: tracer.Counters, Libraries: tracer.Attached})
	if err != nil {
		return nil, nil, errors.Join(err, tracer.Close())
	}
	return tracer, recorder, nil
}

// countWeights adds up a capture.
func countWeights(c *trace.Capture) (w weights, err error) {
	perToken := map[int32]map[int32]int64{} // by token, by tensor
	seen := map[int32]bool{}
	files := map[string]bool{}
	for _, row := range c.Structure {
		files[row.File] = true
	}
	if len(files) > 1 {
		return w, fmt.Errorf("the model is split in %d files: join them (llama-gguf-split --merge)", len(files))
	}
	for a, err := range c.Accesses() {
		if err != nil {
			return w, err
		}
		if a.Phase != tables.PhaseGeneration {
			continue
		}
		if perToken[a.Token] == nil {
			perToken[a.Token] = map[int32]int64{}
		}
		row := c.Structure[a.Tensor]
		// A tensor that is read twice (token_embd: as embedding and for the logits) is on disk once.
		perToken[a.Token][a.Tensor] = min(perToken[a.Token][a.Tensor]+a.Bytes, row.Size)
		w.routed = w.routed || len(a.Experts) > 0
		if !seen[a.Tensor] && (a.Bytes == row.Size || len(a.Experts) > 0) {
			seen[a.Tensor] = true
			w.extents = append(w.extents, Extent{row.Offset, row.Size})
		}
	}
	var sums []int64
	for _, tensors := range perToken {
		var sum int64
		for _, n := range tensors {
			sum += n
		}
		sums = append(sums, sum)
	}
	if len(sums) == 0 {
		return w, errors.New("the target generated no token")
	}
	w.tokenBytes = int64(stats.Median(sums))
	return w, nil
}
