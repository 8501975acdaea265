package main

// This file has the subcommand compare: two captures beside each other.

import (
	"context"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/pattern"
	"tensorcast/report/gather"
	"tensorcast/trace/tables"
)

func compareCommand(o *options) *cobra.Command {
	format := chart.Formats[0]
	cmd := &cobra.Command{
		Use:   "compare [flags] CAPTURE CAPTURE",
		Short: "Compare two captures: tokens per second, bytes, what came from disk, the order of reads",
		Long: `analyze compare puts two captures beside each other. They may be of two prompts, of two numbers of threads, of two
versions of llama.cpp, or of a run alone and a run with prefetchd. It says how long tokens took, what they read, and
whether they read the same in the same order. It also says how much of that came from disk, and how much came again, if
the captures have that (tracer --detail op+io). It writes

  compare.csv, compare.parquet  each tensor in both, per token: bytes, bytes from disk, those read again, and waiting
  compare.png                   the time of each token in both, if the captures have it

Tokens per second are those of llama_decode. What happens between two calls, such as sampling, is left out.

Exit status: 0 done, whatever differs; 1 failed; 2 the command line is wrong.`,
		Example: `  sudo tracer -o two --detail op+io -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 64 -t 2
  sudo tracer -o four --detail op+io -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 64 -t 4
  analyze compare two four`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cli.Usagef("%d arguments: want two captures", len(args))
			}
			if cmd.Flags().Changed("capture") {
				return cli.Usagef("--capture: name both captures as arguments")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return compare(cmd.Context(), o, args, format, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.EnumVar(cmd, &format, "format", "", chart.Formats, "format of the figure")
	return cmd
}

// compare puts two captures beside each other.
func compare(
	ctx context.Context, o *options, captures []string, format string, stdout, stderr io.Writer,
) error {
	var sides [2]*pattern.Tally
	var captions [2]string
	for i, name := range captures {
		one := *o
		one.capture = name
		var err error
		if sides[i], captions[i], err = tally(ctx, &one, stderr); err != nil {
			return err
		}
	}
	c := pattern.Compare(sides[0], sides[1])
	names := [2]string{filepath.Base(captures[0]), filepath.Base(captures[1])}
	if names[0] == names[1] {
		names = [2]string{captures[0], captures[1]}
	}
	files := tableFiles("compare", c.Columns(),
		tables.Field{Key: "tensorcast.a", Value: captures[0]}, tables.Field{Key: "tensorcast.b", Value: captures[1]})
	figure := gather.ComparisonFigure(c, names, captions)
	files = append(files, figureFiles("compare", drawingOf(figure), format)...)
	written, err := writeAll(ctx, o.output, files)
	if err != nil {
		return err
	}
	if o.json {
		return cli.WriteJSON(stdout, struct {
			*pattern.Comparison
			Files []string `json:"files"`
		}{c, written})
	}
	return append(c.Document(names, o.top), writtenLines(written)).WriteText(stdout)
}

// tally reads a capture for a comparison. It also returns the capture's caption.
func tally(ctx context.Context, o *options, stderr io.Writer) (*pattern.Tally, string, error) {
	in, err := load(ctx, o, stderr)
	if err != nil {
		return nil, "", err
	}
	p, err := in.pattern(ctx)
	if err != nil {
		return nil, "", err
	}
	t := pattern.NewTally(p, in.capture.Meta, in.capture.HasPageIns())
	if err := in.readAccesses(ctx, t.Access); err != nil {
		return nil, "", err
	}
	for s, err := range in.capture.Steps() {
		if err == nil {
			err = t.Step(s)
		}
		if err != nil {
			return nil, "", in.reading(err)
		}
	}
	caption := gather.Caption(in.capture.Meta)
	if !in.capture.HasPageIns() {
		return t, caption, nil
	}
	for r, err := range checked(ctx, in, in.capture.PageIns()) {
		if err != nil {
			return nil, "", err
		}
		if err := t.PageIn(r); err != nil {
			return nil, "", in.reading(err)
		}
	}
	return t, caption, nil
}
