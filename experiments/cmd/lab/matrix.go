package main

// This file implements "lab matrix", which runs "lab pressure" for many models, amounts of memory and strategies. See
// package matrix.

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/matrix"
	"tensorcast/experiments/results"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
)

// matrixFile is the matrix of a checkout.
const matrixFile = "experiments/matrix.yaml"

type matrixOptions struct {
	file                       string
	dir, modelDir              string
	models, memory, strategies []string
	quick, plan, quiet         bool
}

func matrixCommand() *cobra.Command {
	var o matrixOptions
	cmd := &cobra.Command{
		Use:   "matrix [flags]",
		Short: "Measure many models, amounts of memory and strategies, and go on after an interruption",
		Long: `Matrix measures many models, amounts of memory and strategies, which a file lists. It makes a series for
each model, as lab pressure does it. The settings of a series are amounts of memory, and its variants are
strategies. In each setting the strategies take turns, and each round has them in the opposite order. Before
and after each series, matrix notes what else the machine did.

First it makes the models that are not there yet, and prints the plan. The plan says how many runs each model
has, which combinations are left out and why, and about how long everything takes. With --plan it only prints
the plan, and makes nothing. But a model that is downloaded is fetched even then, because its size is not
known before.

After every run, the series is kept in -o as a document (NAME.json). After Ctrl-C, or when the process was
killed, the same command goes on where it was. A series that is complete is not repeated. A document of
another build, machine, model or matrix is refused. Move it away, or name another directory.

The file is YAML, by default experiments/matrix.yaml of the checkout. A part of it in short:

    repeat: 2                     # runs of each strategy in each combination
    tokens: 32                    # generated in a run
    skip: 8                       # so many of these are the start-up
    llama: /opt/llama.cpp/build   # your own llama.cpp (default: that of lab getllama)
    commands:                     # programs that strategies name in braces
      - {name: old, path: /opt/old/prefetchd}
    models:
      - {name: mine, path: /models/mine.gguf}
      - {name: real, get: gemma3-270m, inflate: 6}   # as lab getmodel and lab synth --inflate
      - {name: made, synth: --size 400MB --type Q8_0, repack: true}
      - {name: experts, synth: --size 600MB --experts 32 --used 4, mixture: true}
    memory:
      - {name: half, share: 0.5}  # of the weights that a token reads, or of a mixture's experts
    strategies:
      - {name: plain}
      - {name: auto, helper: '{prefetchd} --wait --json --pid {pid}'}
      - {name: none, flags: --load-mode=none}
    left-out:
      - {models: [made], memory: [half], because: The copy of the weights does not fit.}
    quick: {models: [mine], repeat: 1}

In a helper, {pid}, {model}, {limit}, {room} and {target} are replaced as lab pressure does it. {pattern} is
replaced by the path of the model's pattern, which is traced before. {prefetchd}, {lab} and the names of
commands are replaced by their paths. What the file names is run as root, so trust it as you trust a script.

Needs root, and a quiet machine.

Exit codes: 0 measured; 1 a series failed or was interrupted, or a model cannot be had; 2 wrong usage.`,
		Example: `  lab matrix --plan
  sudo lab matrix --quick
  sudo lab matrix -o demo/matrix --model dense-q8_0 --strategy plain --strategy auto
  sudo lab matrix -f mine.yaml -o mine/
  lab results import demo/matrix/dense-q8_0.json -o experiments/results/dense-q8_0.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "file", "f", "", "the YAML `file` that says what is measured (default: "+matrixFile+
		" of the checkout)")
	f.StringVarP(&o.dir, "output", "o", "demo/matrix", "the `directory` of the documents. With --quick its default is "+
		"demo/matrix-quick")
	f.StringVar(&o.modelDir, "models", "demo/models", "the `directory` in which models are made. It must be on the disk "+
		"that is to be measured")
	f.StringArrayVar(&o.models, "model", nil, "measure only the model of this `name`. May be repeated (default: all)")
	f.StringArrayVar(&o.memory, "memory", nil, "measure only the amount of memory of this `name`. May be repeated (default: all)")
	f.StringArrayVar(&o.strategies, "strategy", nil, "measure only the strategy of this `name`. May be repeated (default: all)")
	f.BoolVar(&o.quick, "quick", false, "measure only the part \"quick\" of the file")
	f.BoolVar(&o.plan, "plan", false, "print what would be measured and how long it may take. Measure nothing")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
	cmd.PreRun = func(*cobra.Command, []string) {
		if o.quick && !f.Changed("output") {
			o.dir += "-quick"
		}
	}
	return cmd
}

// read reads the file, and selects what the flags say.
func (o *matrixOptions) read() (*matrix.File, error) {
	if o.file == "" {
		root, err := results.FindCheckout(".")
		if err != nil {
			return nil, fmt.Errorf("%w: give -f FILE", err)
		}
		o.file = filepath.Join(root, matrixFile)
	}
	data, err := regular.Read(o.file, matrix.MaxBytes)
	if err != nil {
		return nil, err
	}
	f, err := matrix.Parse(o.file, data)
	if err != nil {
		return nil, err
	}
	if o.quick {
		if f, err = f.ForLittleTime(); err != nil {
			return nil, fmt.Errorf("%s: %w", o.file, err)
		}
	}
	if f, err = f.Select(o.models, o.memory, o.strategies); err != nil {
		return nil, cli.Usage(err)
	}
	return f, nil
}

func (o *matrixOptions) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	f, err := o.read()
	if err != nil {
		return err
	}
	bar := progress.New(stderr, progress.Options{Quiet: o.quiet, Width: 60})
	defer bar.Close()
	models := &matrixModels{dir: o.modelDir, progress: func(done, total int64, what string) {
		bar.Update(done, total, what)
	}}
	plan, err := matrix.NewPlan(ctx, f, models)
	if err != nil {
		return err
	}
	commands, err := plan.CheckCommands(map[string]string{"prefetchd": siblingCommand("prefetchd"), "lab": ownPath()})
	if err != nil {
		return err
	}
	if err := plan.WriteText(stdout); err != nil || o.plan {
		return err
	}
	if err := needRoot("to make control groups, drop the page cache and trace"); err != nil {
		return err
	}
	out, err := outfile.OpenDir(o.dir, 0o755)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := out.Lock(); err != nil { // two series at once would measure each other
		return err
	}
	in, err := o.install(ctx, f)
	if err != nil {
		return err
	}
	return plan.Run(ctx, matrix.Options{
		Dir: o.dir, Materials: models, Commands: commands, Load: []string{ownPath(), "load"},
		Target:  func(d llama.Options) []string { return in.Command(ctx, d).Args },
		Command: commandLine(os.Args),
		Progress: func(done, total time.Duration, what string) {
			bar.Update(int64(done/time.Second), int64(total/time.Second), what)
		},
		Note: func(line string) { fmt.Fprintln(bar, line) },
		Log:  slog.New(slog.NewTextHandler(bar, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
}

// install is the llama.cpp that the file names, or the usual one.
func (o *matrixOptions) install(ctx context.Context, f *matrix.File) (*llama.Installation, error) {
	if f.Llama != "" {
		return llama.InstallFrom(ctx, f.Llama)
	}
	return llama.Install(ctx)
}
