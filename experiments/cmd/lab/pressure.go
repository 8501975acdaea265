package main

// This file implements "lab pressure", which runs llama.cpp under a memory limit, with and without
// a helper. See package pressure.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/pressure"
	"tensorcast/experiments/results"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
	"tensorcast/trace"
)

type pressureOptions struct {
	pressure.Config
	output
	x         []float64
	experts   []float64
	limit     int64
	readahead []int
	throttle  string
	variants  []string
	noise     bool
	driver    llama.Options
	from      string
	parquet   string
	figure    string
	bytes     string // a figure
	texts     bool
}

// traceTokens is how many tokens are traced. They suffice to see whether all tokens read the same.
const traceTokens = 3

// staticName is the variant that needs no helper to be given.
const staticName = "static"

func pressureCommand() *cobra.Command {
	var o pressureOptions
	cmd := &cobra.Command{
		Use:   "pressure -m model.gguf (--x SHARES | --experts SHARES | --limit SIZE) [flags] [-- target...]",
		Short: "Measure llama.cpp under a memory limit, with and without a helper",
		Long: `Pressure measures llama.cpp under a memory limit, with and without a helper. A run is in a fresh memory
control group with a limit, and begins with the model dropped from the page cache. The report has the speed,
what was read for each token, and how that compares to the best that any strategy could reach. Variants have
a helper or other flags. They take turns, A B B A. The limit counts the helper's memory, too. Several shares
and readaheads make a series over all combinations, one after the other.

--x is the share of the weights that fits into memory. The limit is x * M + the target's own memory, where M
is the weights that a token reads. Both are measured first, without a limit. So are the time to compute a
token, and the text.
--experts is for a mixture of experts, in which a router chooses a few of many experts for each token. It is
the share of all experts' bytes that fits into memory. The trunk, which is what every token reads besides
experts, and the target's own memory come on top. At 1.2 all fits.

The bound is the best that any strategy could reach: min(1/T_compute, bandwidth / missing bytes). For a
mixture of experts, a traced run without a limit tells which experts are chosen. The missing bytes are then
those that must be read with so much memory, even if all choices are known in advance (Belady's rule). Beside
the bound, the report says what the best policy needs that does not know the future. It is called "causal".
Stall is a token's time beyond T_compute, whatever helper there is. Some numbers are known only if the helper
tells them, as prefetchd does with --json. These are what it read for experts that had been chosen (demand),
what it read before the choice (speculative), and the speed that it expects of its plan. Without a helper,
all that is read is demand.

T_compute is the time to compute a token. It is measured with all of the model in memory, before and after
the runs. That is done in single pages, and in large folios of 2 MiB where the file system has them. The
lesser time counts.
The disk's bandwidth is read past the page cache (O_DIRECT). First each point of a grid is read for 0.3 s, 6 s
in all. The grid has request sizes from 128 KiB to 8 MiB, and depths from 1 to 32. The three best points are
read again for 1 s in all: before, in the middle of and after the runs of each combination. The median of
these decides.

--variant NAME[=HELPER][ :: FLAGS]: HELPER is a shell command that starts with the target, and gets SIGTERM
when the target ends. In it, {pid} is the target's process id, {model} the model's path, {limit} the limit,
and {room} what the limit leaves for the model, both in bytes. FLAGS are more arguments for the target. A
HELPER that ends in {target} starts the target itself. A helper may know something of earlier runs. For a
mixture prefetchd does, unless it has --no-hot. Baselines:
  plain                                     no helper
  static                                    locks the first bytes of the model, as vmtouch -l would. It locks
                                            all that is left for the model but 48 MiB, through which the rest
                                            streams. lab pin --help says how to lock another amount
  'mlock :: --load-mode=mmap+mlock'         another way to load, of none, mmap, mlock, mmap+mlock and dio.
                                            llamarun --help has them
  'fast=bin/prefetchd --exec --as-root --fabric=fast -- {target}'
                                            weights with an error, in less memory. The text is another one
  'before=OLD/bin/prefetchd --pid {pid}'    another build of a helper, for instance of the previous release

--throttle limits how fast target and helper read from the disk, as a slower disk would. It uses
blkio.throttle of cgroup v1, or io.max of v2.

The target is llamarun, which is installed if it is not there, or the command after --. That command must
print llamarun's JSON. It must also write a byte to descriptor 3 when the prompt is decoded, and after each
token (llamarun --mark 3).

Needs root, because it makes control groups, drops the page cache and traces. It needs a quiet machine.

Exit codes: 0 measured, whatever came out; 1 not measured; 2 wrong usage.`,
		Example: `  sudo lab pressure -m model.gguf --x 0.85 \
      --variant plain --variant 'both=bin/prefetchd --wait --pid {pid}'
  sudo lab pressure -m model.gguf --limit 1GB --noise --repeat 6          # plain against plain
  sudo lab pressure -m model.gguf --x 0.3,0.5,0.7,0.85 --readahead 128,8192 --tokens 40 --skip 8 \
      --save runs.json --figure speed.svg --variant plain --variant static \
      --variant 'both=bin/prefetchd --wait --pid {pid}' --variant 'old=OLD/bin/prefetchd --wait --pid {pid}'
  sudo lab pressure -m model.gguf --x 0.85 --throttle 500MB/s --markdown \
      --variant plain --variant 'both=bin/prefetchd --wait --pid {pid}'
  lab pressure --from runs.json --skip 12 --figure speed.pdf --parquet runs.parquet          # what was measured, again
  # A mixture of experts with trained routing and the weight of a large one. Then: is help ever slower?
  lab synth -o big.gguf --inflate 32 tiny-moe-q8_0.gguf
  sudo lab pressure -m big.gguf --experts 0.4 --readahead 128,8192 --tokens 100 \
      --variant plain --variant 'live=bin/prefetchd --wait --json --pid {pid}' \
      --save runs.json --figure-bytes bytes.svg
  sudo lab pressure -m big.gguf --experts 0.2,0.4,0.6,0.8,1.2 --readahead 128,8192 --tokens 100 \
      --variant plain --variant 'live=bin/prefetchd --wait --json --pid {pid}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Target = args
			if o.from != "" {
				return o.showSaved(cmd)
			}
			if err := o.complete(); err != nil {
				return cli.Usage(err)
			}
			if f := cmd.Flags(); f.Changed("skip") && len(args) == 0 && o.Skip >= o.driver.Tokens {
				return cli.Usagef("--skip %d: of %d tokens none is left", o.Skip, o.driver.Tokens)
			}
			return o.measure(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.Model, "model", "m", "", "the model, a GGUF `file` on a disk")
	f.Float64SliceVar(&o.x, "x", nil,
		"limits of memory, as `shares` of the weights that a token reads, such as 0.5,0.85. The target's own memory comes "+
			"on top")
	f.Lookup("x").DefValue = "" // there is none
	f.Float64SliceVar(&o.experts, "experts", nil,
		"limits of memory, as `shares` of a mixture's experts. The rest that a token reads and the target's own memory "+
			"come on top")
	f.Lookup("experts").DefValue = ""
	cli.SizeVar(f, &o.limit, "limit", "the limit of memory as a `size`, such as 1GB or 800MiB")
	f.StringArrayVar(&o.variants, "variant", nil,
		"a variant, as `NAME[=HELPER][ :: FLAGS]`. May be repeated (default: plain)")
	f.BoolVar(&o.noise, "noise", false, "run the first variant twice, under two names. What differs is noise")
	f.IntVar(&o.Repeat, "repeat", 4, "runs of each variant in each combination")
	f.IntVar(&o.Skip, "skip", 8, "the first `N` tokens are the start-up. The steady state after them is reported apart")
	f.IntSliceVar(&o.readahead, "readahead", nil,
		"set the disk's readahead to so many `KiB`, and restore it afterwards. Several with commas (default: leave it)")
	f.StringVar(&o.throttle, "throttle", "",
		"the `rate` at which the runs may read from the disk, such as 500MB/s (default: no limit)")
	cli.SizeVar(f, &o.Weights, "weights", "the `size` of the weights that a token reads (default: it is measured)")
	addDriver(f, &o.driver, "tokens to generate")
	o.add(f, results.Pressure, "all runs", "table")
	f.BoolVar(&o.texts, "texts", false, "also print the text that each variant generated. JSON always has the texts")
	f.StringVar(&o.parquet, "parquet", "", "also write the runs to this `file`, as a Parquet table with a row for each")
	f.StringVar(&o.figure, "figure", "",
		"also draw tokens per second against x, and the bound, to this `file`: "+strings.Join(chart.Formats, ", "))
	f.StringVar(&o.bytes, "figure-bytes", "", "also draw what is read for each generated token to this `file`")
	f.StringVar(&o.from, "from", "", "measure nothing, but show what --save wrote to this `file`")

	return cmd
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
	o.Load = []string{ownPath(), "load"}
	bar := progress.New(stderr, progress.Options{Quiet: o.quiet, Width: 40})
	defer bar.Close()
	o.Log = slog.New(slog.NewTextHandler(bar, &slog.HandlerOptions{Level: slog.LevelWarn}))
	o.Progress = func(done, total int, what string) { bar.Update(int64(done), int64(total), what) }
	r, err := pressure.Measure(ctx, o.Config)
	bar.Close()
	if errors.Is(err, cgroup.ErrNoDiskControl) && o.throttle != "" {
		err = fmt.Errorf("--throttle: %w", err)
	}
	if r == nil {
		return err
	}
	return errors.Join(err, o.write(stdout, r))
}

// showSaved writes what an earlier series measured.
func (o *pressureOptions) showSaved(cmd *cobra.Command) error {
	for _, flag := range []string{"model", "x", "experts", "limit", "variant", "noise", "repeat", "readahead",
		"throttle", "weights", "tokens", "threads", "prompt"} {
		if cmd.Flags().Changed(flag) {
			return cli.Usagef("--%s: with --from nothing is measured", flag)
		}
	}
	skip := -1
	if cmd.Flags().Changed("skip") {
		if skip = o.Skip; skip < 0 {
			return cli.Usagef("--skip %d: want 0 or more", skip)
		}
	}
	if err := o.checkOutputs(); err != nil {
		return cli.Usage(err)
	}
	data, err := regular.Read(o.from, results.MaxBytes)
	if err != nil {
		return err
	}
	switch d, err := results.Parse(data); {
	case errors.Is(err, results.ErrBareReport) && o.save != "":
		return cli.Usagef("--save: the report in %s is of an older build, without machine, commit and command: make a "+
			"document of it with lab results import", o.from)
	case errors.Is(err, results.ErrBareReport):
	case err != nil:
		return fmt.Errorf("%s: %w", o.from, err)
	case d.Kind != results.Pressure:
		return fmt.Errorf("%s: %w: it is of lab %s", o.from, pressure.ErrNotReport, d.Kind)
	default:
		o.of, data = d, d.Report
	}
	r, err := pressure.ReadReport(data, skip)
	if err != nil {
		return fmt.Errorf("%s: %w", o.from, err)
	}
	return o.write(cmd.OutOrStdout(), r)
}

// write writes the report to all outputs that the flags name. If one of them fails the others are
// written nevertheless, so that no measurement is lost. The error is the first one; the others
// mostly have the same reason.
func (o *pressureOptions) write(stdout io.Writer, r *pressure.Report) error {
	err := o.print(stdout, r)
	if texts := r.Texts(); o.texts && !o.json {
		write := texts.WriteText
		if o.markdown {
			write = texts.WriteMarkdown
		}
		_, newline := fmt.Fprintln(stdout)
		err = cmp.Or(err, newline, write(stdout))
	}
	if o.parquet != "" {
		err = cmp.Or(err, outfile.Write(o.parquet,
			func(w io.Writer) error { return trace.WriteParquet(w, r.Columns()) }))
	}
	if o.figure != "" {
		err = cmp.Or(err, outfile.Write(o.figure,
			func(w io.Writer) error { return r.WriteFigure(w, chart.FormatOf(o.figure)) }))
	}
	if o.bytes != "" {
		err = cmp.Or(err, outfile.Write(o.bytes,
			func(w io.Writer) error { return r.WriteBytesFigure(w, chart.FormatOf(o.bytes)) }))
	}
	return err
}
