package offload

// This file sums up a series: medians, ratios within turns with their confidence, the device's
// counters, a figure.

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"tensorcast/fabric/device"
	"tensorcast/internal/chart"
	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
)

// Report is the result of a series.
type Report struct {
	Model       string        `json:"model"`
	Llama       string        `json:"llama"`
	Profile     string        `json:"profile,omitempty"`
	Prompt      int           `json:"prompt"`
	Tokens      int           `json:"tokens"`
	Interrupted bool          `json:"interrupted,omitempty"` // turns are missing
	Runs        []Run         `json:"runs"`
	Results     []Result      `json:"results"`
	Device      device.Status `json:"fabric"`
}

// Result is what came out for a variant.
type Result struct {
	Variant
	TokS       float64 `json:"tok_s"` // medians
	PromptTokS float64 `json:"prompt_tok_s"`
	LoadMs     float64 `json:"load_ms"`
	Decodes    int     `json:"decodes"`     // of the first run
	Same       int     `json:"same_tokens"` // the least of all runs
	Idle       float64 `json:"idle"`        // median
	// Ratio is the ratio to the baseline within a turn: the centre, with its confidence (of
	// logarithms).
	Ratio       stats.Interval `json:"ratio"`
	PromptRatio stats.Interval `json:"prompt_ratio"`
	// BatchRatio is the ratio to the same kind of variant with the first batch and the first number
	// of streams. It is 1 for that variant itself.
	BatchRatio stats.Interval `json:"batch_ratio"`
}

// summarise fills in Results from Runs, whose turns are whole.
func (r *Report) summarise(variants []Variant) {
	if len(r.Runs) == 0 {
		return
	}
	of := func(name string, value func(*Run) float64) (all []float64) {
		for turn := 1; turn <= r.Runs[len(r.Runs)-1].Turn; turn++ {
			for i := range r.Runs {
				if r.Runs[i].Variant == name && r.Runs[i].Turn == turn {
					all = append(all, value(&r.Runs[i]))
				}
			}
		}
		return all
	}
	tokS := func(x *Run) float64 { return x.TokS }
	promptTokS := func(x *Run) float64 { return x.PromptTokS }
	for _, v := range variants {
		baseline, first := v.baseline(variants).Name, v.firstOfKind(variants).Name
		ratio := func(to string, value func(*Run) float64) stats.Interval {
			base, own := of(to, value), of(v.Name, value)
			logs := make([]float64, len(own))
			for i := range own {
				logs[i] = math.Log(own[i] / base[i])
			}
			return stats.HodgesLehmann(logs).Map(math.Exp)
		}
		same := r.Tokens
		for _, n := range of(v.Name, func(x *Run) float64 { return float64(x.Same) }) {
			same = min(same, int(n))
		}
		r.Results = append(r.Results, Result{
			Variant: v, TokS: stats.Median(of(v.Name, tokS)), PromptTokS: stats.Median(of(v.Name, promptTokS)),
			LoadMs: stats.Median(of(v.Name, func(x *Run) float64 { return x.LoadMs })), Same: same,
			Idle:    stats.Median(of(v.Name, func(x *Run) float64 { return x.Idle })),
			Decodes: int(of(v.Name, func(x *Run) float64 { return float64(x.Decodes) })[0]),
			Ratio:   ratio(baseline, tokS), PromptRatio: ratio(baseline, promptTokS), BatchRatio: ratio(first, tokS),
		})
	}
}

// WriteText writes tables.
func (r *Report) WriteText(w io.Writer) error { return r.document().WriteText(w) }

// WriteMarkdown writes the same for a document.
func (r *Report) WriteMarkdown(w io.Writer) error { return r.document().WriteMarkdown(w) }

func (r *Report) document() tabular.Document {
	other := func(x Result) bool {
		return x.Batch != r.Results[0].Batch || x.Streams != r.Results[0].Streams || x.Guess > 0
	}
	batches := slices.ContainsFunc(r.Results, other)
	guesses := slices.ContainsFunc(r.Results, func(x Result) bool { return x.Guess > 0 })
	t := &tabular.Table{Columns: append(tabular.Left("variant"),
		tabular.Right("tokens/s", "times the cpu", "prompt, tokens/s", "times the cpu", "load, s", "same tokens",
			"device idle")...)}
	if batches {
		_, first, _ := strings.Cut(r.Results[0].Name, " ")
		t.Columns = slices.Insert(t.Columns, 2, tabular.Right("times "+first)...)
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	ratio := func(i stats.Interval) string {
		return fmt.Sprintf("%s (%s to %s)", number(i.Estimate), number(i.Low), number(i.High))
	}
	if guesses {
		t.Columns = append(t.Columns, tabular.Right("tokens a decode")...)
	}
	for i := range r.Results {
		x := &r.Results[i]
		a, b, idle := "", "", ""
		if x.Device {
			a, b, idle = ratio(x.Ratio), ratio(x.PromptRatio), fmt.Sprintf("%.1f %%", 100*x.Idle)
		}
		row := []string{x.Name, number(x.TokS), a, number(x.PromptTokS), b, number(x.LoadMs / 1000),
			fmt.Sprintf("%d of %d", x.Same, r.Tokens), idle}
		if batches {
			c := ""
			if other(*x) {
				c = ratio(x.BatchRatio)
			}
			row = slices.Insert(row, 2, c)
		}
		if guesses {
			row = append(row, number(float64(r.Tokens)/float64(x.Decodes)))
		}
		t.Rows = append(t.Rows, row)
	}
	s := &r.Device
	profile := ""
	if r.Profile != "" {
		profile = " and the profile " + r.Profile
	}
	lines := tabular.Lines{
		fmt.Sprintf("The device, with %s kernels%s: %d tokens, %s of weights each; %.1f s of products, %.1f s of "+
			"llama.cpp between them; %.1f %% of operations skipped; %s of weights moved, %d evictions.",
			s.Kernels, profile, s.Tokens, humanize.IBytes(uint64(s.BytesPerToken)), s.FabricTime, s.HostTime,
			100*s.SkipRate, humanize.IBytes(s.Moved), s.Evictions),
	}
	if len(r.Results) > 0 && !r.Results[0].Ratio.Holds() {
		lines = append(lines, fmt.Sprintf("Ranges are of %.0f %% confidence only: there are few turns.",
			100*r.Results[0].Ratio.Level))
	}
	if r.Interrupted {
		lines = append(lines, "INTERRUPTED: turns are missing.")
	}
	return tabular.Document{t, lines}
}

// WriteFigure draws the generated tokens per second of each turn, in one of chart.Formats.
func (r *Report) WriteFigure(w io.Writer, format string) error {
	f := chart.Figure{Panels: []chart.Panel{{Title: "tokens per second, turn by turn"}}, From: 0, XLabel: "turn",
		YLabel: "tokens/s"}
	for i := range r.Results {
		c := chart.Curve{Name: r.Results[i].Name}
		for _, x := range r.Runs {
			if x.Variant == c.Name {
				c.Points = append(c.Points, chart.Point{X: float64(x.Turn), Y: x.TokS})
				f.To, f.High = max(f.To, float64(x.Turn)+1), max(f.High, 1.15*x.TokS)
			}
		}
		f.Panels[0].Curves = append(f.Panels[0].Curves, c)
	}
	return f.Write(w, format)
}
