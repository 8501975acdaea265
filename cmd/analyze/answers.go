package main

// This file has the analyses that read the tables once: a subcommand for each, and all of them with --all.

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/internal/tabular"
	"tensorcast/internal/visible"
	"tensorcast/moe"
	"tensorcast/pattern"
	"tensorcast/prefetch/plan"
	"tensorcast/report/gather"
	"tensorcast/trace/tables"
)

// study is what analyses are made of: a capture whose tables were read.
type study struct {
	in      *loaded
	pattern *pattern.Pattern
	sums    *gather.Collector
	format  string // of figures
	grid    string // the heatmap's, one of gather.GridNames; "": that which shows what differs
	order   string // of the heatmap's rows
	fold    string // what merged columns of the heatmap show
}

// answer is what an analysis found.
type answer struct {
	files []file
	text  tabular.Document
	data  any // for --json
}

// kind is an analysis.
type kind struct {
	name, short, long string
	flags             func(*cobra.Command, *study)
	make              func(context.Context, *study) (*answer, error)
}

// kinds are the analyses. A new one is a line here.
var kinds = []kind{
	{name: "rereads", short: "Say which tensors are read from disk again, and why", long: `analyze rereads has a row for each tensor: reads, bytes, bytes from disk, those of them that had been read from disk before,
why (a fault of the target, its readahead, a read, another process), and how long ops waited. It writes rereads.csv, .parquet and
a figure of those that are read again most. tracer --detail op+io records what came from disk.`,
		make: sheetOf("rereads", (*gather.Collector).Rereads, map[string]figureOf{"rereads": barsOf((*gather.Collector).RereadsFigure, "what is read from disk again")})},
	{name: "pattern", short: "State the sequence of reads of a token", long: `analyze pattern writes the sequence of reads in each phase (pattern.parquet, pattern.csv), that of a token for programs
(pattern.json, access_pattern.h), and a figure of where in the file a token reads, over its time.`, make: patternAnswer},
	{name: "heatmap", short: "Draw what each token does with each tensor", long: `analyze heatmap draws tensors against steps. Rows are as high as their tensors are large, and a third of the average at least.
Without --value it shows what differs between tokens: bytes from disk where memory is short, else the time for each byte. It
writes heatmap.png, and heatmap.csv and .parquet with at most 256 columns for each phase.`, flags: heatmapFlags, make: heatmapAnswer},
	{name: "offsets", short: "Say where in the file reads are, and how far apart", long: `analyze offsets draws where in the file is read over time, and says how far each read begins behind the end of the one before:
less than 128 kB (sequential), less than 1 MB, or more, ahead or back. It writes offsets.csv, .parquet, and the figures offsets and gaps.`,
		make: sheetOf("offsets", (*gather.Collector).Gaps, map[string]figureOf{
			"gaps": barsOf((*gather.Collector).GapsFigure, "from the end of a read to the next"),
			"offsets": func(s *study) drawing {
				f := s.sums.OffsetsFigure(s.title("where is read"))
				f.Caption = s.caption()
				return f
			},
		})},
	{name: "layers", short: "Sum up reads per layer", long: `analyze layers has a row for each layer: reads, bytes, time of ops, bytes from disk, waiting. It writes layers.csv, .parquet and
a figure.`, make: sheetOf("layers", (*gather.Collector).Layers, map[string]figureOf{"layers": barsOf((*gather.Collector).LayersFigure, "layers")})},
	{name: "components", short: "Sum up reads per component", long: `analyze components has a row for each component, such as attn_q.weight of all layers: reads, bytes, time of ops, bytes from disk,
waiting. It writes components.csv, .parquet and a figure.`,
		make: sheetOf("components", (*gather.Collector).Components, map[string]figureOf{"components": barsOf((*gather.Collector).ComponentsFigure, "components")})},
	{name: "phases", short: "Sum up warm-up, prompt and generation apart", long: `analyze phases has a row for each phase: steps, tokens, time, bytes, bytes from disk, waiting. It writes phases.csv, .parquet and a
figure.`, make: sheetOf("phases", (*gather.Collector).Phases, map[string]figureOf{"phases": barsOf((*gather.Collector).PhasesFigure, "phases")})},
	{name: "experts", short: "Say how a mixture-of-experts model uses its experts", long: expertsLong, make: expertsAnswer},
}

// answerCommands are the analyses' subcommands.
func answerCommands() (all []func(*options) *cobra.Command) {
	for _, k := range kinds {
		all = append(all, func(o *options) *cobra.Command {
			s := &study{format: chart.Formats[0], order: orderAccess, fold: foldMean}
			cmd := &cobra.Command{
				Use: k.name + " [flags]", Short: k.short, Args: noArguments,
				Long:    k.long + "\n\nExit status: 0 done; 1 failed; 2 the command line is wrong.",
				Example: fmt.Sprintf("  analyze %[1]s --capture run -o run-analysis\n  analyze %[1]s --format svg --json | jq .", k.name),
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
			cli.EnumVar(cmd, &s.format, "format", "", chart.Formats, "of figures")
			return cmd
		})
	}
	return all
}

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
	return append(a.text, wrote(written)).WriteText(stdout)
}

