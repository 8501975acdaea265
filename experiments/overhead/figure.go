package overhead

// This file draws what each observer costs.

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"tensorcast/internal/chart"
	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
)

// ErrNoFigure says that a report has nothing to draw: no observer has a pair.
var ErrNoFigure = errors.New("there is nothing to draw: no observer has a pair")

// ErrNoObserver says that a report has no observer of a name.
var ErrNoObserver = errors.New("there is no such observer")

// WriteFigure draws the overhead of each observer with its interval, in one of the [chart.Formats]. shown says which
// observers are drawn, and in which order; without it all are. It fails with [ErrNoFigure] if there is nothing to draw,
// and with [ErrNoObserver].
func (r *Report) WriteFigure(w io.Writer, format string, shown ...chart.Shown) error {
	if len(shown) == 0 {
		for i := range r.Rows {
			shown = append(shown, chart.Shown{Name: r.Rows[i].Name})
		}
	}
	var plain []float64 // speeds
	f := &chart.Intervals{XLabel: "tokens per second that are lost (%), with the interval of 95 %"}
	for _, s := range shown {
		i := slices.IndexFunc(r.Rows, func(row Row) bool { return row.Name == s.Name })
		if i < 0 {
			var names []string
			for j := range r.Rows {
				names = append(names, r.Rows[j].Name)
			}
			return fmt.Errorf("%w: %q; there are %s", ErrNoObserver, s.Name, strings.Join(names, ", "))
		}
		row := &r.Rows[i]
		if row.Error != "" || len(row.Pairs) == 0 {
			continue
		}
		bar := chart.Interval{Estimate: 100 * row.Overhead.Estimate}
		if row.Overhead.Holds() {
			bar.Low, bar.High = 100*row.Overhead.Low, 100*row.Overhead.High
		}
		f.Labels = append(f.Labels, fmt.Sprintf("%s (%s)", s.Title(), countPairs(len(row.Pairs))))
		f.Rows = append(f.Rows, bar)
		for _, pair := range row.Pairs {
			plain = append(plain, pair.Plain.TokS)
		}
	}
	if len(f.Rows) == 0 {
		return ErrNoFigure
	}
	f.Title = fmt.Sprintf("%s: %s tok/s when nobody observes", r.modelName(), tabular.Number(stats.Median(plain)))
	return f.Write(w, format)
}

// modelName is the base name of the model in the target's command line, or the target's own if that names none.
func (r *Report) modelName() string {
	for i, arg := range r.Target[:max(len(r.Target)-1, 0)] {
		if arg == "-m" || arg == "--model" {
			return filepath.Base(r.Target[i+1])
		}
	}
	return filepath.Base(strings.Join(r.Target[:min(len(r.Target), 1)], ""))
}

func countPairs(n int) string {
	if n == 1 {
		return "1 pair"
	}
	return fmt.Sprintf("%d pairs", n)
}
