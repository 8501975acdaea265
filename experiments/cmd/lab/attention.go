package main

// This file implements "lab attention", which compares errors and times of ternary and dense
// attention. See package measure.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"tensorcast/fabric/lab/attention/measure"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
	"tensorcast/internal/tabular"
)

type attentionOptions struct {
	measure.Setting
	measure.Timing
	dims, positions []int
	tolerances      []string
	heads, group    int
	evict           int
	seed            uint64
	model, text     string
	windows         int
	json, markdown  bool
	quiet           bool
}

func attentionCommand() *cobra.Command {
	var o attentionOptions
	cmd := &cobra.Command{
		Use:   "attention [flags]",
		Short: "Compare ternary attention with dense attention: errors and times",
		Long: `Attention compares ternary attention with dense attention. It computes attention of one new position over a
cache of keys and values twice. Dense attention takes all positions. Ternary attention selects positions by
estimates from ternary digits, which are -1, 0 or 1 (package attention). A row of the table is a workload, its
shape and a tolerance:

  fallback    share of query heads that used all positions, because the estimated error exceeded the tolerance
  exact       share of positions whose exact score was used
  missed      share of the softmax's mass at the other positions: as estimated before any fallback, as measured,
              and the largest of any query head
  recall      share of the 64 positions with the largest scores that were evaluated exactly
  error       |result - dense| / |dense|: as estimated before any fallback, which is compared with the tolerance,
              as measured, and the largest
  dense, ternary   microseconds of a step, as medians. A step is all query heads of one new position, in one thread
  speedup     dense / ternary, which alternate: median and quartiles over runs of pause + 1 steps

The workloads flat, peaks and outliers are random numbers. With --model there is another one: the keys, values
and queries that a trained model computes over --text. It has each head of each layer, in each of --windows
windows. The model must have a byte-level vocabulary. By default there are half a block of 64 positions more
than 2048 and 4096, because on average the unfinished block is half full. Times need a quiet machine.

Exit codes: 0 measured, whatever came out; 1 not measured; 2 wrong usage.`,
		Example: `  lab attention --markdown
  lab attention --evict 256 --group 1 --pairs 100
  lab attention --model tiny.gguf --text prose.txt --positions 256 --windows 8 --top 32`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return cli.Usage(err)
			}
			r, err := o.measure(cmd.Context(), cmd.ErrOrStderr())
			if r == nil {
				return err
			}
			return errors.Join(err, o.print(r, cmd.OutOrStdout()))
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&o.dims, "dim", []int{64, 128}, "elements of a head, several with commas. With --model, the model's own")
	f.IntSliceVar(&o.positions, "positions", []int{2080, 4128}, "positions in the cache, several with commas")
	f.StringSliceVar(&o.tolerances, "tolerance", []string{"0.05", "none"},
		"estimated errors beyond which a query head uses all positions, several with commas. none is never")
	f.Float64Var(&o.MaxApproximated, "leave", 0,
		"take no more positions when this `share` of the softmax's mass is left to mean values (default: 0)")
	f.IntVar(&o.Pause, "pause", 15,
		"after a fallback, a query head uses all positions for `N` steps without estimating")
	f.IntVar(&o.heads, "heads", 8, "number of heads of keys and values")
	f.IntVar(&o.group, "group", 4, "number of query heads for each head of keys and values")
	f.IntVar(&o.KeyDigits, "key-digits", 2, "ternary digits of a key's element, 1 or 2")
	f.IntVar(&o.QueryDigits, "query-digits", 2, "ternary digits of a query's element, 1 to 3")
	f.IntVar(&o.Top, "top", 0,
		"a query head evaluates at most `N` positions exactly because of their estimates (default: a 16th of all)")
	f.IntVar(&o.Sinks, "sinks", 4, "always evaluate the first `N` positions exactly")
	f.IntVar(&o.Audit, "audit", 32, "evaluate `N` positions exactly to check the estimates")
	f.IntVar(&o.Pairs, "pairs", 64, "time `N` pairs of steps, rounded up to whole runs")
	f.IntVar(&o.evict, "evict", 0, "read so many `MiB` of other memory before each step (default: 0)")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the random numbers")
	f.StringVarP(&o.model, "model", "m", "", "a trained model, a GGUF `file`, instead of random numbers")
	f.StringVar(&o.text, "text", "", "the `file` with the text that the model reads")
	f.IntVar(&o.windows, "windows", 2, "number of windows of the text. Each is as long as there are positions")
	f.BoolVar(&o.json, "json", false, "print all rows as JSON instead of the table")
	f.BoolVar(&o.markdown, "markdown", false, "print the table as Markdown")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
	cmd.MarkFlagsMutuallyExclusive("json", "markdown")
	cmd.MarkFlagsRequiredTogether("model", "text")

	return cmd
}

