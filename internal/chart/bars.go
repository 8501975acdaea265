package chart

// This file draws figures of horizontal bars.

import (
	"fmt"
	"io"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Bars is a figure of horizontal bars. Each label has a row, from top to bottom. Panels are side by
// side, and each has a bar in each row. All panels have the same labels.
type Bars struct {
	Title   string
	Labels  []string // a label that is too long is cut in the middle
	Panels  []BarPanel
	Caption string // as in Figure
}

// BarPanel is a panel of bars. Each bar consists of parts, one after the other.
type BarPanel struct {
	XLabel string
	Parts  []BarPart
}

// BarPart is one part of all bars of a panel, in a colour of its own. Without a name, and where all its values are 0,
// it is not in the legend.
type BarPart struct {
	Name   string
	Values []float64 // the length of the part for each label; 0 or more
}

// Sizes of a figure of bars.
const (
	barWidth  = 2.9 * vg.Inch
	barLine   = 0.17 * vg.Inch
	barMargin = 0.9 * vg.Inch     // height of legend and axis
	mostLabel = 4.4 * vg.Inch     // width of labels
	labelGap  = 20 * vg.Length(1) // between labels and bars
	// The margins of a panel at its left and right.
	panelLeft, panelRight = 8 * vg.Length(1), 14 * vg.Length(1)
)

// MaxBars is how many labels a figure can have. Viewers fail to open pictures that are much higher
// than some thousand pixels.
const MaxBars = 400

// Write draws the figure. It fails with [ErrEmpty] or [ErrTooLarge] before anything is written, or
// as w does.
func (b *Bars) Write(w io.Writer, format string) error {
	n := len(b.Labels)
	if n == 0 || len(b.Panels) == 0 {
		return ErrEmpty
	}
	if n > MaxBars {
		return fmt.Errorf("%w: %d bars, at most %d can be drawn", ErrTooLarge, n, MaxBars)
	}
	for _, p := range b.Panels {
		for _, part := range p.Parts {
			if len(part.Values) != n {
				return fmt.Errorf("draw figure: %d values of %q for %d labels", len(part.Values), part.Name, n)
			}
		}
		if sum := p.longestBar(); math.IsInf(sum, 0) || math.IsNaN(sum) {
			return ErrTooLarge
		}
	}
	labels := b.labelWidth()
	wide := labels + barWidth*vg.Length(len(b.Panels))
	high := max(barMargin+barLine*vg.Length(n+b.legendLines()), 1.9*vg.Inch)
	return writeTitled(w, format, b.Title, b.Caption, wide, high, func(all draw.Canvas) error {
		left := vg.Length(0)
		for i := range b.Panels {
			width := barWidth
			if i == 0 {
				width += labels
			}
			if err := b.drawPanel(i, draw.Crop(all, left, left+width-wide, 0, 0)); err != nil {
				return err
			}
			left += width
		}
		return nil
	})
}

// writeTitled draws a title above and a caption below what draws content, and writes the figure. wide and high are the
// size of the content, which must keep the margin at the sides itself.
func writeTitled(w io.Writer, format, title, caption string, wide, high vg.Length,
	content func(at draw.Canvas) error) error {
	above, below := wrapTitle(title, wide), wrapCaption(caption, wide)
	high += above.height() + below.height()
	canvas, err := NewCanvas(format, wide, high)
	if err != nil {
		return err
	}
	all := draw.New(canvas)
	if err := content(draw.Crop(all, 0, 0, vg.Points(6)+below.height(), -above.height()-vg.Points(8))); err != nil {
		return fmt.Errorf("draw figure: %w", err)
	}
	above.drawOn(draw.Crop(all, 0, 0, high-above.height()-vg.Points(6), 0))
	below.drawOn(all)
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("write figure: %w", err)
	}
	return nil
}

// labelWidth is the room for the labels: as much as the longest one needs, within bounds.
func (b *Bars) labelWidth() (widest vg.Length) {
	style := newPlot("", "").Y.Tick.Label
	for _, label := range b.Labels {
		widest = max(widest, style.Width(label))
	}
	return min(widest, mostLabel) + labelGap
}

// legendLines is how many lines below the bars the legends need: as many as the largest number of
// named parts in a panel.
func (b *Bars) legendLines() (most int) {
	for _, p := range b.Panels {
		named := 0
		for _, part := range p.Parts {
			if part.isNamed() {
				named++
			}
		}
		most = max(most, named)
	}
	return most
}

// isNamed says whether the part is in the legend.
func (p *BarPart) isNamed() bool { return p.Name != "" && slices.Max(p.Values) > 0 }

// longestBar is the length of a panel's longest bar, or NaN if a bar's length is NaN.
func (p *BarPanel) longestBar() (most float64) {
	if len(p.Parts) == 0 {
		return 0
	}
	for i := range p.Parts[0].Values {
		sum := 0.0
		for _, part := range p.Parts {
			sum += part.Values[i]
		}
		if math.IsNaN(sum) {
			return sum
		}
		most = max(most, sum)
	}
	return most
}

// drawPanel draws a panel with its legend.
func (b *Bars) drawPanel(panel int, at draw.Canvas) error {
	in, n := &b.Panels[panel], len(b.Labels)
	p := newPlot(in.XLabel, "")
	p.X.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick { return makeTicks(low, high, 5) })
	lines := plotter.NewGrid()
	lines.Vertical.Color, lines.Horizontal.Color = gridInk, nil
	p.Add(lines)
	legend := newLegend()
	legend.Left, legend.TextStyle.Font.Size = false, vg.Points(9)
	var below *plotter.BarChart
	for i, part := range in.Parts {
		values := slices.Clone(part.Values)
		slices.Reverse(values) // the first label is at the top
		bars, err := plotter.NewBarChart(plotter.Values(values), 0.7*barLine)
		if err != nil {
			return err
		}
		bars.Horizontal, bars.Color, bars.LineStyle.Width = true, Color(i), 0
		if below != nil {
			bars.StackOn(below)
		}
		below = bars
		p.Add(bars)
		if part.isNamed() {
			legend.Add(part.Name, bars)
		}
	}
	fits := func(s string) bool { return p.Y.Tick.Label.Width(s) <= mostLabel }
	var ticks []plot.Tick
	for i, label := range b.Labels {
		if panel > 0 {
			label = ""
		}
		ticks = append(ticks, plot.Tick{Value: float64(n - 1 - i), Label: shorten(label, fits)})
	}
	p.Y.Tick.Marker = plot.ConstantTicks(ticks)
	p.Y.Tick.LineStyle.Width = 0
	p.Y.Min, p.Y.Max, p.X.Min = -0.6-float64(b.legendLines()), float64(n)-0.4, 0
	p.X.Max = 1.08 * in.longestBar()
	if p.X.Max <= 0 {
		p.X.Max = 1
	}
	p.Legend = legend
	p.Legend.Top = false
	p.Draw(draw.Crop(at, panelLeft, -panelRight, 0, 0))
	return nil
}

// shorten cuts a text in the middle until it fits.
func shorten(s string, fits func(string) bool) string {
	r := []rune(s)
	for keep := len(r) - 1; keep > 1 && !fits(s); keep-- {
		s = string(r[:(keep+1)/2]) + "…" + string(r[len(r)-keep/2:])
	}
	return s
}
