package main

// This file has the analyses that read the tables once: a subcommand for each, and all of them with --all.

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/internal/tabular"
	"tensorcast/report/gather"
	"tensorcast/trace/tables"
)

// answer is what an analysis found.
type answer struct {
	files []file
	text  tabular.Document
	data  any // for --json
}

// kind is a kind of analysis.
type kind struct {
	name, short, long string
	flags             func(*cobra.Command, *study) // adds flags besides --format; may be nil
	make              func(context.Context, *study) (*answer, error)
}

// kinds are the analyses. A new one is a line here.
var kinds = []kind{
	{
		name: "rereads", short: "Say which tensors are read from disk again, and why",
		long: `analyze rereads says which tensors are read from disk again, and why. It writes rereads.csv and .parquet, with a row for
each tensor. A row has the tensor's reads and their bytes, the bytes that came from disk, and those of them that had
come before. It says what caused that: a page fault of the target, the readahead around it, a read, or another process.
It also says how long ops waited. A figure shows the tensors that are read again most, if there are any. The capture
must have what came from disk (tracer --detail op+io).`,
		make: sheetOf("rereads", (*gather.Collector).Rereads, map[string]figureOf{
			"rereads": barsOf((*gather.Collector).RereadsFigure, "what is read from disk again"),
		}),
	},
	{
		name: "pattern", short: "Write in which order a token reads weights",
		long: `analyze pattern writes in which order weights are read. pattern.parquet and pattern.csv have the order in each phase.
pattern.json and access_pattern.h have that of one token, for programs. A figure shows where in the file a token reads,
over its time.`,
		make: patternAnswer,
	},
	{
		name: "heatmap", short: "Draw what each token does with each tensor",
		long: `analyze heatmap draws what each token does with each tensor. A row is a tensor, and the larger the tensor is, the higher
is its row. No row is lower than a third of the average. A column is a step. Without --value the figure shows what
differs between tokens. Where memory is short that is the bytes from disk, and elsewhere the time for each byte. It
writes heatmap.png, and heatmap.csv and .parquet with at most 256 columns for each phase.`,
		flags: heatmapFlags, make: heatmapAnswer,
	},
	{
		name: "offsets", short: "Say where in the file reads are, and how far apart",
		long: `analyze offsets draws where in the file reads are, over time. It also says how far the beginning of each read is from
the end of the read before, ahead or back. A distance of less than 128 KiB counts as sequential. The other classes are
less than 1 MiB, and more. It writes offsets.csv, .parquet, and the figures offsets and gaps.`,
		make: sheetOf("offsets", (*gather.Collector).Gaps, map[string]figureOf{
			"gaps": barsOf((*gather.Collector).GapsFigure, "from the end of a read to the next"),
			"offsets": func(s *study) drawing {
				f := s.sums.OffsetsFigure(s.title("where is read"))
				if f == nil {
					return nil
				}
				f.Caption += "\n" + s.caption()
				return f
			},
		}),
	},
	{
		name: "layers", short: "Sum up reads per layer",
		long: `analyze layers sums up the reads of each layer. It writes layers.csv, .parquet and a figure. A row has the layer's reads
and their bytes, the time of its ops, the bytes that came from disk, and how long ops waited for the disk.`,
		make: sheetOf("layers", (*gather.Collector).Layers, map[string]figureOf{
			"layers": barsOf((*gather.Collector).LayersFigure, "layers"),
		}),
	},
	{
		name: "components", short: "Sum up reads per component",
		long: `analyze components sums up the reads of each component, such as attn_q.weight of all layers. It writes components.csv,
.parquet and a figure. A row has the component's reads and their bytes, the time of its ops, the bytes that came from
disk, and how long ops waited for the disk.`,
		make: sheetOf("components", (*gather.Collector).Components, map[string]figureOf{
			"components": barsOf((*gather.Collector).ComponentsFigure, "components"),
		}),
	},
	{
		name: "speed", short: "Draw tokens per second over time, and what held each up",
		long: `analyze speed says how fast steps were, and what held each up. It writes speed.csv, .parquet and a figure, in which the
faster a step is, the higher is its bar. A row has a step's phase and its tokens, when it began, and how long it took.
It says for which parts of that time the step computed, waited for the disk, or did neither. The time to compute is what
a step would take that waits for nothing. It is known only for steps that compute as many tokens as most steps do. The
capture must have how long ops waited (tracer --detail op+io).`,
		make: func(ctx context.Context, s *study) (*answer, error) {
			sheet := func(c *gather.Collector) *gather.Sheet { return c.SpeedSheet(s.compute().Expected) }
			return sheetOf("speed", sheet, map[string]figureOf{"speed": speedFigure})(ctx, s)
		},
	},
	{
		name: "phases", short: "Sum up warm-up, prompt and generation apart",
		long: `analyze phases sums up warm-up, prompt and generation apart. It writes phases.csv, .parquet and a figure. A row has the
phase's steps and tokens and their time, the bytes that were read, those that came from disk, and how long ops waited
for the disk. A phase called load has what was read from disk before the first step, or between steps.`,
		make: sheetOf("phases", (*gather.Collector).Phases, map[string]figureOf{
			"phases": barsOf((*gather.Collector).PhasesFigure, "phases"),
		}),
	},
	{
		name: "experts", short: "Say how a mixture-of-experts model uses its experts", long: expertsLong,
		make: expertsAnswer,
	},
}

