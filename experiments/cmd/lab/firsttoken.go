package main

// This file implements "lab firsttoken", which measures how long a user waits for the first token.
// See package pressure.

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/pressure"
	"tensorcast/experiments/results"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
)

type firstTokenOptions struct {
	pressure.FirstConfig
	output
	starts []string
	driver llama.Options
}

func firstTokenCommand() *cobra.Command {
	var o firstTokenOptions
	cmd := &cobra.Command{
		Use:   "firsttoken -m model.gguf [--x SHARE | --limit SIZE] [flags] [-- target...]",
		Short: "Measure how long a llama.cpp that is started cold takes to its first token",
		Long: `Firsttoken measures how long a cold start takes. Its target starts with its model dropped from the page
cache, alone and by a helper, in turns A B B A. The report says how long it takes until the prompt is
decoded, which is when the first token is chosen. It gives that in seconds, and in multiples of the time
that the disk takes for what must be read until then. What must be read is the file once, as it is
loaded. With --x, what has no room in memory must be read twice more: once for the warm-up and once for
the prompt. Without --x or --limit the memory has no limit.

A start is NAME=COMMAND, and the target's command line follows COMMAND. The time counts from the start of
COMMAND. In the report, "their sum" counts from the target's own start.

Needs root, because it makes control groups and drops the page cache. It needs a quiet machine.

Exit codes: 0 measured, whatever came out; 1 not measured; 2 wrong usage.`,
		Example: `  sudo lab firsttoken -m model.gguf --x 0.85 --start 'exec=bin/prefetchd --exec --'
  sudo lab firsttoken -m model.gguf --readahead 128 --repeat 6 --start 'exec=bin/prefetchd --exec --'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Target = args
			if err := o.complete(); err != nil {
				return cli.Usage(err)
			}
			return o.measure(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.Model, "model", "m", "", "the model, a GGUF `file` on a disk")
	f.Float64Var(&o.X, "x", 0, "the limit of memory as a `share` of the model, such as 0.85. The target's own memory comes on top")
	cli.SizeVar(f, &o.Limit, "limit", "the limit of memory as a `size`, such as 1GB or 800MiB")
	f.StringArrayVar(&o.starts, "start", nil,
		"a way to start the target, as `NAME=COMMAND`. May be repeated. plain, without a command, is always the first")
	f.IntVar(&o.Repeat, "repeat", 4, "runs of each way to start")
	f.IntVar(&o.Readahead, "readahead", 0,
		"set the disk's readahead to so many `KiB` for the series, and restore it afterwards (default: leave it)")
	addDriver(f, &o.driver, "tokens to generate")
	o.add(f, results.FirstToken, "all runs", "table")
	return cmd
}

// complete checks the flags and derives the configuration from them.
func (o *firstTokenOptions) complete() error {
	switch {
	case o.Model == "":
		return errors.New("no model: give -m model.gguf")
	case o.X != 0 && o.Limit != 0:
		return errors.New("give one limit: --x SHARE or --limit SIZE")
	case o.X < 0 || math.IsNaN(o.X) || math.IsInf(o.X, 0):
		return errors.New("--x: want a positive number")
	}
	if err := check(bound{"repeat", o.Repeat, 1}, bound{"tokens", o.driver.Tokens, 1},
		bound{"threads", o.driver.Threads, 1}, bound{"readahead", o.Readahead, 0}); err != nil {
		return err
	}
	o.Starters = []pressure.Starter{{Name: "plain"}}
	for _, text := range o.starts {
		name, command, _ := strings.Cut(text, "=")
		if name == "" || command == "" || name == "plain" {
			return errors.New("--start " + text + ": want NAME=COMMAND, as in 'exec=prefetchd --exec --'")
		}
		o.Starters = append(o.Starters, pressure.Starter{Name: name, Command: command})
	}
	return nil
}

func (o *firstTokenOptions) measure(ctx context.Context, stdout, stderr io.Writer) error {
	if err := needRoot("to make control groups and drop the page cache"); err != nil {
		return err
	}
	if len(o.Target) == 0 {
		in, err := llama.Install(ctx)
		if err != nil {
			return err
		}
		d := o.driver
		d.Model, d.NoRepack, d.Mark = o.Model, true, 3
		o.Target = in.Command(ctx, d).Args
	}
	bar := progress.New(stderr, progress.Options{Quiet: o.quiet, Width: 40})
	defer bar.Close()
	o.Log = slog.New(slog.NewTextHandler(bar, &slog.HandlerOptions{Level: slog.LevelWarn}))
	o.Progress = func(done, total int, what string) { bar.Update(int64(done), int64(total), what) }
	r, err := pressure.MeasureFirst(ctx, o.FirstConfig)
	bar.Close()
	if r == nil {
		return err
	}
	return errors.Join(err, o.print(stdout, r))
}
