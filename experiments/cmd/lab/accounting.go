package main

// This file implements "lab accounting", which traces millions of ops and checks that each is
// accounted for. See package accounting.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"

	"github.com/spf13/cobra"

	"tensorcast/experiments/accounting"
	"tensorcast/experiments/llama"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
)

func accountingCommand() *cobra.Command {
	var cfg accounting.Config
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "accounting [flags]",
		Short: "Check that tracer accounts for every one of millions of ops",
		Long: `Accounting checks that tracer counts every op. An op is one operation of ggml, such as a
product. A small program computes a graph of real ggml ops over and over under tracer: at a steady
rate, at full speed, on two threads, and with a buffer of only 4 KiB. On two threads it computes a
tenth of the ops. The program counts its ops. For each run these must be equal:

  the ops that ran x threads = tracer's hits in the kernel + recursion misses
  tracer's hits              = received + lost + filtered

With the default buffer at the given rate, nothing may be lost. At least nine tenths of that rate must
be reached. With 4 KiB something must be lost.

Needs root. Seven of eight ops read a weight, and are events.

Exit codes: 0 all of that holds; 1 it does not, or was not measured; 2 wrong usage.`,
		Example: `  sudo lab accounting
  sudo lab accounting --ops 1000000 --rate 100000 --tracer bin/tracer --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, n := range []struct {
				flag  string
				value int64
			}{{"ops", cfg.Ops}, {"rate", cfg.Rate}} {
				if n.value < 1 {
					return cli.Usagef("--%s %d: want 1 or more", n.flag, n.value)
				}
			}
			return measureAccounting(cmd.Context(), cfg, asJSON, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.Int64Var(&cfg.Ops, "ops", 11_500_000, "ops of a run. With the default, ten million of them are events")
	f.Int64Var(&cfg.Rate, "rate", 260_000, "ops per second. At nine tenths of the default, 200,000 a second are events")
	f.StringVar(&cfg.Tracer, "tracer", "", "the tracer `command` (default: beside this program, or else in PATH)")
	f.BoolVar(&asJSON, "json", false, "print the accounts as JSON")
	return cmd
}

func measureAccounting(ctx context.Context, cfg accounting.Config, asJSON bool, stdout, stderr io.Writer) error {
	if err := needRoot("to trace"); err != nil {
		return err
	}
	if cfg.Tracer == "" {
		cfg.Tracer = siblingCommand("tracer")
	}
	var err error
	if cfg.Tracer, err = exec.LookPath(cfg.Tracer); err != nil {
		return fmt.Errorf("find tracer: %w", err)
	}
	in, err := llama.Install(ctx)
	if err != nil {
		return err
	}
	bar := progress.New(stderr, progress.Options{})
	defer bar.Close()
	cfg.Progress = func(done, total int, what string) { bar.Update(int64(done), int64(total), what) }
	r, err := accounting.Measure(ctx, in, cfg)
	bar.Close()
	if r == nil {
		return err
	}
	if asJSON {
		err = errors.Join(err, cli.WriteJSON(stdout, r))
	} else {
		err = errors.Join(err, r.WriteText(stdout))
	}
	return errors.Join(err, r.Err())
}