// answerCommands are the subcommands of the analyses.
func answerCommands() (all []func(*options) *cobra.Command) {
	for _, k := range kinds {
		all = append(all, func(o *options) *cobra.Command {
			s := &study{format: chart.Formats[0], order: orderAccess, fold: foldMean}
			cmd := &cobra.Command{
				Use: k.name + " [flags]", Short: k.short, Args: noArguments,
				Long: k.long + "\n\nExit status: 0 done; 1 failed; 2 the command line is wrong.",
				Example: fmt.Sprintf("  sudo tracer -o run --detail op+io -- llama-cli -m model.gguf --no-repack -st "+
					"-p \"hi\" -n 32\n  analyze %[1]s --capture run -o run-analysis\n"+
					"  analyze %[1]s --capture run --format svg --json | jq .", k.name),
				RunE: func(cmd *cobra.Command, _ []string) error {
					if err := o.check(cmd); err != nil {
						return err
					}
					return answerOne(cmd.Context(), k, s, o, cmd.OutOrStdout(), cmd.ErrOrStderr())
				},
			}
			if k.flags != nil {
				k.flags(cmd, s)
			}
			cli.EnumVar(cmd, &s.format, "format", "", chart.Formats, "format of figures")
			return cmd
		})
	}
	return all
}

// answerOne makes one analysis, writes its files and prints what it found.
func answerOne(ctx context.Context, k kind, s *study, o *options, stdout, stderr io.Writer) error {
	var err error
	if s.in, err = load(ctx, o, stderr); err != nil {
		return err
	}
	if err := s.collect(ctx); err != nil {
		return err
	}
	a, err := k.make(ctx, s)
	if err != nil {
		return fmt.Errorf("%s: %w", o.capture, err)
	}
	written, err := writeAll(ctx, o.output, a.files)
	if err != nil {
		return err
	}
	if o.json {
		return cli.WriteJSON(stdout, struct {
			Analysis string   `json:"analysis"`
			Data     any      `json:"data"`
			Warnings []string `json:"warnings"`
			Files    []string `json:"files"`
		}{k.name, a.data, s.in.warnings, written})
	}
	return append(a.text, writtenLines(written)).WriteText(stdout)
}

