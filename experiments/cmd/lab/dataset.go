package main

// This file implements "lab dataset", which makes the data set of captures for others. See package captures.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"tensorcast/experiments/captures"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/matrix"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
	"tensorcast/internal/outfile"
)

type datasetOptions struct {
	out, trained string
	tokens       int
	quiet        bool
}

func datasetCommand() *cobra.Command {
	var o datasetOptions
	cmd := &cobra.Command{
		Use:   "dataset -o ARCHIVE",
		Short: "Make the data set of captures for others: Parquet, a data card and a loader",
		Long: `Dataset makes a data set of captures for others. It runs llama.cpp under tracer with a few small models that may
be shared, in half of the memory that they need. tracer records reads of single pages from disk, the choices of
routers, and hidden states. Dataset writes an archive (.tar.gz) with a Parquet file for each table of each run. It
has a data card (README.md), which says what each column means, and load.py, which shows how to read it.

Two models have random weights and are made anew. Two trained models are taken from --trained, if they are there.
Nothing in the archive names a path, a disk or a host of this machine. The table of runs says what kind of machine
it is: processor, kernel and memory.

Needs root, because tracer observes from outside and memory is limited. It takes about a minute.

Exit codes: 0 written; 1 failed; 2 wrong usage.`,
		Example: `  sudo lab dataset -o dist/tensorcast-captures.tar.gz
  sudo lab dataset -o captures.tar.gz --trained models/ --tokens 16`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.out == "" {
				return cli.Usagef("no output: give -o ARCHIVE")
			}
			if err := check(bound{"tokens", o.tokens, 2}); err != nil {
				return cli.Usage(err)
			}
			return o.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.out, "output", "o", "", "write this `archive`, a .tar.gz file")
	f.StringVar(&o.trained, "trained", "../shared/data/models", "take trained models from this `directory`")
	f.IntVarP(&o.tokens, "tokens", "n", 32, "tokens to generate in each run")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
	return cmd
}

// datasetModel is a model of the data set.
type datasetModel struct{ name, synth, file, made, prompt string }

var datasetModels = []datasetModel{
	{name: "synthetic-dense", synth: "--size 40MB --type Q8_0 --seed 1", prompt: "The page cache"},
	{name: "synthetic-moe", synth: "--size 40MB --type Q8_0 --experts 16 --used 4 --seed 1", prompt: "The page cache"},
	{name: "trained-dense", file: "tiny-dense-q8_0.gguf", prompt: "Once upon a time",
		made: "A dense model of 5.25 million parameters, trained from scratch for this project."},
	{name: "trained-moe", file: "tiny-moe-q8_0.gguf", prompt: "Once upon a time",
		made: "A mixture of 16 experts with 20.6 million parameters, trained from scratch for this project."},
}

func (o *datasetOptions) run(ctx context.Context, stderr io.Writer) (err error) {
	if err := needRoot("to trace, and to limit memory"); err != nil {
		return err
	}
	in, err := llama.Install(ctx)
	if err != nil {
		return err
	}
	bar := progress.New(stderr, progress.Options{Quiet: o.quiet, Width: 40})
	defer bar.Close()
	dir, err := os.MkdirTemp("", "tensorcast-dataset-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	models := &matrixModels{dir: dir, progress: func(done, total int64, what string) { bar.Update(done, total, what) }}
	var subjects []captures.Subject
	for _, m := range datasetModels {
		s := captures.Subject{Name: m.name, Path: filepath.Join(o.trained, m.file), Made: m.made, Prompt: m.prompt,
			Tokens: o.tokens, Share: 0.5}
		if m.synth != "" {
			s.Made = fmt.Sprintf("Random weights: lab synth %s.", m.synth)
			if s.Path, err = models.Make(ctx, &matrix.Model{Name: m.name, Synth: m.synth}); err != nil {
				return err
			}
		} else if _, err := os.Stat(s.Path); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(bar, "%s is left out: %v\n", m.name, err)
			continue
		}
		if s.Path, err = filepath.Abs(s.Path); err != nil {
			return err
		}
		subjects = append(subjects, s)
	}
	return outfile.Write(o.out, func(w io.Writer) error {
		return captures.Write(ctx, w, subjects, captures.Options{
			Tracer: siblingCommand("tracer"),
			Target: func(d llama.Options) []string { return in.Command(ctx, d).Args },
			Note:   func(format string, args ...any) { bar.Update(0, 0, fmt.Sprintf(format, args...)) },
		})
	})
}
