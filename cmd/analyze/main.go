// Command analyze states a capture's per-token pattern: as a table, in words, and as a picture.
package main

// This file owns the flags and the order of work.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
	"tensorcast/internal/visible"
	"tensorcast/pattern"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

func main() { cli.Main(command()) }

type options struct {
	capture string
	output  string
	heatmap bool
	order   string
	top     int
	json    bool
	context int
	hidden  string // a format, or ""
}

// Formats of an exported table.
const (
	formatParquet = "parquet"
	formatCSV     = "csv"
)

func command() *cobra.Command {
	o := options{order: orderAccess}
	cmd := &cobra.Command{
		Use:   "analyze [flags]",
		Short: "State a capture's per-token pattern, and draw it",
		Long: `analyze reads a capture that tracer made and writes

  pattern.parquet, pattern.csv    the sequence of reads in each phase: seq, tensor_name, offset_bytes, size_bytes,
                                  relative_time (0 to 1 within a step), phase, and what each read is
  pattern.json                    the same of one generated token, for programs that plan reads: the model's files
                                  and their fingerprints, and each read with its place and how long the op computes
  heatmap_access_per_token.png    with --heatmap: the share of each tensor that each step reads
  hidden.parquet or hidden.csv    with --hidden: what routers read (tracer --hidden); in CSV a row's values are one text

It prints the tensors, the bytes read per token, the tensors that are read most, and whether all generated tokens read
the same tensors in the same order; if not, where they differ. Positions count from 0 and are the pattern's seq. The
experts that a mixture-of-experts model chooses are compared apart from the sequence. If the capture holds reads from disk
(tracer --detail op+io), it says which bytes were read again, and why.

A capture may hold several contexts (llama_context), as of a draft model. analyze takes the one that read most in
generation, and says so; --context takes another.

analyze moe says what a cache of a mixture-of-experts model's experts would gain.

Exit status: 0 done, whatever the pattern is; 1 failed; 2 the command line is wrong.`,
		Example: `  sudo tracer -- llama-cli -m model.gguf --no-repack -p "hi" -n 32
  analyze --heatmap
  analyze --capture run2 -o run2-analysis --json | jq .sequence.identical`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("unexpected argument %q: name the capture with --capture", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.context < 0 && cmd.Flags().Changed("context") {
				return cli.Usagef("--context is %d, want 0 or more", o.context)
			}
			if o.top < 0 {
				return cli.Usagef("--top is %d, want 0 or more", o.top)
			}
			return analyze(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.capture, "capture", "c", "capture", "`directory` that tracer wrote")
	f.StringVarP(&o.output, "output", "o", "analysis", "`directory` to write to; made if need be")
	f.BoolVar(&o.heatmap, "heatmap", false, "draw "+heatmapFile)
	cli.EnumVar(cmd, &o.order, "order", "", []string{orderAccess, orderFile}, "rows of the heatmap: access is first read first, file as in the model's file")
	cli.EnumVar(cmd, &o.hidden, "hidden", "", []string{formatParquet, formatCSV}, "export the table of what routers read, as parquet or csv")
	f.IntVar(&o.top, "top", 10, "list at most `n` tensors, and n differences")
	f.IntVar(&o.context, "context", pattern.MostRead, "analyse context `n` (default: that which read most)")
	f.BoolVar(&o.json, "json", false, "print the summary as JSON")
	cmd.AddCommand(moeCommand())
	cmd.CompletionOptions.HiddenDefaultCmd = true
	return cmd
}

func analyze(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	capture, err := trace.Open(o.capture)
	if err != nil {
		return err
	}
	build, err := pattern.OptionsOf(capture.Meta, capture.Steps())
	if err != nil {
		return fmt.Errorf("read %s: %w", o.capture, err)
	}
	build.Context = o.context
	accesses, done := watched(ctx, capture, stderr)
	p, err := pattern.Build(capture.Structure, accesses, build)
	done()
	warnings := slices.Concat(pattern.Warnings(capture.Meta), capture.Doubts)
	for _, w := range warnings {
		fmt.Fprintf(stderr, "analyze: warning: %s\n", visible.Line(w))
	}
	if errors.Is(err, pattern.ErrNoAccesses) || errors.Is(err, pattern.ErrNoTokens) {
		return fmt.Errorf("%s: %w: trace a run that generates text, such as `tracer -- llama-cli -m model.gguf --no-repack -p \"hi\" -n 32`", o.capture, err)
	}
	if errors.Is(err, pattern.ErrNoContext) {
		return fmt.Errorf("%s: %w: choose with --context", o.capture, err)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", o.capture, err)
	}
	if len(p.Contexts) > 1 {
		fmt.Fprintf(stderr, "analyze: %s\n", visible.Line(contextText(p, capture.Meta)))
	}
	summary := p.Summarize(capture.Meta, o.top)
	summary.Warnings = warnings
	if summary.Rereads, err = capture.Rereads(ctx, o.top); err != nil {
		return fmt.Errorf("read %s: %w", o.capture, err)
	}

	written, err := writeOutputs(ctx, &analysis{options: o, meta: capture.Meta, pattern: p, summary: summary, hidden: capture.HiddenColumns(ctx), warn: func(format string, args ...any) {
		fmt.Fprintf(stderr, "analyze: warning: %s\n", visible.Line(fmt.Sprintf(format, args...)))
	}})
	if err != nil {
		return err
	}
	return printSummary(stdout, summary, written, o.json)
}

// contextText says which of several contexts is analysed, and how to choose another.
func contextText(p *pattern.Pattern, meta *tables.Meta) string {
	var others []string
	taken := ""
	for _, c := range p.Contexts {
		text := fmt.Sprintf("%d (%s, %d generation steps, %s)", c.Context, pattern.ModelName(meta, c.Model), c.GenerationSteps, humanize.Bytes(uint64(c.GenerationBytes)))
		if c.Context == p.Context && c.Model == p.Model {
			taken = text
		} else {
			others = append(others, text)
		}
	}
	const named = 8
	if n := len(others) - named; n > 0 {
		others = append(others[:named], fmt.Sprintf("%d more", n))
	}
	return fmt.Sprintf("the capture holds several contexts; this is context %s; choose another with --context: %s", taken, strings.Join(others, ", "))
}

func printSummary(w io.Writer, s *pattern.Summary, files []string, asJSON bool) error {
	if asJSON {
		return cli.WriteJSON(w, struct {
			*pattern.Summary
			Files []string `json:"files"`
		}{s, files})
	}
	if err := s.WriteText(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, f := range files {
		if _, err := fmt.Fprintf(w, "wrote %s\n", visible.Line(f)); err != nil {
			return err
		}
	}
	return nil
}

// watched is the access table with a progress bar (if stderr is a terminal) and an end when ctx is cancelled. done takes
// the bar away.
func watched(ctx context.Context, c *trace.Capture, stderr io.Writer) (rows iter.Seq2[*tables.Access, error], done func()) {
	var total int64 // 0: not known
	if c.Meta.Complete {
		total = c.Meta.Rows - c.Meta.Segments.DeletedRows
	}
	bar := progress.New(stderr, progress.Options{})
	const chunk = 4096
	return func(yield func(*tables.Access, error) bool) {
		n := int64(0)
		for a, err := range c.Accesses() {
			if n++; n%chunk == 0 {
				bar.Update(n, total, "reading")
				if err := ctx.Err(); err != nil {
					yield(nil, err)
					return
				}
			}
			if !yield(a, err) {
				return
			}
		}
	}, bar.Close
}
