package pressure

// This file draws a report: the speed against the share of the model that fits, and what is read against the tokens.

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"tensorcast/internal/chart"
	"tensorcast/internal/stats"
	"tensorcast/moe/replay"
)

// ErrNoFigure says that a report has nothing to draw: no run has finished.
var ErrNoFigure = errors.New("there is nothing to draw: no run has finished")

// boundPoints is how many points the bound has, which is not a straight line. With experts each
// point takes a replay.
const (
	boundPoints       = 200
	expertBoundPoints = 40
)

// ErrNoVariant says that a report has no variant of a name.
var ErrNoVariant = errors.New("there is no such variant")

// show keeps the curves that are shown, in their order and under their names; all if none is said.
func (r *Report) show(f *chart.Figure, shown []chart.Shown) error {
	if len(shown) == 0 {
		return nil
	}
	var indices []int
	for _, s := range shown {
		i := slices.IndexFunc(r.Variants, func(v Variant) bool { return v.Name == s.Name })
		if i < 0 {
			var names []string
			for _, v := range r.Variants {
				names = append(names, v.Name)
			}
			return fmt.Errorf("%w: %q; there are %s", ErrNoVariant, s.Name, strings.Join(names, ", "))
		}
		indices = append(indices, i)
	}
	f.High = 0
	for p := range f.Panels {
		kept := f.Panels[p].Curves[:1:1] // the bound
		for n, i := range indices {
			c := f.Panels[p].Curves[1+i]
			if c.Name = shown[n].Title(); len(c.Points) > 0 {
				kept = append(kept, c)
			}
		}
		f.Panels[p].Curves = kept
		for _, c := range kept {
			for _, point := range c.Points {
				f.High = max(f.High, 1.08*point.Y, 1.08*point.High)
			}
		}
	}
	return nil
}

