package main

// This file has the subcommand determinism: whether steps read the same, and where and why not.

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/internal/tabular"
	"tensorcast/pattern"
	"tensorcast/trace/tables"
)

func determinismCommand(o *options) *cobra.Command {
	format := chart.Formats[0]
	cmd := &cobra.Command{
		Use:   "determinism [flags]",
		Short: "Say whether steps read the same, and where and why not",
		Long: `analyze determinism takes the steps of each phase and of each batch size (tokens computed together), finds the sequence of
reads that most of them share, the canonical one, and says which share of them follows it exactly. For those that do
not it has the shortest script of edits that makes one of the other, and a cause:

  batch           it is the canonical sequence of batches of another size
  routing         apart from chosen experts it is the canonical one
  sampling        only reads behind the last layer differ: logits are computed for some steps only
  warm-up         it is the warm-up's sequence, or only the first steps have it
  context length  all steps from one on to the last have it
  unknown         none of these

The skeleton of a mixture of experts is what it reads apart from chosen experts. In generation, reads are compared by tensor,
op and bytes; in other phases without bytes. It writes

  determinism.csv, .parquet        each step: exact or not, edits, cause
  determinism_edits.csv, .parquet  each edit of each sequence that departs
  determinism.png                  edits against tokens; not if all tokens follow`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return analyzeDeterminism(cmd.Context(), o, format, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.EnumVar(cmd, &format, "format", "", chart.Formats, "of the figure")
	return cmd
}

func analyzeDeterminism(ctx context.Context, o *options, format string, stdout, stderr io.Writer) error {
	in, err := load(ctx, o, stderr)
	if err != nil {
		return err
	}
	p, err := in.pattern(ctx)
	if err != nil {
		return err
	}
	d, files, err := in.determinism(ctx, p, format)
	if err != nil {
		return err
	}
	written, err := writeAll(ctx, o.output, files)
	if err != nil {
		return err
	}
	experts := p.Experts()
	if o.json {
		return cli.WriteJSON(stdout, struct {
			*pattern.Determinism
			Experts *pattern.Experts `json:"experts"` // null unless the model has experts
			Files   []string         `json:"files"`
		}{d, experts, written})
	}
	doc := d.Document(o.top)
	if experts != nil && experts.Kept >= 0 {
		doc = append(doc, tabular.Lines{fmt.Sprintf("the routed part: %d different choices of experts in %d tokens; %.0f %% of a token's experts are those of the token before", experts.Distinct, experts.Tokens, 100*experts.Kept)})
	}
	return append(doc, wrote(written)).WriteText(stdout)
}

// determinism compares the steps of a pattern, and has the files that say so.
func (in *loaded) determinism(ctx context.Context, p *pattern.Pattern, format string) (*pattern.Determinism, []file, error) {
	sizes := map[int32]int32{}
	for s, err := range in.capture.Steps() {
		if err != nil {
			return nil, nil, in.reading(err)
		}
		if s.Phase != tables.PhaseGeneration {
			sizes[s.Step] = s.Tokens
		}
	}
	d, err := p.Determinism(sizes, ctx.Err)
	if err != nil {
		return nil, nil, err
	}
	model := tables.Field{Key: "tensorcast.model", Value: fingerprint(in.capture.Meta, p.Model)}
	files := tableFiles("determinism", d.Columns(), model)
	files = append(files, tableFiles("determinism_edits", d.EditColumns(), model)...)
	files = append(files, figureFiles("determinism", determinismFigure(d, pattern.ModelName(in.capture.Meta, p.Model), captionOf(in.capture.Meta)), format)...)
	return d, files, nil
}

// maxFigurePoints bounds a curve; of more tokens, the worst of each bin is drawn.
const maxFigurePoints = 2000

// determinismFigure has a curve for each size of batch; nil if every step that generates follows.
func determinismFigure(d *pattern.Determinism, model, caption string) drawing {
	f := &chart.Figure{Caption: caption, XLabel: "generated token", YLabel: "edits from the canonical sequence", Panels: []chart.Panel{{Title: model + ": reads that differ"}}}
	curves := map[int32]*chart.Curve{}
	var order []int32
	bin := len(d.Steps)/maxFigurePoints + 1
	for _, s := range d.Steps {
		if s.Phase != tables.PhaseGeneration {
			continue
		}
		c := curves[s.Batch]
		if c == nil {
			c = &chart.Curve{Name: fmt.Sprintf("steps of %d", s.Batch)}
			curves[s.Batch], order = c, append(order, s.Batch)
		}
		edits := 0.0
		if s.Departure >= 0 {
			edits = float64(len(d.Departures[s.Departure].Edits))
		}
		x := float64(int(s.Token) / bin * bin)
		if n := len(c.Points); n > 0 && c.Points[n-1].X == x {
			c.Points[n-1].Y = max(c.Points[n-1].Y, edits)
		} else {
			c.Points = append(c.Points, chart.Point{X: x, Y: edits})
		}
		f.To, f.High = max(f.To, float64(s.Token)+1), max(f.High, 1.1*edits)
	}
	if f.High == 0 {
		return nil
	}
	for _, batch := range order {
		f.Panels[0].Curves = append(f.Panels[0].Curves, *curves[batch])
	}
	return f
}