// collect reads the tables. A capture of one context with one model is read once; of others it is known only at the end of the access table which context is meant.
func (s *study) collect(ctx context.Context) error {
	steps, err := s.in.steps()
	if err != nil {
		return s.in.reading(err)
	}
	sums := func(of, model int32) *gather.Collector {
		c := gather.New(s.in.capture.Structure, of, model, steps)
		c.CPUs = s.in.capture.Meta.Host.CPUs
		return c
	}
	if of, model, one := s.in.single(steps); one {
		s.sums = sums(of, model)
		if s.pattern, err = s.in.pattern(ctx, s.sums.Access); err != nil {
			return err
		}
	} else {
		if s.pattern, err = s.in.pattern(ctx); err != nil {
			return err
		}
		s.sums = sums(s.pattern.Context, s.pattern.Model)
		rows, done := s.in.accesses(ctx, s.sums.Access)
		defer done()
		for _, err := range rows {
			if err != nil {
				return s.in.reading(err)
			}
		}
	}
	if cycle := s.in.cycle(s.pattern); cycle != nil {
		s.sums.Helped = func(memory int64, compute time.Duration, disk float64) time.Duration {
			return plan.Foresee(cycle, plan.Auto{}, memory, compute, disk).Token
		}
	}
	return s.in.pageIns(ctx, s.sums)
}

// cycle is what every token reads, for prefetchd's plans; nil if the capture does not tell.
func (in *loaded) cycle(p *pattern.Pattern) *pattern.Cycle {
	cycle, err := p.Cycle(in.capture.Meta)
	if err != nil || !slices.ContainsFunc(cycle.Reads, func(r pattern.CycleRead) bool { return !r.Gathers() && r.Length > 0 && r.File >= 0 }) {
		return nil
	}
	return cycle
}

// single says whether all steps are of one context, and all tensors of one model, and there is nothing to choose.
func (in *loaded) single(steps []tables.StepRow) (context, model int32, ok bool) {
	if len(steps) == 0 || len(in.capture.Structure) == 0 || in.options.context >= 0 && int32(in.options.context) != steps[0].Context {
		return 0, 0, false
	}
	context, model = steps[0].Context, in.capture.Structure[0].Model
	for i := range steps {
		if steps[i].Context != context {
			return 0, 0, false
		}
	}
	for i := range in.capture.Structure {
		if in.capture.Structure[i].Model != model {
			return 0, 0, false
		}
	}
	return context, model, true
}

// title is a figure's.
func (s *study) title(what string) string {
	return visible.Line(pattern.ModelName(s.in.capture.Meta, s.pattern.Model)) + ": " + what
}

// caption says where, with how much memory, how and when the capture was made.
func (s *study) caption() string { return captionOf(s.in.capture.Meta) }

// captioned puts the study's caption below a figure.
func (s *study) captioned(f *chart.Figure) *chart.Figure {
	f.Caption = s.caption()
	return f
}

// limitText is the limit of a target's memory.
func limitText(m *tables.Memory) string { return "limit " + humanize.IBytes(uint64(m.LimitBytes)) }

// captionOf is the line below a capture's figures.
func captionOf(meta *tables.Meta) string {
	var parts []string
	add := func(text string, known bool) {
		if known {
			parts = append(parts, text)
		}
	}
	h := meta.Host
	add(fmt.Sprintf("%d CPUs", h.CPUs), h.CPUs > 0)
	add(humanize.IBytes(uint64(max(h.MemoryBytes, 0))), h.MemoryBytes > 0)
	if m := meta.Memory; m != nil && m.LimitBytes > 0 {
		add(limitText(m), true)
	}
	add("Linux "+h.Kernel, h.Kernel != "")
	add("tracer --detail "+meta.Detail, meta.Detail != "")
	add(meta.Started.UTC().Format("2006-01-02"), !meta.Started.IsZero())
	if command := slices.Clone(meta.Command); len(command) > 0 {
		command[0] = filepath.Base(command[0])
		add(strings.Join(command, " "), true)
	}
	return visible.Line(strings.Join(parts, "; "))
}

type figureOf func(*study) drawing

func barsOf(of func(c *gather.Collector, title string) *chart.Bars, what string) figureOf {
	return func(s *study) drawing {
		b := of(s.sums, s.title(what))
		b.Caption = s.caption()
		if len(b.Labels) == 0 || len(b.Labels) > chart.MaxBars {
			return nil
		}
		return b
	}
}