// speedFigure is the figure of tok/s against what fits, with a panel for each readahead. Their
// range of x is wider than that of the points.
func (r *Report) speedFigure() *chart.Figure {
	steady := r.hasSteady()
	from, to, high := math.Inf(1), math.Inf(-1), 0.0
	type panel struct {
		readahead int
		chart.Panel
	}
	var all []panel
	for i := range r.Results {
		at := &r.Results[i]
		if !r.hasRuns(i) {
			continue
		}
		p := slices.IndexFunc(all, func(p panel) bool { return p.readahead == at.ReadaheadKiB })
		if p < 0 {
			p = len(all)
			all = append(all, panel{at.ReadaheadKiB, chart.Panel{Title: r.figureTitle(at.ReadaheadKiB),
				Curves: make([]chart.Curve, len(r.Variants))}})
		}
		x := at.X
		if at.Experts != nil {
			x = at.Experts.Share
		}
		for v := range at.Summaries {
			c := &all[p].Curves[v]
			c.Name = at.Summaries[v].Variant
			speed := at.Summaries[v].speed(steady)
			if speed.N == 0 {
				continue
			}
			c.Points = append(c.Points, chart.Point{X: x, Y: speed.Median, Low: speed.Min, High: speed.Max})
			from, to, high = min(from, x), max(to, x), max(high, speed.Max)
		}
	}
	margin := max(0.03, (to-from)*0.06)
	from, to = max(0, from-margin), to+margin
	bound := chart.Curve{Name: "bound", Bound: true}
	if from < to {
		for _, p := range r.boundCurve(from, to, steady) {
			bound.Points = append(bound.Points, p)
			high = max(high, p.Y)
		}
	}
	slices.SortFunc(all, func(a, b panel) int { return cmp.Compare(a.readahead, b.readahead) })
	f := &chart.Figure{From: from, To: to, High: high * 1.08,
		XLabel: "share of a token's weights that fits in memory", YLabel: r.speedName()}
	if r.Routes != nil {
		f.XLabel = "share of the experts that fits in memory beside the trunk"
	}
	for _, p := range all {
		for i := range p.Curves {
			slices.SortFunc(p.Curves[i].Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
		}
		p.Curves = append([]chart.Curve{bound}, p.Curves...)
		f.Panels = append(f.Panels, p.Panel)
	}
	return f
}

func (r *Report) figureTitle(readahead int) string {
	text := fmt.Sprintf("%s, readahead %d KiB", filepath.Base(r.Model.Path), readahead)
	if r.Throttle > 0 {
		text += fmt.Sprintf(", throttled to %s MiB/s", number(float64(r.Throttle)/mib))
	}
	return text
}

// boundCurve is the bound from one share to another; empty if it is not known.
func (r *Report) boundCurve(from, to float64, steady bool) (points []chart.Point) {
	if r.routed == nil {
		for n := range boundPoints + 1 {
			x := from + (to-from)*float64(n)/boundPoints
			if y := r.bound(x); y > 0 {
				points = append(points, chart.Point{X: x, Y: y})
			}
		}
		return points
	}
	t := r.routed
	if steady {
		t = replay.CountAsPrompt(t, r.Skip)
	}
	for n := range expertBoundPoints + 1 {
		x := from + (to-from)*float64(n)/expertBoundPoints
		least := replay.LeastBytes(t, r.Routes.Trunk, r.Routes.Trunk+int64(x*float64(r.Routes.totalBytes())))
		if y := r.boundOfReads(float64(sum(least)) / float64(max(len(least), 1))); y > 0 && len(least) > 0 {
			points = append(points, chart.Point{X: x, Y: y})
		}
	}
	return points
}

// WriteFigure draws tok/s against x, or against the share of the experts that fits, in one of the
// [chart.Formats]. It shows the medians of each variant, the range of its runs as upright bars, and
// the bound above them. Each readahead has a panel. The speed is that of the steady state if the
// runs have one. shown says which variants are drawn; without it all are. It fails with [ErrNoFigure] if there is
// nothing to draw, and with [ErrNoVariant].
func (r *Report) WriteFigure(w io.Writer, format string, shown ...chart.Shown) error {
	f := r.speedFigure()
	if err := r.show(f, shown); err != nil {
		return err
	}
	return writeFigure(w, f, format)
}

// WriteBytesFigure draws what the disk gave for each generated token: the median of each variant's
// runs, in a panel for each setting. Dashed is what has to be read at least. It fails as
// WriteFigure does.
func (r *Report) WriteBytesFigure(w io.Writer, format string) error {
	return writeFigure(w, r.bytesFigure(), format)
}

func writeFigure(w io.Writer, f *chart.Figure, format string) error {
	err := f.Write(w, format)
	if errors.Is(err, chart.ErrEmpty) {
		return ErrNoFigure
	}
	return err
}

// bytesFigure is the figure of what is read against the tokens.
func (r *Report) bytesFigure() *chart.Figure {
	f := &chart.Figure{XLabel: "generated token", YLabel: "read from the disk (MiB)", Columns: 2, Beside: true}
	for i := range r.Results {
		at := &r.Results[i]
		if !r.hasRuns(i) {
			continue
		}
		p := chart.Panel{Title: fmt.Sprintf("%s, %s", filepath.Base(r.Model.Path), at.name())}
		add := func(c chart.Curve) {
			for _, point := range c.Points {
				f.To, f.High = max(f.To, point.X+1), max(f.High, point.Y*1.08)
			}
			p.Curves = append(p.Curves, c)
		}
		tokens := 0
		for _, v := range r.Variants {
			c := chart.Curve{Name: v.Name}
			for n, bytes := range r.tokenBytes(i, v.Name) {
				c.Points = append(c.Points, chart.Point{X: float64(n + 1), Y: bytes / mib})
			}
			tokens = max(tokens, len(c.Points))
			add(c)
		}
		bound := chart.Curve{Name: "least", Bound: true}
		for n, bytes := range r.leastBytes(at, tokens) {
			bound.Points = append(bound.Points, chart.Point{X: float64(n + 1), Y: bytes / mib})
		}
		add(bound)
		f.Panels = append(f.Panels, p)
	}
	if f.High == 0 && f.To > 0 { // all fits
		f.High = 1
	}
	return f
}

// tokenBytes are the medians over a variant's runs of what each token read.
func (r *Report) tokenBytes(setting int, variant string) (medians []float64) {
	var runs [][]int64
	for _, run := range r.Runs {
		if run.Setting == setting && run.Variant == variant && run.Outcome == Finished && len(run.TokenBytes) > 0 {
			runs = append(runs, run.TokenBytes)
		}
	}
	if len(runs) == 0 {
		return nil
	}
	shortest := len(slices.MinFunc(runs, func(a, b []int64) int { return cmp.Compare(len(a), len(b)) }))
	for n := range shortest {
		var of []float64
		for _, bytes := range runs {
			of = append(of, float64(bytes[n]))
		}
		medians = append(medians, stats.Median(of))
	}
	return medians
}

// leastBytes is what has to be read for each of the first tokens; nil if that is not known.
func (r *Report) leastBytes(at *Result, tokens int) (least []float64) {
	switch {
	case r.routed != nil:
		for _, bytes := range replay.LeastBytes(r.routed, r.Routes.Trunk, at.Limit-r.Own) {
			least = append(least, float64(bytes))
		}
		return least[:min(len(least), tokens)]
	case !r.Model.Routed:
		for range tokens {
			least = append(least, max((1-at.X)*float64(r.Model.TokenBytes), 0))
		}
	}
	return least
}
