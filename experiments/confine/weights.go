package confine

// This file measures M, the bytes of weights that a generated token reads, and which experts
// routers choose, by tracing a run of the target.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"tensorcast/capture"
	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/moe"
	"tensorcast/pattern"
	"tensorcast/trace"
)

// Extent is a range of bytes of a file.
type Extent struct {
	Offset, Length int64 // bytes
}

// Weights is what a generated token reads.
type Weights struct {
	TokenBytes int64 // distinct bytes per token
	Routed     bool  // a router chooses which weights are read (MoE)
	Trunk      int64 // the part of TokenBytes that every token reads: all but experts
	// Extents are the whole tensors that a token reads from, in the order of first access, without
	// embedding rows.
	Extents []Extent
	// Routes are the experts that were chosen; nil if there are none, or if layers differ in how many they have.
	Routes *moe.Trace
}

// TraceWeights runs the command to its end under a tracer, and counts what its tokens read. The
// command finds descriptor 3 open, for marks. log receives warnings.
func TraceWeights(ctx context.Context, args []string, log *slog.Logger) (w Weights, err error) {
	dir, err := os.MkdirTemp("", "tensorcast-weights-")
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := traceRun(ctx, dir, args, log); err != nil {
		return w, err
	}
	c, err := trace.Open(dir)
	if err != nil {
		return w, err
	}
	return countWeights(c)
}

// traceRun writes a capture of a run of the command to dir.
func traceRun(ctx context.Context, dir string, args []string, log *slog.Logger) (err error) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	cmd := exec.Command(args[0], args[1:]...)
	var stderr proc.Tail
	cmd.Stderr, cmd.ExtraFiles = &stderr, []*os.File{null} // for the marks
	cmd.WaitDelay = time.Second                            // for processes that keep its output open
	c, err := capture.Start(ctx, cmd, capture.Options{Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	recorder, err := trace.NewRecorder(trace.RecorderOptions{Dir: dir, Command: args, PID: c.PID(), Log: log,
		Counters: c.Counters, Libraries: c.Libraries})
	if err != nil {
		return err
	}
	runErr := c.Run(ctx, recorder.Handle)
	meta, finishErr := recorder.Finish(runErr)
	if runErr != nil {
		return runErr
	}
	status, err := c.Wait(ctx)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case status != 0:
		return fmt.Errorf("the target ends with status %d: %s", status, strings.TrimSpace(stderr.String()))
	case errors.Is(finishErr, event.ErrNoDecode) && c.Explain() != nil:
		return c.Explain() // it says why no token was seen
	case finishErr != nil:
		return finishErr
	case meta.Counters.Lost() > 0:
		return fmt.Errorf("%d events were lost", meta.Counters.Lost())
	}
	return nil
}

// countWeights computes from a capture what a token reads.
func countWeights(c *trace.Capture) (w Weights, err error) {
	files := map[string]bool{}
	for _, row := range c.Structure {
		files[row.File] = true
	}
	if len(files) > 1 {
		return w, fmt.Errorf("the model is split in %d files: join them (llama-gguf-split --merge)", len(files))
	}
	p, cycle, err := buildCycle(c)
	if err != nil {
		return w, err
	}
	w.TokenBytes = cycle.Bytes()
	trunk := pattern.Cycle{Files: cycle.Files}
	seen := map[Extent]bool{}
	for i := range cycle.Reads {
		r := &cycle.Reads[i]
		if r.Experts {
			w.Routed = true
		} else {
			trunk.Reads = append(trunk.Reads, *r)
		}
		e := Extent{r.Offset, r.Length}
		if (!r.Gathers() || r.Experts) && !seen[e] {
			seen[e] = true
			w.Extents = append(w.Extents, e)
		}
	}
	w.Trunk = trunk.Bytes()
	if w.Routed {
		w.Routes, err = routesOf(c, p)
	}
	return w, err
}

// buildCycle finds the pattern of a capture, and what a generated token reads.
func buildCycle(c *trace.Capture) (*pattern.Pattern, *pattern.Cycle, error) {
	options, err := pattern.OptionsOf(c.Meta, c.Steps())
	if err != nil {
		return nil, nil, err
	}
	p, err := pattern.Build(c.Structure, c.Accesses(), options)
	if errors.Is(err, pattern.ErrNoAccesses) || err == nil && !p.Generates() {
		return nil, nil, errors.New("the target generated no token")
	}
	if err != nil {
		return nil, nil, err
	}
	cycle, err := p.Cycle(c.Meta)
	return p, cycle, err
}

// WritePattern runs the command as [TraceWeights] does, and writes what a generated token reads as pattern.json, which
// prefetchd --pattern takes.
func WritePattern(ctx context.Context, w io.Writer, args []string, log *slog.Logger) (err error) {
	dir, err := os.MkdirTemp("", "tensorcast-pattern-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := traceRun(ctx, dir, args, log); err != nil {
		return err
	}
	c, err := trace.Open(dir)
	if err != nil {
		return err
	}
	_, cycle, err := buildCycle(c)
	if err != nil {
		return err
	}
	return cycle.Write(w)
}

// routesOf returns what the routers of a pattern's context chose.
func routesOf(c *trace.Capture, p *pattern.Pattern) (*moe.Trace, error) {
	empty := moe.EmptyTrace(pattern.ModelName(c.Meta, p.Model), c.Structure, p.Model)
	if empty == nil {
		return nil, nil
	}
	steps, err := moe.Steps(c.Steps(), p.Context)
	if err != nil {
		return nil, err
	}
	t, err := moe.FromRoutes(empty, c.Routes(), steps)
	if errors.Is(err, moe.ErrNoRoutes) {
		return nil, nil
	}
	return t, err
}
