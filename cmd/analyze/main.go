// Command analyze states the per-token pattern of a capture: as a table, in words, and as a picture.
package main

// This file has the flags, the list of subcommands, and what the command does without one.

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/internal/visible"
	"tensorcast/pattern"
	"tensorcast/report/gather"
	"tensorcast/trace/tables"
)

func main() { cli.Main(command()) }

// options are the flags. The first ones are persistent: subcommands have them, too, unless they define
// one of the same name.
type options struct {
	capture string
	output  string
	top     int
	context int
	phase   string // "": chosen by itself
	json    bool

	heatmap bool
	order   string
	hidden  string // a format; "": not asked for
	format  string // of the figures of --heatmap and --all
	export  bool
	all     bool

	perfetto bool
}

// check says what is wrong with the persistent flags.
func (o *options) check(cmd *cobra.Command) error {
	if o.context < 0 && cmd.Flags().Changed("context") {
		return cli.Usagef("--context is %d, want 0 or more", o.context)
	}
	if cmd.Flags().Changed("phase") && o.phase != phaseGeneration && o.phase != phasePrompt {
		return cli.Usagef("--phase is %q, want %s or %s", o.phase, phaseGeneration, phasePrompt)
	}
	if o.top < 0 {
		return cli.Usagef("--top is %d, want 0 or more", o.top)
	}
	return nil
}

// noArguments refuses arguments of a subcommand that takes its capture from --capture.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return cli.Usagef("unexpected argument %q: name the capture with --capture", args[0])
	}
	return nil
}

// subcommands make the subcommands. Each gets the persistent flags. A new one is a line here, and a file
// of its own.
var subcommands = append([]func(*options) *cobra.Command{
	moeCommand,
	determinismCommand,
	compareCommand,
	whatifCommand,
	reportCommand,
	exportCommand,
}, answerCommands()...)

// Values of --phase.
var (
	phaseGeneration = tables.PhaseGeneration.String()
	phasePrompt     = tables.PhasePrompt.String()
)

// Formats of an exported table.
const (
	formatParquet = "parquet"
	formatCSV     = "csv"
)

