package main

// This file implements "lab latency", which measures how long a helper takes from a router's choice
// to its first read. See package latency.

import (
	"context"
	"errors"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"tensorcast/experiments/latency"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/results"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
	"tensorcast/internal/proc"
)

type latencyOptions struct {
	latency.Config
	output
	driver llama.Options
}

func latencyCommand() *cobra.Command {
	var o latencyOptions
	cmd := &cobra.Command{
		Use:   "latency -m moe.gguf --limit SIZE [flags] [-- target...]",
		Short: "Measure how long a helper takes from a router's choice to its first read",
		Long: `Latency measures how long a helper takes from a router's choice to its first read. It runs a mixture of
experts in a memory control group with a limit, with the helper beside it. In such a model, a router
chooses a few of many experts for each token. The time begins when the first op reads the router's
choice. It is measured until the helper's first read is handed to the block layer, and until the disk's
driver gets that read. The instrument measures this with probes of its own. The target's threads, one
for each processor, spin at each barrier.

--helper is a shell command that starts with the target. It gets SIGTERM when the target ends. {pid} in it
is the target's process id.

The target is llamarun, which is installed if it is not there, or the command after --. That command must
print what llamarun --stream prints.

Needs root, and Linux 6.6 or later. Figures need a quiet machine, because the target uses all cores.

Exit codes: 0 measured, whatever came out; 1 not measured; 2 wrong usage.`,
		Example: `  lab synth -o moe.gguf --size 1.4GB --type Q8_0 --experts 32 --used 4
  sudo lab latency -m moe.gguf --limit 600MB
  sudo lab latency -m moe.gguf --limit 600MB --helper 'OLD/bin/prefetchd --wait --pid {pid}' --json`,
		Args: cobra.ArbitraryArgs, // the command line of the target
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
	cli.SizeVar(f, &o.Limit, "limit", "the limit of memory as a `size`, such as 600MB")
	f.StringVar(&o.Helper, "helper", "",
		"the helper, a shell `command` (default: prefetchd --wait --always --pid {pid})")
	f.IntVar(&o.Skip, "skip", 16, "begin to measure after `N` tokens")
	addDriver(f, &o.driver, "tokens to generate")
	f.Lookup("tokens").DefValue = "128"
	f.Lookup("threads").DefValue = "one for each processor"
	o.driver.Tokens, o.driver.Threads = 128, runtime.NumCPU()
	o.add(f, results.Latency, "the result", "table")
	return cmd
}

// complete checks the flags and derives the configuration from them.
func (o *latencyOptions) complete() error {
	switch {
	case o.Model == "":
		return errors.New("no model: give -m moe.gguf")
	case o.Limit <= 0:
		return errors.New("give the limit: --limit SIZE")
	}
	if err := check(bound{"tokens", o.driver.Tokens, 2}, bound{"threads", o.driver.Threads, 1},
		bound{"skip", o.Skip, 1}); err != nil {
		return err
	}
	if len(o.Target) == 0 && o.Skip >= o.driver.Tokens-1 {
		return errors.New("--skip leaves no token to measure: raise --tokens")
	}
	if o.Helper == "" {
		o.Helper = proc.Quote(siblingCommand("prefetchd")) + " --wait --always --pid {pid}"
	}
	return nil
}

func (o *latencyOptions) measure(ctx context.Context, stdout, stderr io.Writer) error {
	if err := needRoot("to make control groups and to set probes"); err != nil {
		return err
	}
	tokens := int64(0)
	if len(o.Target) == 0 {
		in, err := llama.Install(ctx)
		if err != nil {
			return err
		}
		d := o.driver
		d.Model, d.NoRepack, d.Stream = o.Model, true, true
		o.Target, tokens = in.Command(ctx, d).Args, int64(d.Tokens)
	}
	bar := progress.New(stderr, progress.Options{What: "tokens", Quiet: o.quiet})
	defer bar.Close()
	o.Progress = func(n int) { bar.Update(int64(n), tokens, "") }
	r, err := latency.Measure(ctx, o.Config)
	bar.Close()
	if r == nil {
		return err
	}
	return errors.Join(err, o.print(stdout, r))
}
