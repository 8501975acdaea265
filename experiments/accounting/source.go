// Package accounting checks a tracer's counters against an independent count. "lab accounting" runs
// it.
//
// The traced program is made for this purpose. It is a small C program (opsource.c, compiled by
// gcc) that runs a graph on llama.cpp's CPU backend repeatedly and reports how many ops it ran. Its
// rate of ops is configurable and may be far higher than any model's. It does not call
// llama_decode, but each graph begins with a lookup of token embeddings, as a step does.
package accounting

// This file compiles and runs the traced program, the source of ops.

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"tensorcast/event"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cc"
	"tensorcast/internal/proc"
	"tensorcast/trace"
)

//go:embed opsource.c
var source string

// compile writes the program to the file path. Without a C compiler it fails with [llama.ErrUnavailable].
func compile(ctx context.Context, path string) error {
	err := cc.Compile(ctx, path, source)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cc.ErrNoCompiler):
		return fmt.Errorf("%w: %w", llama.ErrUnavailable, err)
	}
	return fmt.Errorf("compile opsource: %w", err)
}

// Source is the compiled source of ops and the model that its ops read, in a directory of the caller.
type Source struct{ program, model string }

// NewSource compiles the source in dir, next to links to an installation's libraries. A tracer
// finds the libraries there before they are loaded, so that even the first op is traced. It also
// writes the model, which is small so that an op takes less than a microsecond.
func NewSource(ctx context.Context, dir string, in *llama.Installation) (*Source, error) {
	s := &Source{program: filepath.Join(dir, "opsource"), model: filepath.Join(dir, "model.gguf")}
	if err := compile(ctx, s.program); err != nil {
		return nil, err
	}
	libs, err := filepath.Glob(filepath.Join(in.Dir, "libggml*.so*"))
	if err != nil {
		return nil, err
	}
	for _, lib := range libs {
		if err := os.Symlink(lib, filepath.Join(dir, filepath.Base(lib))); err != nil {
			return nil, err
		}
	}
	plan, err := synth.NewPlan(synth.Config{Layers: 1, Embd: 32, FF: 32, Heads: 1, KVHeads: 1, Type: gguf.Q8_0,
		Seed: 1})
	if err != nil {
		return nil, err
	}
	if err := plan.WriteFile(ctx, s.model, nil); err != nil {
		return nil, err
	}
	return s, nil
}

// Load says how many ops to run, and how fast.
type Load struct {
	Ops     int64 // the least number; only complete graphs are run
	Rate    int64 // ops per second; 0: as fast as possible
	Nodes   int   // nodes per graph; 0: 1000
	Threads int   // 0: 1
}

// Args returns the command line that runs the source.
func (s *Source) Args(l Load) []string {
	args := []string{s.program, "-m", s.model, "--ops", strconv.FormatInt(l.Ops, 10), "--rate",
		strconv.FormatInt(l.Rate, 10)}
	if l.Nodes > 0 {
		args = append(args, "--nodes", strconv.Itoa(l.Nodes))
	}
	if l.Threads > 0 {
		args = append(args, "-t", strconv.Itoa(l.Threads))
	}
	return args
}

// Count is what the source reports at its end.
type Count struct {
	Graphs    int64   `json:"graphs"`
	Ops       int64   `json:"ops"`
	WeightOps int64   `json:"weight_ops"` // ops that read a weight
	Threads   int64   `json:"threads"`
	Seconds   float64 `json:"seconds"`
	Rate      float64 `json:"rate"` // ops per second
}

// Account is what the source and the tracer report about one run.
type Account struct {
	Count    Count          `json:"count"`
	Counters event.Counters `json:"counters"`
	Steps    int            `json:"steps"`
	Rows     int64          `json:"rows"`
}

// Run runs the source under a tracer command with the given flags. The capture is written to out.
func (s *Source) Run(ctx context.Context, tracer, out string, l Load, flags ...string) (*Account, error) {
	args := append(append([]string{"-o", out}, flags...), "--")
	// The tracer has a process group of its own, so that a terminal's Ctrl-C does not reach it and
	// look like its failure.
	cmd := proc.GroupCommand(ctx, append(append([]string{tracer}, args...), s.Args(l)...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the tracer passes it on
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(tracer), err, bytes.TrimSpace(stderr.Bytes()))
	}
	a := &Account{}
	if err := json.Unmarshal(stdout.Bytes(), &a.Count); err != nil {
		return nil, fmt.Errorf("result of opsource: %w", err)
	}
	capture, err := trace.Open(out)
	if err != nil {
		return nil, err
	}
	a.Counters, a.Steps, a.Rows = capture.Meta.Counters, capture.Meta.Steps, capture.Meta.Rows
	return a, nil
}