// sheetOf makes an analysis of one table.
func sheetOf(name string, of func(*gather.Collector) *gather.Sheet, figures map[string]figureOf) func(context.Context, *study) (*answer, error) {
	return func(_ context.Context, s *study) (*answer, error) {
		sheet := of(s.sums)
		a := &answer{files: tableFiles(name, sheet.Columns(), s.model()), data: rowsOf(sheet.Columns())}
		for _, figure := range slices.Sorted(maps.Keys(figures)) {
			a.files = append(a.files, figureFiles(figure, figures[figure](s), s.format)...)
		}
		a.text = tabular.Document{sheet.Text(s.rows(sheet.Rows()))}
		if more := sheet.Rows() - s.rows(sheet.Rows()); more > 0 {
			a.text = append(a.text, tabular.Lines{fmt.Sprintf("%d more rows are in %s.csv; --top shows more", more, name)})
		}
		return a, nil
	}
}

// rows is how many of a table's are printed: all of a short one.
func (s *study) rows(of int) int {
	const short = 32
	if of <= short {
		return of
	}
	return min(of, s.in.options.top)
}

// model is the field that says of which model a table is.
func (s *study) model() tables.Field {
	return tables.Field{Key: "tensorcast.model", Value: fingerprint(s.in.capture.Meta, s.pattern.Model)}
}

// patternAnswer makes the pattern's files.
func patternAnswer(ctx context.Context, s *study) (*answer, error) {
	a := &answer{}
	all := &analysis{ctx: ctx, options: s.in.options, meta: s.in.capture.Meta, pattern: s.pattern, capture: s.in.capture, warn: s.in.warn}
	for _, o := range outputs {
		if !slices.Contains([]string{parquetFile, csvFile, cycleFile, headerFile}, o.name) {
			continue
		}
		write, err := o.of(all)
		if err != nil {
			s.in.warn("left out: %s: %v", o.name, err)
		}
		a.files = append(a.files, file{o.name, write})
	}
	d, count := s.patternFigure()
	a.files = append(a.files, figureFiles("pattern", d, s.format)...)
	lines := tabular.Lines{}
	data := map[string]int{}
	for i, name := range tables.PhaseNames() {
		if n := count[tables.Phase(i)]; n > 0 {
			lines = append(lines, fmt.Sprintf("%s: a step reads %d times", name, n))
			data[name] = n
		}
	}
	a.text, a.data = tabular.Document{lines}, map[string]any{"reads_per_step": data}
	return a, nil
}

// patternFigure has a dot for each read of each phase's sequence, which it counts. It is nil if there is nothing to draw.
func (s *study) patternFigure() (drawing, map[tables.Phase]int) {
	f := &chart.Figure{To: 1, XLabel: "time of a step", YLabel: "offset in the file (MiB)", Beside: true, Caption: s.caption(), Panels: []chart.Panel{{Title: s.title("where a step reads")}}}
	const mib = 1 << 20
	count := map[tables.Phase]int{}
	curves := make([]chart.Curve, len(tables.PhaseNames()))
	for i, name := range tables.PhaseNames() {
		curves[i] = chart.Curve{Name: name, Dots: true}
	}
	for _, r := range s.pattern.Rows() {
		count[r.Phase]++
		y := float64(r.Tensor.Offset) / mib
		curves[r.Phase].Points = append(curves[r.Phase].Points, chart.Point{X: r.RelativeTime, Y: y})
		f.High = max(f.High, 1.02*y)
	}
	f.Panels[0].Curves = curves
	if f.High == 0 {
		return nil, count
	}
	return f, count
}

// answerAll makes the files of all analyses, and what each says.
func answerAll(ctx context.Context, s *study) (files []file, err error) {
	for _, k := range kinds {
		if k.name == "pattern" || k.name == "experts" && s.experts() == nil {
			continue // the pattern's files are written anyhow, with the figure below
		}
		a, err := k.make(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.in.options.capture, err)
		}
		files = append(files, a.files...)
	}
	d, _ := s.patternFigure()
	files = append(files, figureFiles("pattern", d, s.format)...)
	_, more, err := s.in.determinism(ctx, s.pattern, s.format)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.in.options.capture, err)
	}
	return append(files, more...), nil
}

// experts is an empty trace of the model's experts; nil if it has none.
func (s *study) experts() *moe.Trace {
	return moe.OfStructure(pattern.ModelName(s.in.capture.Meta, s.pattern.Model), s.in.capture.Structure, s.pattern.Model)
}

// rowsOf are a table's rows for JSON: what is null or not a number is null.
func rowsOf(columns []tables.Column) []map[string]any {
	var rows []map[string]any
	set := func(name string, n int, value func(i int) any) {
		for len(rows) < n {
			rows = append(rows, map[string]any{})
		}
		for i := range n {
			rows[i][name] = value(i)
		}
	}
	for _, c := range columns {
		switch v := c.Values.(type) {
		case []string:
			set(c.Name, len(v), func(i int) any { return v[i] })
		case []int64:
			set(c.Name, len(v), func(i int) any { return v[i] })
		case []*int64:
			set(c.Name, len(v), func(i int) any { return v[i] })
		case []float64:
			set(c.Name, len(v), func(i int) any {
				if math.IsNaN(v[i]) {
					return nil
				}
				return v[i]
			})
		}
	}
	return rows
}
