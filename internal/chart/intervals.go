package chart

// This file draws figures of estimates with their intervals, one in each row.

import (
	"fmt"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Intervals is a figure of estimates. Each label has a row, from top to bottom, with a mark at the estimate and a
// horizontal line over its interval. An upright line stands at 0.
type Intervals struct {
	Title   string
	Labels  []string // a label that is too long is cut in the middle
	Rows    []Interval
	XLabel  string
	Caption string // as in Figure
}

// Interval is an estimate with its interval. Where Low is not below High only the mark is drawn.
type Interval struct{ Estimate, Low, High float64 }

// intervalLine is the height of a row, intervalWidth the width of the rows beside their labels.
const intervalLine, intervalWidth = 0.26 * vg.Inch, 4.2 * vg.Inch

// Write draws the figure. It fails with [ErrEmpty] or [ErrTooLarge] before anything is written, or as w does.
func (f *Intervals) Write(w io.Writer, format string) error {
	n := len(f.Rows)
	switch {
	case n == 0:
		return ErrEmpty
	case n > MaxBars:
		return fmt.Errorf("%w: %d rows, at most %d can be drawn", ErrTooLarge, n, MaxBars)
	case n != len(f.Labels):
		return fmt.Errorf("draw figure: %d intervals for %d labels", n, len(f.Labels))
	}
	low, high := 0.0, 0.0
	for _, row := range f.Rows {
		for _, v := range []float64{row.Estimate, row.Low, row.High} {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return ErrTooLarge
			}
			low, high = min(low, v), max(high, v)
		}
	}
	labels := (&Bars{Labels: f.Labels}).labelWidth()
	rows := max(barMargin+intervalLine*vg.Length(n), 1.6*vg.Inch)
	return writeTitled(w, format, f.Title, f.Caption, labels+intervalWidth, rows, func(at draw.Canvas) error {
		return f.drawRows(low, high, draw.Crop(at, panelLeft, -panelRight, 0, 0))
	})
}

// drawRows draws the rows. All values are from low to high, which are at most and at least 0.
func (f *Intervals) drawRows(low, high float64, at draw.Canvas) error {
	p := newPlot(f.XLabel, "")
	p.X.Tick.Marker = plot.TickerFunc(func(from, to float64) []plot.Tick { return makeTicks(from, to, 7) })
	lines := plotter.NewGrid()
	lines.Vertical.Color, lines.Horizontal.Color = gridInk, nil
	p.Add(lines)
	n := len(f.Rows)
	bottom, top := -0.6, float64(n)-0.4
	zero, err := plotter.NewLine(plotter.XYs{{X: 0, Y: bottom}, {X: 0, Y: top}})
	if err != nil {
		return err
	}
	zero.Width, zero.Color = vg.Points(1), Color(0)
	zero.Dashes = []vg.Length{vg.Points(3), vg.Points(3)}
	p.Add(zero)
	marks := make(plotter.XYs, n)
	var ticks []plot.Tick
	fits := func(s string) bool { return p.Y.Tick.Label.Width(s) <= mostLabel }
	for i, row := range f.Rows {
		y := float64(n - 1 - i) // the first one is at the top
		marks[i] = plotter.XY{X: row.Estimate, Y: y}
		ticks = append(ticks, plot.Tick{Value: y, Label: shorten(f.Labels[i], fits)})
		if row.Low >= row.High {
			continue
		}
		line, err := plotter.NewLine(plotter.XYs{{X: row.Low, Y: y}, {X: row.High, Y: y}})
		if err != nil {
			return err
		}
		line.Width, line.Color = vg.Points(2), Color(0)
		p.Add(line)
	}
	points, err := plotter.NewScatter(marks)
	if err != nil {
		return err
	}
	points.Shape, points.Color, points.Radius = draw.CircleGlyph{}, Color(0), vg.Points(4)
	p.Add(points)
	p.Y.Tick.Marker = plot.ConstantTicks(ticks)
	p.Y.Tick.LineStyle.Width = 0
	p.Y.Min, p.Y.Max = bottom, top
	margin := max(0.04*(high-low), 1e-9)
	p.X.Min, p.X.Max = low-margin, high+margin
	p.Draw(at)
	return nil
}