func command() *cobra.Command {
	o := options{order: orderAccess, format: chart.Formats[0]}
	cmd := &cobra.Command{
		Use:   "analyze [flags]",
		Short: "Say what held the tokens of a run up, and which reads each token repeats",
		Long: `analyze says what held the tokens of a run up, and which reads each token repeats. It reads a capture, which is what
tracer recorded of the run. It writes

  pattern.parquet, pattern.csv    the sequence of reads in each phase: seq, tensor_name, offset_bytes, size_bytes,
                                  relative_time (0 to 1 within a step), phase, and what each read is
  pattern.json                    the same for one generated token, for programs that plan reads. It has the model's
                                  files and their fingerprints, and for each read its place and the time of its op
  access_pattern.h                the same as an array for C and C++: PER_TOKEN_PATTERN of struct AccessEntry
  heatmap_access_per_token.png    with --heatmap: the share of each tensor that each step reads
  hidden.parquet or hidden.csv    with --hidden: what routers read, if tracer recorded it with its --hidden. In CSV the
                                  values of a row are one text
  access.parquet, ...             with --export: each table of the capture

An op is one operation of llama.cpp's computation, such as a product with a weight. A step, or decode, is a call of
llama_decode, which computes one token or several. A phase is the warm-up, the prompt or the generation.

analyze begins with the verdict: what held the tokens up, and what more memory, or prefetchd, would be worth. For that
the capture must have reads from disk (tracer --detail op+io), of a process whose memory was limited. Then analyze
prints the bytes that a token reads, and the tensors that are read most. It prints which bytes were read from disk
again, and why. It says whether all generated tokens read the same tensors in the same order, and if not, where they
differ. A position is the number seq of the pattern, which counts from 0. The experts that a mixture of experts chooses
are compared apart from the sequence.

A capture may hold several contexts (llama_context), for instance with a draft model. analyze takes the one that read
most in generation, and says so. --context takes another one.

A step that computes several tokens reads the same weights once for all of them. If no step generated a token, all
figures are per decode, and analyze says so. That is so for a perplexity, for embeddings, and for a benchmark of
prompts. A decode that is larger than the target's -ub goes through the model several times, and pattern.json has one of
these passes. A decode that checks the guesses of a draft model looks like a prompt. For these decodes, give --phase
prompt.

--all does what the subcommands rereads, pattern, heatmap, offsets, layers, components, speed, phases, experts,
determinism and report do.

Exit status: 0 done, whatever the pattern is; 1 failed; 2 the command line is wrong.`,
		Example: `  sudo tracer --detail op+io -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 32
  analyze --heatmap
  sudo tracer -o run2 -- llama-cli -m model.gguf --no-repack -st -p "hello" -n 32
  analyze --capture run2 -o run2-analysis --json | jq .sequence.identical`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return analyze(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	all := cmd.PersistentFlags()
	all.SortFlags = false
	all.StringVarP(&o.capture, "capture", "c", tables.DefaultDir, "the `directory` that tracer wrote")
	all.StringVarP(&o.output, "output", "o", "analysis", "write to this `directory`, which is made if it is not there")
	all.IntVar(&o.top, "top", 10, "list at most `n` tensors, and as many differences")
	all.IntVar(&o.context, "context", pattern.MostRead, "analyse context `n`, counted from 0 (default: the one that read most)")
	all.Lookup("context").DefValue = "0" // so that the help does not tell the number that stands for it
	all.StringVar(&o.phase, "phase", "", "analyse the steps of this `phase`, which is generation or prompt "+
		"(default: generation, if there is any)")
	all.BoolVar(&o.json, "json", false, "print the summary as JSON")
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.heatmap, "heatmap", false, "draw "+heatmapFile+".png")
	cli.EnumVar(cmd, &o.order, "order", "", []string{orderAccess, orderFile},
		"order of the heatmap's rows: access is as they are first read, file is as in the model's file")
	cli.EnumVar(cmd, &o.hidden, "hidden", "", []string{formatParquet, formatCSV},
		"write the table of what routers read, as parquet or csv")
	f.BoolVar(&o.export, "export", false, "write the capture's tables as Parquet, for pandas, polars and DuckDB")
	f.BoolVar(&o.perfetto, "perfetto", false, "write "+timelineFile+" for ui.perfetto.dev: a timeline of steps, "+
		"layers, ops, waiting and reads from disk")
	f.BoolVar(&o.all, "all", false, "write what all subcommands write that need nothing but the capture, and index.html")
	cli.EnumVar(cmd, &o.format, "format", "", chart.Formats, "format of the figures that --all writes, and --heatmap")
	for _, sub := range subcommands {
		cmd.AddCommand(sub(&o))
	}
	cmd.CompletionOptions.HiddenDefaultCmd = true
	return cmd
}

// analyze is the command without a subcommand.
func analyze(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	in, err := load(ctx, o, stderr)
	if err != nil {
		return err
	}
	st := &study{in: in, format: o.format, order: o.order}
	if err := st.collect(ctx); err != nil {
		return err
	}
	p := st.pattern
	summary := p.Summarize(in.capture.Meta, o.top)
	summary.Warnings = in.warnings
	if summary.Rereads, err = in.capture.Rereads(ctx, o.top); err != nil {
		return fmt.Errorf("read %s: %w", o.capture, err)
	}
	var more []file
	if o.all {
		if more, err = answerAll(ctx, st); err != nil {
			return err
		}
		page, err := st.page()
		if err != nil {
			return err
		}
		more = append(more, file{pageFile, page.Write})
	}
	timeline := file{name: timelineFile}
	if o.perfetto {
		timeline.write = func(w io.Writer) error { return st.timeline(ctx, w) }
	}
	more = append(more, timeline)
	written, err := writeOutputs(ctx, more, &analysis{
		ctx: ctx, options: o, meta: in.capture.Meta, capture: in.capture, pattern: p, summary: summary,
		hidden: in.capture.HiddenColumns(ctx), warn: in.warn,
	})
	if err != nil {
		return err
	}
	outlook := st.sums.Outlook(in.capture.Meta, st.compute())
	return printSummary(stdout, outlook, st.sums.MissingData(in.capture.Meta), summary, written, o.json)
}

// printSummary prints the verdict, what the capture lacks for a better one, the summary, and the names of
// the files.
func printSummary(
	w io.Writer, outlook *gather.Outlook, lacks []string, s *pattern.Summary, files []string, asJSON bool,
) error {
	verdict := outlook.Sentences()
	if asJSON {
		return cli.WriteJSON(w, struct {
			Verdict []string        `json:"verdict"`
			Lacks   []string        `json:"not_in_this_capture"`
			Outlook *gather.Outlook `json:"outlook"`
			*pattern.Summary
			Files []string `json:"files"`
		}{verdict, lacks, outlook, s, files})
	}
	opening := slices.Clone(verdict)
	for _, what := range lacks {
		opening = append(opening, "Not in this capture: "+what+".")
	}
	for _, line := range opening {
		if _, err := fmt.Fprintln(w, visible.Line(line)); err != nil {
			return err
		}
	}
	if len(opening) > 0 {
		fmt.Fprintln(w)
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