func (o *attentionOptions) check() error {
	for _, n := range []struct {
		flag     string
		values   []int
		min, max int
	}{
		{"dim", o.dims, 1, 1024}, {"positions", o.positions, 1, 1 << 20}, {"heads", []int{o.heads}, 1, 1024},
		{"group", []int{o.group}, 1, 1024},
		{"key-digits", []int{o.KeyDigits}, 1, 2}, {"query-digits", []int{o.QueryDigits}, 1, 3},
		{"top", []int{o.Top}, 0, 1 << 20},
		{"sinks", []int{o.Sinks}, 0, 1 << 20}, {"audit", []int{o.Audit}, 0, 1 << 20},
		{"pause", []int{o.Pause}, 0, 1 << 20}, {"pairs", []int{o.Pairs}, 1, 1 << 20},
		{"evict", []int{o.evict}, 0, 1 << 14}, {"windows", []int{o.windows}, 1, 1 << 10},
	} {
		if len(n.values) == 0 {
			return fmt.Errorf("--%s: want a number", n.flag)
		}
		for _, v := range n.values {
			if v < n.min || v > n.max {
				return fmt.Errorf("--%s %d: want %d to %d", n.flag, v, n.min, n.max)
			}
		}
	}
	for _, text := range o.tolerances {
		if _, err := parseTolerance(text); err != nil {
			return err
		}
	}
	if !(o.MaxApproximated >= 0 && o.MaxApproximated <= 1) {
		return fmt.Errorf("--leave %v: want 0 to 1", o.MaxApproximated)
	}
	o.Evict = o.evict << 20
	return nil
}

// parseTolerance parses one value of --tolerance.
func parseTolerance(text string) (measure.Tolerance, error) {
	if text == "none" {
		return measure.Tolerance(math.Inf(1)), nil
	}
	t, err := strconv.ParseFloat(text, 64)
	if err != nil || !(t >= 0) || math.IsInf(t, 1) {
		return 0, fmt.Errorf("--tolerance %q: want none or a number of 0 or more", text)
	}
	return measure.Tolerance(t), nil
}

// attentionReport is the result of a series.
type attentionReport struct {
	Interrupted bool          `json:"interrupted,omitempty"` // some rows are missing
	Rows        []measure.Row `json:"rows"`
}

// measure computes the rows. If it fails or ctx ends, it returns the rows computed so far (nil if
// there are none) with the error.
func (o *attentionOptions) measure(ctx context.Context, stderr io.Writer) (*attentionReport, error) {
	var sources []func(positions int) (*measure.Workload, error)
	if o.model != "" {
		text, err := os.ReadFile(o.text)
		if err != nil {
			return nil, err
		}
		sources = append(sources, func(positions int) (*measure.Workload, error) {
			w, nats, err := measure.Model(o.model, text, positions, o.windows)
			if err == nil {
				w.Name = fmt.Sprintf("model, %.2f nats/byte", nats)
			}
			return w, err
		})
	} else {
		for _, kind := range measure.Kinds {
			for _, dim := range o.dims {
				sources = append(sources, func(positions int) (*measure.Workload, error) {
					return measure.Synthetic(kind, dim, positions, o.heads, o.group, o.seed)
				})
			}
		}
	}
	bar := progress.New(stderr, progress.Options{Quiet: o.quiet, What: "comparing", Predict: true})
	defer bar.Close()
	total := int64(len(sources) * len(o.positions) * len(o.tolerances))
	var r attentionReport
	err := func() error {
		for _, source := range sources {
			for _, positions := range o.positions {
				if err := ctx.Err(); err != nil {
					return err
				}
				w, err := source(positions)
				if err != nil {
					return err
				}
				for _, text := range o.tolerances {
					s := o.Setting
					if s.Tolerance, err = parseTolerance(text); err != nil {
						return err
					}
					if s.Top == 0 {
						s.Top = max(1, positions/16)
					}
					row, err := measure.Compare(ctx, w, s, o.Timing)
					if err != nil {
						return err
					}
					r.Rows = append(r.Rows, row)
					bar.Update(int64(len(r.Rows)), total, "")
				}
			}
		}
		return nil
	}()
	if r.Interrupted = err != nil; len(r.Rows) == 0 {
		return nil, err
	}
	return &r, err
}

var attentionColumns = []string{"workload", "heads", "dim", "positions", "tolerance", "fallback %", "exact %",
	"est. missed %", "missed %", "max", "recall %",
	"est. error %", "error %", "max", "dense us", "ternary us", "speedup", "quartiles"}

func (o *attentionOptions) print(r *attentionReport, stdout io.Writer) error {
	if o.json {
		return cli.WriteJSON(stdout, r)
	}
	t := tabular.Table{Columns: tabular.Right(attentionColumns...)}
	for _, r := range r.Rows {
		percent := func(x float64) string { return fmt.Sprintf("%.3g", 100*x) }
		t.Rows = append(t.Rows, []string{
			r.Workload, fmt.Sprintf("%d x %d", r.Heads, r.Group), fmt.Sprint(r.Dim), fmt.Sprint(r.Positions),
			r.Tolerance.String(),
			percent(r.Fallbacks), percent(r.Exact), percent(r.EstimatedMissed), percent(r.Missed),
			percent(r.MaxMissed), percent(r.Recall),
			percent(r.EstimatedError), percent(r.Error), percent(r.MaxError),
			fmt.Sprintf("%.0f", r.DenseMicros), fmt.Sprintf("%.0f", r.TernaryMicros), fmt.Sprintf("%.2f", r.Speedup),
			fmt.Sprintf("%.2f to %.2f", r.Quartiles[0], r.Quartiles[1]),
		})
	}
	d := tabular.Document{&t}
	if r.Interrupted {
		d = append(d, tabular.Lines{"INTERRUPTED: rows that were to follow are missing."})
	}
	if o.markdown {
		return d.WriteMarkdown(stdout)
	}
	return d.WriteText(stdout)
}