// answerAll makes the files of all analyses.
func answerAll(ctx context.Context, s *study) (files []file, err error) {
	for _, k := range kinds {
		if k.name == "pattern" || k.name == "experts" && s.experts() == nil {
			continue // the pattern's tables are written anyhow, and its figure is made below
		}
		a, err := k.make(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.in.options.capture, err)
		}
		files = append(files, a.files...)
	}
	f, _ := gather.PatternFigure(s.pattern, s.title("where a step reads"), s.caption())
	files = append(files, figureFiles("pattern", drawingOf(f), s.format)...)
	_, more, err := s.in.determinism(ctx, s.pattern, s.format)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.in.options.capture, err)
	}
	return append(files, more...), nil
}

// figureOf draws a figure of a study; nil if there is nothing to draw.
type figureOf func(*study) drawing

// barsOf draws one of the collector's figures of bars, unless it has none, or too many.
func barsOf(figure func(c *gather.Collector, title string) *chart.Bars, what string) figureOf {
	return func(s *study) drawing {
		b := figure(s.sums, s.title(what))
		b.Caption = s.caption()
		if len(b.Labels) == 0 || len(b.Panels) == 0 || len(b.Labels) > chart.MaxBars {
			return nil
		}
		return b
	}
}

// speedFigure draws how fast steps were, unless no step's time is known.
func speedFigure(s *study) drawing {
	f := s.sums.SpeedFigure(s.title("tokens per second, and what held them up"), s.compute().Expected)
	if f == nil {
		return nil
	}
	f.Caption += "\n" + s.caption()
	return f
}

// sheetOf makes an analysis that is one table, with figures by name.
func sheetOf(
	name string, makeSheet func(*gather.Collector) *gather.Sheet, figures map[string]figureOf,
) func(context.Context, *study) (*answer, error) {
	return func(_ context.Context, s *study) (*answer, error) {
		sheet := makeSheet(s.sums)
		a := &answer{files: tableFiles(name, sheet.Columns(), s.modelField()), data: gather.Records(sheet.Columns())}
		for _, figure := range slices.Sorted(maps.Keys(figures)) {
			a.files = append(a.files, figureFiles(figure, figures[figure](s), s.format)...)
		}
		shown := s.shownRows(sheet.Rows())
		a.text = tabular.Document{sheet.Text(shown)}
		if more := sheet.Rows() - shown; more > 0 {
			a.text = append(a.text,
				tabular.Lines{fmt.Sprintf("%d more rows are in %s.csv; --top shows more", more, name)})
		}
		return a, nil
	}
}

// shownRows is how many of a table's rows are printed: all of a short table, else as --top says.
func (s *study) shownRows(rows int) int {
	const short = 32
	if rows <= short {
		return rows
	}
	return min(rows, s.in.options.top)
}

// patternAnswer makes the pattern's files.
func patternAnswer(ctx context.Context, s *study) (*answer, error) {
	a := &answer{}
	all := &analysis{
		ctx: ctx, options: s.in.options, meta: s.in.capture.Meta, pattern: s.pattern, capture: s.in.capture,
		warn: s.in.warn,
	}
	for _, o := range outputs {
		if !slices.Contains([]string{parquetFile, csvFile, cycleFile, headerFile}, o.name) {
			continue
		}
		write, err := o.prepare(all)
		if err != nil {
			s.in.warn("left out: %s: %v", o.name, err)
		}
		a.files = append(a.files, file{o.name, write})
	}
	f, reads := gather.PatternFigure(s.pattern, s.title("where a step reads"), s.caption())
	a.files = append(a.files, figureFiles("pattern", drawingOf(f), s.format)...)
	lines := tabular.Lines{}
	data := map[string]int{}
	for i, name := range tables.PhaseNames() {
		if n := reads[tables.Phase(i)]; n > 0 {
			lines = append(lines, fmt.Sprintf("%s: a step reads %d times", name, n))
			data[name] = n
		}
	}
	a.text, a.data = tabular.Document{lines}, map[string]any{"reads_per_step": data}
	return a, nil
}
