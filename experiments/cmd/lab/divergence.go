package main

// This file implements "lab divergence", which measures how far models' predictions are from a
// reference model's. See package divergence.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tensorcast/experiments/divergence"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/results"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
)

type divergenceOptions struct {
	divergence.Config
	output
	candidates []string
	bytes      []string
}

func divergenceCommand() *cobra.Command {
	var o divergenceOptions
	cmd := &cobra.Command{
		Use:   "divergence -m reference.gguf --candidate NAME=model.gguf --text FILE [flags]",
		Short: "Measure how far models are from a reference in what they predict",
		Long: `Divergence measures how far models are from a reference model in what they predict. A real llama.cpp,
which is installed if it is not there, runs all models over the same texts. Their distributions of the
next token are compared with the reference's, model by model. The table has the mean of
KL(reference || model) with its standard error, its 99 % quantile and its maximum. It says how often the
likeliest token is the same, and has both perplexities.

Texts are cut and scored as llama-perplexity does it. A text is cut into chunks of -c tokens, and the
second half of each chunk is scored.

By default each llama.cpp has one thread, and as many run at the same time as there are CPUs. While one
runs, the reference's logits are stored in a temporary directory (TMPDIR). For each text they take about
2 bytes times the tokens of the text times the size of the vocabulary. --limit bounds that.

Exit codes: 0 measured, whatever came out; 1 not measured; 2 wrong usage.`,
		Example: `  lab divergence -m f16.gguf --candidate q8=q8_0.gguf --candidate q4=q4_k_m.gguf \
      --text prose.txt --text tech.txt
  lab divergence -m 7b-q8_0.gguf --candidate fast=7b-fast-f32.gguf --bytes fast=0.41 \
      --text wiki.txt -c 512 --limit 20 -t 8 -j 1
  lab divergence -m f16.gguf --candidate q4=q4_k_m.gguf --text prose.txt --json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q (a model goes after --candidate NAME=, a text "+
					"after --text)", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(); err != nil {
				return cli.Usage(err)
			}
			return o.measure(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.Reference, "model", "m", "", "the reference, a GGUF `file`")
	f.StringArrayVar(&o.candidates, "candidate", nil, "a model to compare with the reference, as `NAME=FILE`. May be repeated")
	f.StringArrayVar(&o.bytes, "bytes", nil,
		"`NAME=N` says that the candidate takes N bytes per weight where it is used (default: what it takes in its file)")
	f.StringArrayVar(&o.Texts, "text", nil, "a text `file`. May be repeated")
	f.IntVarP(&o.Context, "ctx", "c", 256, "tokens of a chunk")
	f.IntVar(&o.Chunks, "limit", 0, "use at most `N` chunks of each text (default: all)")
	f.IntVarP(&o.Threads, "threads", "t", 1, "threads of each llama.cpp")
	f.IntVarP(&o.Parallel, "parallel", "j", 0,
		"run `N` llama.cpps at the same time (default: as many as there are CPUs for)")
	o.add(f, results.Divergence, "the rows", "table")

	return cmd
}

// complete checks the flags and derives the configuration from them.
func (o *divergenceOptions) complete() error {
	switch {
	case o.Reference == "":
		return errors.New("no reference: give -m reference.gguf")
	case len(o.candidates) == 0:
		return errors.New("nothing to compare: give --candidate NAME=model.gguf")
	case len(o.Texts) == 0:
		return errors.New("no text: give --text FILE")
	}
	if err := check(bound{"ctx", o.Context, 4}, bound{"limit", o.Chunks, 0}, bound{"threads", o.Threads, 1},
		bound{"parallel", o.Parallel, 0}); err != nil {
		return err
	}
	at := map[string]int{}
	for _, text := range o.candidates {
		name, path, ok := strings.Cut(text, "=")
		if _, known := at[name]; !ok || name == "" || path == "" || known {
			return fmt.Errorf("--candidate %q: want a name of its own and a file, as in q4=q4_k_m.gguf", text)
		}
		at[name] = len(o.Candidates)
		o.Candidates = append(o.Candidates, divergence.Candidate{Name: name, Path: path})
	}
	for _, text := range o.bytes {
		name, number, _ := strings.Cut(text, "=")
		i, known := at[name]
		if !known {
			return fmt.Errorf("--bytes %q: no candidate has the name %q", text, name)
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || !(n > 0 && n <= 16) {
			return fmt.Errorf("--bytes %q: want bytes per weight, as in fast=0.41", text)
		}
		o.Candidates[i].BytesPerWeight = n
	}
	return nil
}

func (o *divergenceOptions) measure(ctx context.Context, stdout, stderr io.Writer) error {
	in, err := llama.Install(ctx)
	if err != nil {
		return err
	}
	bar := progress.New(stderr, progress.Options{Quiet: o.quiet, What: "runs"})
	defer bar.Close()
	o.Progress = func(done, total int) { bar.Update(int64(done), int64(total), "") }
	r, err := divergence.Compare(ctx, in, o.Config)
	bar.Close()
	if r == nil {
		return err
	}
	return errors.Join(err, o.print(stdout, r))
}
