package main

// This file has the subcommand compare: two captures beside each other.

import (
	"context"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/internal/visible"
	"tensorcast/pattern"
	"tensorcast/trace/tables"
)

func compareCommand(o *options) *cobra.Command {
	format := chart.Formats[0]
	cmd := &cobra.Command{
		Use:   "compare [flags] CAPTURE CAPTURE",
		Short: "Compare two captures: tokens per second, bytes, what came from disk, the order of reads",
		Long: `analyze compare puts two captures beside each other, say of two prompts, numbers of threads, versions of llama.cpp, or plain
against prefetchd: how long tokens took, what they read, how much of it from disk and again (tracer --detail op+io), and
whether they read the same in the same order. It writes

  compare.csv, compare.parquet  each tensor: bytes, bytes from disk, read again, stall, per token, in both
  compare.png                   the time of each token in both, if the captures have it

Tokens per second are those of llama_decode: what happens between two calls, as sampling, is left out.`,
		Example: `  sudo tracer -o plain --detail op+io -- llama-cli -m model.gguf --no-repack -p "hi" -n 64
  analyze compare plain helped`,
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
	cli.EnumVar(cmd, &format, "format", "", chart.Formats, "of the figure")
	return cmd
}

func compare(ctx context.Context, o *options, captures []string, format string, stdout, stderr io.Writer) error {
	var sides [2]*pattern.Tally
	var about [2]string
	for i, name := range captures {
		one := *o
		one.capture = name
		var err error
		if sides[i], about[i], err = tally(ctx, &one, stderr); err != nil {
			return err
		}
	}
	c := pattern.Compare(sides[0], sides[1])
	names := [2]string{filepath.Base(captures[0]), filepath.Base(captures[1])}
	if names[0] == names[1] {
		names = [2]string{captures[0], captures[1]}
	}
	files := tableFiles("compare", c.Columns(), tables.Field{Key: "tensorcast.a", Value: captures[0]}, tables.Field{Key: "tensorcast.b", Value: captures[1]})
	files = append(files, figureFiles("compare", compareFigure(c, names, about), format)...)
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
	return append(c.Document(names, o.top), wrote(written)).WriteText(stdout)
}

// tally reads a capture for a comparison, and says where and how it was made.
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
	accesses, done := in.accesses(ctx, t.Access)
	for _, err = range accesses {
		if err != nil {
			break
		}
	}
	done()
	if err != nil {
		return nil, "", in.reading(err)
	}
	for s, err := range in.capture.Steps() {
		if err == nil {
			err = t.Step(s)
		}
		if err != nil {
			return nil, "", in.reading(err)
		}
	}
	if !in.capture.HasPageIns() {
		return t, captionOf(in.capture.Meta), nil
	}
	for r, err := range in.capture.PageIns() {
		if err == nil {
			err = t.PageIn(r)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, "", in.reading(err)
		}
	}
	return t, captionOf(in.capture.Meta), nil
}

// compareFigure is nil if neither capture has times. Of many tokens, the mean of each bin is drawn.
func compareFigure(c *pattern.Comparison, names, about [2]string) drawing {
	caption := about[0]
	if about[1] != about[0] {
		caption = names[0] + ": " + about[0] + "; " + names[1] + ": " + about[1]
	}
	f := &chart.Figure{Caption: visible.Line(caption), XLabel: "generated token", YLabel: "ms per token", Panels: []chart.Panel{{Title: visible.Line(c.Sides[0].Model + ": time of each token")}}}
	for side, name := range names {
		times := c.Times(side)
		bin := len(times)/maxFigurePoints + 1
		curve := chart.Curve{Name: visible.Line(name)}
		for from := 0; from < len(times); from += bin {
			part := times[from:min(from+bin, len(times))]
			sum := 0.0
			for _, t := range part {
				sum += float64(t.Nanos) / 1e6 / float64(len(part))
			}
			curve.Points = append(curve.Points, chart.Point{X: float64(from), Y: sum})
			f.To, f.High = max(f.To, float64(from)+1), max(f.High, 1.1*sum)
		}
		f.Panels[0].Curves = append(f.Panels[0].Curves, curve)
	}
	if f.High == 0 {
		return nil
	}
	return f
}
