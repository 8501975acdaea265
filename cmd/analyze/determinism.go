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
	"tensorcast/report/gather"
	"tensorcast/trace/tables"
)

func determinismCommand(o *options) *cobra.Command {
	format := chart.Formats[0]
	cmd := &cobra.Command{
		Use:   "determinism [flags]",
		Short: "Say whether steps read the same, and if not, where and why",
		Long: `analyze determinism says whether steps read the same, in the same order. It takes the steps of a phase that compute
equally many tokens. The sequence of reads that most of them share is called canonical. analyze says which share of the
steps follows it exactly. For each other step it has the shortest list of edits that makes one sequence from the other,
and a cause:

  batch           the step reads as most batches of another size do
  routing         apart from chosen experts the step reads the canonical sequence
  sampling        only reads behind the last layer differ, because logits are computed for some steps only
  warm-up         the step reads as the warm-up does, or only the first steps read so
  context length  all steps from one on to the last read so
  unknown         none of these

In a mixture of experts, the skeleton is what is read apart from chosen experts. In generation, reads are compared by
tensor, op and bytes. In other phases they are compared by tensor and op. It writes

  determinism.csv, .parquet        each step: whether it is exact, its edits, and the cause
  determinism_edits.csv, .parquet  each edit of each sequence that differs
  determinism.png                  the number of edits of each token, unless all tokens read the canonical sequence

Exit status: 0 done, whatever differs; 1 failed; 2 the command line is wrong.`,
		Example: `  sudo tracer -o run -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 64
  analyze determinism --capture run -o run-analysis
  analyze determinism --capture run --phase prompt --json | jq .`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return analyzeDeterminism(cmd.Context(), o, format, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.EnumVar(cmd, &format, "format", "", chart.Formats, "format of the figure")
	return cmd
}

// analyzeDeterminism is the subcommand.
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
		per := "token"
		if !p.Generates() {
			per = "decode"
		}
		doc = append(doc, tabular.Lines{fmt.Sprintf("the routed part: %d different choices of experts in %d %ss; "+
			"%.0f %% of a %s's experts are those of the %s before", experts.Distinct, experts.Tokens, per,
			100*experts.Kept, per, per)})
	}
	return append(doc, writtenLines(written)).WriteText(stdout)
}

// determinism compares the steps of a pattern, and makes the files that tell the result.
func (in *loaded) determinism(
	ctx context.Context, p *pattern.Pattern, format string,
) (*pattern.Determinism, []file, error) {
	sizes := map[int32]int32{} // tokens of each step that does not generate
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
	meta := in.capture.Meta
	model := modelField(meta, p.Model)
	files := tableFiles("determinism", d.Columns(), model)
	files = append(files, tableFiles("determinism_edits", d.EditColumns(), model)...)
	figure := gather.DeterminismFigure(d, pattern.ModelName(meta, p.Model), gather.Caption(meta))
	files = append(files, figureFiles("determinism", drawingOf(figure), format)...)
	return d, files, nil
}
