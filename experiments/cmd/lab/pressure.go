package main

// This file implements "lab pressure", which runs llama.cpp under a memory limit, with and without a helper. See package pressure.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/pressure"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
)

type pressureOptions struct {
	pressure.Config
	output
	variants []string
	noise    bool
	driver   llama.Options
}

// traceTokens is how many tokens are traced: enough to see whether they read the same.
const traceTokens = 3

func pressureCommand() *cobra.Command {
	var o pressureOptions
	cmd := &cobra.Command{
		Use:   "pressure -m model.gguf (--x SHARE | --limit SIZE) [flags] [-- target...]",
		Short: "Measure llama.cpp under a memory limit, with and without a helper",
		Long: `Pressure runs a llama.cpp in a fresh memory control group with a limit, its model dropped from the page cache,
and reports its speed, what it read per token, and how that compares to the best that any strategy could reach.
Variants (with a helper, with other flags) take turns, A B B A. The limit counts the helper's memory too.

--x is the share of the weights that fits into memory: limit = x * M + the target's own memory, where M (the weights that a token reads)
and the target's own memory are measured first, without a limit. So are the time to compute a token and the text.

--variant NAME[=HELPER][ :: FLAGS]: HELPER is a shell command that starts with the target and gets SIGTERM when that ends;
{pid} in it is the target's process id. FLAGS are more arguments for the target.

The target is llamarun (which is installed if it is not), or the command after --: it must print llamarun's JSON,
and write a byte to descriptor 3 when the prompt is decoded and after each token (llamarun --mark 3).

Needs root: it makes control groups, drops the page cache and traces. It needs a quiet machine.

Exit codes: 0 measured, whatever came out; 1 not measured; 2 wrong usage.`,
		Example: `  sudo lab pressure -m model.gguf --x 0.85 --variant plain --variant 'both=bin/prefetchd --wait --pid {pid}'
  sudo lab pressure -m model.gguf --limit 1GB --noise --repeat 6          # plain against plain
  sudo lab pressure -m model.gguf --x 0.5 --readahead 128 --save runs.json --markdown`,
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
	f.Float64Var(&o.X, "x", 0, "the limit as a `share` of the weights that a token reads, beside the target's own memory")
	cli.SizeVar(f, &o.Limit, "limit", "the limit as a `size`: 1GB, 800MiB")
	f.StringArrayVar(&o.variants, "variant", nil, "a variant `NAME[=HELPER][ :: FLAGS]`; give it several times (default plain)")
	f.BoolVar(&o.noise, "noise", false, "run the first variant twice, under two names: what differs is noise")
	f.IntVar(&o.Repeat, "repeat", 4, "runs of each variant")
	f.IntVar(&o.Readahead, "readahead", 0, "the disk's readahead in `KiB` for the series; restored afterwards (default: as it is)")
	cli.SizeVar(f, &o.Weights, "weights", "the weights that a token reads, as a `size`, instead of tracing")
	addDriver(f, &o.driver, "tokens to generate")
	o.add(f, "all runs", "table")

	return cmd
}

// complete checks the flags and derives the configuration from them.
func (o *pressureOptions) complete() error {
	if o.Model == "" {
		return errors.New("no model: give -m model.gguf")
	}
	if (o.X != 0) == (o.Limit != 0) {
		return errors.New("give the limit: --x SHARE or --limit SIZE")
	}
	if o.X < 0 || math.IsNaN(o.X) || math.IsInf(o.X, 0) {
		return fmt.Errorf("--x %v: want a positive number", o.X)
	}
	if err := check(bound{"repeat", o.Repeat, 1}, bound{"tokens", o.driver.Tokens, 1}, bound{"threads", o.driver.Threads, 1}, bound{"readahead", o.Readahead, 0}); err != nil {
		return err
	}
	if len(o.variants) == 0 {
		o.variants = []string{"plain"}
	}
	seen := map[string]bool{}
	for _, text := range o.variants {
		v := parseVariant(text)
		if v.Name == "" || seen[v.Name] {
			return fmt.Errorf("--variant %q: want a name of its own, as in plain or 'both=prefetchd --wait --pid {pid}'", text)
		}
		seen[v.Name] = true
		o.Variants = append(o.Variants, v)
	}
	if o.noise {
		again := o.Variants[0]
		if again.Name += " again"; seen[again.Name] {
			return fmt.Errorf("--variant %q: --noise takes that name", again.Name)
		}
		o.Variants = append(o.Variants, again)
	}
	return nil
}

// parseVariant parses NAME[=HELPER][ :: FLAGS].
func parseVariant(text string) pressure.Variant {
	text, flags, _ := strings.Cut(text, " :: ")
	name, helper, _ := strings.Cut(text, "=")
	return pressure.Variant{Name: strings.TrimSpace(name), Helper: strings.TrimSpace(helper), Flags: strings.TrimSpace(flags)}
}

func (o *pressureOptions) measure(ctx context.Context, stdout, stderr io.Writer) error {
	if err := needRoot("to make control groups, drop the page cache and trace"); err != nil {
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
		d.Tokens = traceTokens
		o.Trace = in.Command(ctx, d).Args
	}
	bar := progress.New(stderr, progress.Options{Quiet: o.quiet, Width: 40})
	defer bar.Close()
	o.Log = slog.New(slog.NewTextHandler(bar, &slog.HandlerOptions{Level: slog.LevelWarn}))
	o.Progress = func(done, total int, what string) { bar.Update(int64(done), int64(total), what) }
	r, err := pressure.Measure(ctx, o.Config)
	bar.Close()
	if r == nil {
		return err
	}
	return errors.Join(err, o.print(stdout, r))
}
