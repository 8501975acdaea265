package main

// This file implements "lab soak", which runs the tools for minutes and looks for what they leave
// behind. See package soak.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"tensorcast/experiments/confine"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/results"
	"tensorcast/experiments/soak"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
)

type soakOptions struct {
	soak.Config
	output
	minutes float64
	size    int64  // of the model that is made if none is given
	server  string // a llama-server that is run instead of llamarun
	driver  llama.Options
}

func soakCommand() *cobra.Command {
	o := soakOptions{size: 200 << 20}
	cmd := &cobra.Command{
		Use:   "soak [--minutes N] [--seed S] [-m model.gguf] [flags]",
		Short: "Run the tools for minutes, kill them at random moments, and look for what is left",
		Long: `Soak runs the tools for minutes, kills them at random moments, and looks for what is left. It runs one
llama.cpp after the other, in memory control groups that hold half of the model. Each has a prefetchd or a
tracer of its own. In some rounds a prefetchd --auto that lives on runs beside it. At random moments a tool
gets SIGINT, SIGTERM or SIGKILL, or the target is killed. After each round, soak looks for processes, control
groups, locked pages and files that are left. It compares the text with that of a run without a limit. At the
end it looks for BPF objects, and whether prefetchd --auto grew.

With --server the targets are a llama-server with one slot, which is asked for a few tokens at a time. Each
text is compared with what the server says without a limit.

What happens follows from --seed. At which token it happens depends on the machine.

Needs root, because it makes control groups and drops the page cache.

Exit codes: 0 nothing was found; 1 something was found, it failed, or was interrupted; 2 wrong usage.`,
		Example: `  sudo lab soak --minutes 10
  sudo lab soak --minutes 60 --seed 7 -m model.gguf --save soak.json
  sudo lab soak --server llama.cpp/build/bin/llama-server`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(); err != nil {
				return cli.Usage(err)
			}
			return o.measure(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.Float64Var(&o.minutes, "minutes", 10, "run for so many `minutes`, counted from when the model is made and has run once")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of what happens at random")
	f.StringVarP(&o.Model, "model", "m", "",
		"the model, a GGUF `file` on a disk (default: one with random weights is made)")
	cli.SizeVar(f, &o.size, "size", "`size` of the model that is made, if none is given")
	f.StringVar(&o.Dir, "dir", "/var/tmp",
		"`directory` for the model that is made, its copies, and all other files. It must be on a disk")
	f.StringVar(&o.Prefetchd, "prefetchd", siblingCommand("prefetchd"), "run this `program` as prefetchd")
	f.StringVar(&o.Tracer, "tracer", siblingCommand("tracer"), "run this `program` as tracer")
	f.StringVar(&o.server, "server", "", "run this `program` llama-server instead of llamarun")
	addDriver(f, &o.driver, "tokens to generate")
	o.add(f, results.Soak, "the report", "counts and findings")
	return cmd
}

// complete checks the flags and derives the configuration from them.
func (o *soakOptions) complete() error {
	o.Tokens = o.driver.Tokens
	o.Duration = time.Duration(o.minutes * float64(time.Minute))
	if !(o.minutes > 0 && o.minutes <= 1e6) {
		return fmt.Errorf("--minutes %v: want more than 0, and at most a million", o.minutes)
	}
	return check(bound{"threads", o.driver.Threads, 1}, bound{"tokens", o.driver.Tokens, 1})
}

// setTarget sets the program that is soaked.
func (o *soakOptions) setTarget(ctx context.Context) error {
	if o.server != "" {
		return o.setServerTarget()
	}
	in, err := llama.Install(ctx)
	if err != nil {
		return err
	}
	command := func(model string) []string {
		d := o.driver
		d.Model, d.NoRepack, d.Stream = model, true, true
		return in.Command(context.WithoutCancel(ctx), d).Args
	}
	o.Program = command("")[0]
	o.Target = func(program, model string) []string { return append([]string{program}, command(model)[1:]...) }
	return nil
}

// setServerTarget sets a server as the target.
func (o *soakOptions) setServerTarget() (err error) {
	if o.Program, err = exec.LookPath(o.server); err != nil {
		return fmt.Errorf("find the server: %w", err)
	}
	ask, err := newAsking(o.driver)
	if err != nil {
		return err
	}
	o.Target = func(program, model string) []string { return ask.command(program, "-m", model) }
	return nil
}

func (o *soakOptions) measure(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if err := needRoot("to make control groups and drop the page cache"); err != nil {
		return err
	}
	if err := o.setTarget(ctx); err != nil {
		return err
	}
	bar := progress.New(stderr, progress.Options{Quiet: o.quiet, Width: 40})
	defer bar.Close()
	o.Progress = func(elapsed time.Duration, what string) {
		bar.Update(min(int64(elapsed), int64(o.Duration)), int64(o.Duration), what)
	}
	if o.Model == "" {
		made := harmOptions{size: o.size}
		made.Dir = o.Dir
		remove, err := made.makeModel(ctx, func(written, size int64) { bar.Update(0, 0, "making a model") })
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, remove()) }()
		o.Model = made.Model
	}
	r, err := soak.Measure(ctx, o.Config)
	bar.Close()
	if errors.Is(err, confine.ErrInMemory) {
		err = fmt.Errorf("%w: give --dir on a disk", err)
	}
	if r == nil {
		return err
	}
	err = errors.Join(err, o.print(stdout, r))
	if r.Interrupted {
		err = errors.Join(err, context.Cause(ctx))
	}
	if n := len(r.Findings); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d findings", n))
	}
	return err
}
