package gather

// This file draws what package pattern finds: a step's sequence of reads, steps that depart from it, and two captures
// beside each other.

import (
	"fmt"

	"tensorcast/internal/chart"
	"tensorcast/internal/visible"
	"tensorcast/pattern"
	"tensorcast/trace/tables"
)

// maxCurvePoints bounds a curve over tokens. Beyond it, a point stands for several tokens.
const maxCurvePoints = 2000

// PatternFigure has a dot for each read of each phase's sequence, and reads is how many these are. Phases that read the
// same in the same order would lie upon each other, so each has a panel. It is nil if there is nothing to draw.
func PatternFigure(p *pattern.Pattern, title, caption string) (f *chart.Figure, reads map[tables.Phase]int) {
	f = &chart.Figure{
		To: 1, XLabel: "time, as a share of the step's", YLabel: "offset in the file (MiB)", Caption: caption,
	}
	reads = map[tables.Phase]int{}
	points := make([][]chart.Point, len(tables.PhaseNames()))
	for _, r := range p.Rows() {
		reads[r.Phase]++
		y := float64(r.Tensor.Offset) / mib
		points[r.Phase] = append(points[r.Phase], chart.Point{X: r.RelativeTime, Y: y})
		f.High = max(f.High, 1.02*y)
	}
	for phase, name := range tables.PhaseNames() {
		if len(points[phase]) == 0 {
			continue
		}
		// The curves of other phases are empty, so that each phase has its own colour.
		curves := make([]chart.Curve, phase+1)
		curves[phase] = chart.Curve{Points: points[phase], Dots: true}
		f.Panels = append(f.Panels, chart.Panel{
			Title: fmt.Sprintf("%s: %s (%d reads)", title, name, len(points[phase])), Curves: curves,
		})
	}
	if f.High == 0 {
		return nil, reads
	}
	return f, reads
}

// ComparisonFigure has the time of each token, or of each decode where none was generated, in two captures with these
// names and captions. Of many, the mean of each bin is drawn. It is nil if neither capture has times.
func ComparisonFigure(c *pattern.Comparison, names, captions [2]string) *chart.Figure {
	caption := captions[0]
	if captions[1] != captions[0] {
		caption = names[0] + ": " + captions[0] + "; " + names[1] + ": " + captions[1]
	}
	x, per := "generated token", "token"
	if c.PerDecode() {
		x, per = "decode", "decode"
	}
	f := &chart.Figure{
		Caption: visible.Line(caption), XLabel: x, YLabel: "ms per " + per,
		Panels: []chart.Panel{{Title: visible.Line(c.Sides[0].Model + ": time of each " + per)}},
	}
	for side, name := range names {
		times := c.Times(side)
		bin := len(times)/maxCurvePoints + 1
		curve := chart.Curve{Name: visible.Line(name)}
		for from := 0; from < len(times); from += bin {
			part := times[from:min(from+bin, len(times))]
			mean := 0.0
			for _, t := range part {
				nanos := t.Nanos
				if c.PerDecode() {
					nanos = t.Decode
				}
				mean += float64(nanos) / 1e6 / float64(len(part))
			}
			curve.Points = append(curve.Points, chart.Point{X: float64(from), Y: mean})
			f.To, f.High = max(f.To, float64(from)+1), max(f.High, 1.1*mean)
		}
		f.Panels[0].Curves = append(f.Panels[0].Curves, curve)
	}
	if f.High == 0 {
		return nil
	}
	return f
}

// DeterminismFigure has a curve for each size of batch: the edits of the sequence of each generated token, or of each
// decode where none was generated. Of many, the worst of each bin is drawn. It is nil if every such step follows the
// canonical sequence.
func DeterminismFigure(d *pattern.Determinism, model, caption string) *chart.Figure {
	isGenerated, x := d.Phase() == tables.PhaseGeneration, "generated token"
	if !isGenerated {
		x = "decode"
	}
	f := &chart.Figure{
		Caption: caption, XLabel: x, YLabel: "edits from the canonical sequence",
		Panels: []chart.Panel{{Title: model + ": reads that differ"}},
	}
	curves := map[int32]*chart.Curve{}
	var batches []int32
	bin := len(d.Steps)/maxCurvePoints + 1
	decodes := 0
	for _, s := range d.Steps {
		if s.Phase != d.Phase() {
			continue
		}
		number := int(s.Token)
		if !isGenerated {
			number = decodes
			decodes++
		}
		c := curves[s.Batch]
		if c == nil {
			c = &chart.Curve{Name: fmt.Sprintf("steps of %d", s.Batch)}
			curves[s.Batch], batches = c, append(batches, s.Batch)
		}
		edits := 0.0
		if s.Departure >= 0 {
			edits = float64(len(d.Departures[s.Departure].Edits))
		}
		x := float64(number / bin * bin)
		if n := len(c.Points); n > 0 && c.Points[n-1].X == x {
			c.Points[n-1].Y = max(c.Points[n-1].Y, edits)
		} else {
			c.Points = append(c.Points, chart.Point{X: x, Y: edits})
		}
		f.To, f.High = max(f.To, float64(number)+1), max(f.High, 1.1*edits)
	}
	if f.High == 0 {
		return nil
	}
	for _, batch := range batches {
		f.Panels[0].Curves = append(f.Panels[0].Curves, *curves[batch])
	}
	return f
}
