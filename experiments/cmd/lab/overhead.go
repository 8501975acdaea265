package main

// This file implements "lab overhead", which measures what observing costs a llama.cpp. See package overhead.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/overhead"
	"tensorcast/experiments/results"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
)

type overheadOptions struct {
	overhead.Config
	output
	driver    llama.Options
	observers []string
}

// endless is a number of generations that is never reached: the target is ended after the last pair.
const endless = 1 << 29

func overheadCommand() *cobra.Command {
	var o overheadOptions
	cmd := &cobra.Command{
		Use:   "overhead -m model.gguf [flags] [-- target...]",
		Short: "Measure what observing a llama.cpp costs it",
		Long: `Overhead measures what observing a llama.cpp costs it. The llama.cpp generates the same text over and
over. Observers are attached to it and detached again, in turns: plain, observed, observed, plain. Each
observed generation is compared with the plain one next to it. The report has tokens per second, and the
share of them that is lost. That share is the Hodges-Lehmann estimate of the pairs' ratios, with its 95 %
interval. The observer none does nothing. Its share says how much is noise.

--observer NAME=COMMAND is a shell command that observes until SIGINT. In it, {pid} is the target's process
id, {ggml} the file with ggml's CPU code, and {out} a fresh directory. With --whole every generation has a
process of its own. Then {target} may stand for the command that the observer starts. These names need no
command:

  none           no observer, as the control
  op             tracer --detail op
  graph          tracer --detail graph
  op+io          tracer --detail op+io
  trap           a probe that does nothing, where tracer observes ops. It shows what the kernel's hits cost alone
  bpftrace       bpftrace, which counts the hits of the function that tracer probes
  bpftrace-ops   bpftrace, which counts the hits of each op's function (ggml_compute_forward_*)

The target is llamarun, which is installed if it is not there, or the command after --. That command must
print what llamarun --stream prints, and not end by itself.

Needs root. Figures need a quiet machine, because the target uses all cores.

Exit codes: 0 measured, whatever came out; 1 not measured; 2 wrong usage.`,
		Example: `  lab synth -o 1b.gguf --layers 22 --embd 2048 --ff 5632 --heads 16 --kv-heads 4 --type Q8_0
  sudo lab overhead -m 1b.gguf --pairs 20
  sudo lab overhead -m tiny.gguf --tokens 512 --pairs 100 --observer none --observer op
  sudo lab overhead -m 1b.gguf --whole --observer 'op=tracer -o {out} -- {target}' --save runs.json`,
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
	f.StringVarP(&o.driver.Model, "model", "m", "", "the model, a GGUF `file`")
	f.StringArrayVar(&o.observers, "observer", nil,
		"an observer, as `NAME=COMMAND` or a name from above. May be repeated (default: all names from above)")
	f.IntVar(&o.Pairs, "pairs", 20, "pairs of generations for each observer, an even number")
	addDriver(f, &o.driver, "tokens of a generation, which should take a second or more")
	f.DurationVar(&o.Settle, "settle", 500*time.Millisecond,
		"how long an observer's probes must stay the same to count as attached, such as 500ms")
	f.BoolVar(&o.Whole, "whole", false, "run each generation in a process of its own")
	o.add(f, results.Overhead, "all pairs", "table")
	cmd.AddCommand(trapCommand())
	// The error is impossible: the flag exists.
	_ = cmd.RegisterFlagCompletionFunc("observer",
		cobra.FixedCompletions(observers, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// trapCommand returns the subcommand "trap", the observer with that name.
func trapCommand() *cobra.Command {
	var pid int
	cmd := &cobra.Command{
		Use:   "trap --pid N FILE",
		Short: "Set a probe that does nothing where tracer observes ops, until SIGINT",
		Long: `Trap sets a probe that does nothing, in one process and until SIGINT. The probe is on the function that tracer
observes for ops. FILE is the file that holds ggml's CPU code. What the process loses meanwhile is what the
kernel's hits cost. No tracer that probes each op can cost less.

Exit codes: 0 it was interrupted; 1 failed; 2 wrong usage.`,
		Example: `  sudo lab overhead trap --pid $(pidof llama-cli) libggml-cpu-haswell.so     # until Ctrl-C`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if pid <= 0 {
				return cli.Usagef("which process? give --pid N")
			}
			return overhead.Trap(cmd.Context(), pid, args[0])
		},
	}
	cmd.Flags().IntVarP(&pid, "pid", "p", 0, "the id `N` of the process")
	return cmd
}

// observers are the names of the predefined observers, in the order of the help.
var observers = []string{"none", "op", "graph", "op+io", "trap", "bpftrace", "bpftrace-ops"}

// commandOf returns the command of a predefined observer. It uses the tracer next to this program,
// else the one in PATH.
func commandOf(name string) (string, bool) {
	switch name {
	case "none":
		return "", true
	case "op", "graph", "op+io":
		return siblingCommand("tracer") + " --pid {pid} --detail " + name + " -o {out}/capture", true
	case "trap":
		this, err := os.Executable()
		if err != nil {
			this = "lab"
		}
		return this + " overhead trap --pid {pid} {ggml}", true
	case "bpftrace":
		return "bpftrace -p {pid} -e 'uprobe:{ggml}:ggml_cpu_extra_compute_forward { @c = count(); }'", true
	case "bpftrace-ops":
		return "bpftrace -p {pid} -e 'uprobe:{ggml}:ggml_compute_forward_* { @c = count(); }'", true
	}
	return "", false
}

// complete checks the flags and derives the configuration from them.
func (o *overheadOptions) complete() error {
	if o.driver.Model == "" && len(o.Target) == 0 {
		return errors.New("no model: give -m model.gguf")
	}
	if err := check(bound{"pairs", o.Pairs, overhead.LeastPairs}, bound{"tokens", o.driver.Tokens, 1},
		bound{"threads", o.driver.Threads, 1}); err != nil {
		return err
	}
	if o.Pairs%2 == 1 {
		return fmt.Errorf("--pairs %d: want an even number, as pairs are made two at a time", o.Pairs)
	}
	if o.Settle < 0 {
		return fmt.Errorf("--settle %v: want no less than 0", o.Settle)
	}
	if len(o.observers) == 0 {
		o.observers = observers
	}
	seen := map[string]bool{}
	for _, text := range o.observers {
		name, command, given := strings.Cut(text, "=")
		spec := overhead.Observer{Name: strings.TrimSpace(name), Command: strings.TrimSpace(command)}
		if spec.Name == "" || seen[spec.Name] {
			return fmt.Errorf("--observer %q: want a name of its own, as in op or 'op=tracer --pid {pid}'", text)
		}
		seen[spec.Name] = true
		if !given {
			var known bool
			if spec.Command, known = commandOf(spec.Name); !known {
				return fmt.Errorf("--observer %s: give its command, as in '%s=tracer --pid {pid}', or one of %s",
					text, text, strings.Join(observers, ", "))
			}
		}
		if strings.Contains(spec.Command, "{target}") && !o.Whole {
			return fmt.Errorf("--observer %q: {target} takes --whole", text)
		}
		o.Observers = append(o.Observers, spec)
	}
	return nil
}

func (o *overheadOptions) measure(ctx context.Context, stdout, stderr io.Writer) error {
	if err := needRoot("to observe and to look into the target"); err != nil {
		return err
	}
	if len(o.Target) == 0 {
		in, err := llama.Install(ctx)
		if err != nil {
			return err
		}
		d := o.driver
		d.NoRepack, d.Stream, d.Repeat = true, true, endless
		o.Target = in.Command(ctx, d).Args
	}
	bar := progress.New(stderr, progress.Options{Quiet: o.quiet, Width: 24, Predict: true})
	defer bar.Close()
	o.Progress = func(done, total int, what string) { bar.Update(int64(done), int64(total), what) }
	r, err := overhead.Measure(ctx, o.Config)
	bar.Close()
	if r == nil {
		return err
	}
	return errors.Join(err, o.print(stdout, r))
}
