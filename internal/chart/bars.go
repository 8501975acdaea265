package chart

// This file draws bars.

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

// Bars is a figure of bars that lie: a line for each label, from the top, and in each panel, one beside the other, a bar in it. All panels have the same labels.
type Bars struct {
	Title   string
	Labels  []string // what is too long is cut in the middle
	Panels  []BarPanel
	Caption string // as in Figure
}

// BarPanel has a value for each label and each of its parts, which follow each other in the bar. All are 0 or more.
type BarPanel struct {
	XLabel string
	Parts  []BarPart
}

// BarPart is a colour of bars. Without a name it is not in the legend.
type BarPart struct {
	Name   string
	Values []float64
}

// Sizes of a figure of bars.
const (
	barWidth   = 2.9 * vg.Inch
	barLine    = 0.17 * vg.Inch
	barAround  = 1.2 * vg.Inch // title, legend and axis
	labelWidth = 2.4 * vg.Inch
)

// MaxBars is how many labels a figure can have: viewers open pictures of some thousand lines.
const MaxBars = 400

// Write draws the figure. It fails with [ErrEmpty] or [ErrTooLarge] before anything is written, or as w does.
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
		if sum := p.longest(); math.IsInf(sum, 0) || math.IsNaN(sum) {
			return ErrTooLarge
		}
	}
	wide, high := labelWidth+barWidth*vg.Length(len(b.Panels)), max(barAround+barLine*vg.Length(n+b.below()), 2.2*vg.Inch)+captionHeight(b.Caption)
	canvas, err := NewCanvas(format, wide, high)
	if err != nil {
		return err
	}
	all := draw.New(canvas)
	left := vg.Length(0)
	for i := range b.Panels {
		width := barWidth
		if i == 0 {
			width += labelWidth
		}
		part := draw.Crop(all, left, left+width-wide, 0, 0)
		if err := b.draw(i, draw.Crop(part, vg.Points(8), -vg.Points(14), vg.Points(6)+captionHeight(b.Caption), -vg.Points(36))); err != nil {
			return fmt.Errorf("draw figure: %w", err)
		}
		left += width
	}
	style := newPlot("", "", "").Title.TextStyle
	style.Font.Size, style.XAlign, style.YAlign = vg.Points(13), draw.XLeft, draw.YBottom
	title := fit(b.Title, func(s string) bool { return style.Width(s) <= wide-vg.Points(20) })
	all.FillText(style, vg.Point{X: wide/2 - style.Width(title)/2, Y: high - vg.Points(24)}, title)
	caption(all, b.Caption)
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("write figure: %w", err)
	}
	return nil
}

// below is how many lines below the bars are for legends.
func (b *Bars) below() (most int) {
	for _, p := range b.Panels {
		named := 0
		for _, part := range p.Parts {
			if part.Name != "" {
				named++
			}
		}
		most = max(most, named)
	}
	return most
}

// longest is that of a panel's bars.
func (p *BarPanel) longest() (most float64) {
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

func (b *Bars) draw(panel int, at draw.Canvas) error {
	in, n := &b.Panels[panel], len(b.Labels)
	p := newPlot("", in.XLabel, "")
	p.X.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick { return ticksOf(low, high, 5) })
	lines := plotter.NewGrid()
	lines.Vertical.Color, lines.Horizontal.Color = gridInk, nil
	p.Add(lines)
	legend := newLegend()
	legend.Left, legend.TextStyle.Font.Size = false, vg.Points(9)
	var below *plotter.BarChart
	for i, part := range in.Parts {
		values := slices.Clone(part.Values)
		slices.Reverse(values) // the first is at the top
		bars, err := plotter.NewBarChart(plotter.Values(values), 0.7*barLine)
		if err != nil {
			return err
		}
		bars.Horizontal, bars.Color, bars.LineStyle.Width = true, curveColors[i%len(curveColors)], 0
		if below != nil {
			bars.StackOn(below)
		}
		below = bars
		p.Add(bars)
		if part.Name != "" {
			legend.Add(part.Name, bars)
		}
	}
	var ticks []plot.Tick
	for i, label := range b.Labels {
		if panel > 0 {
			label = ""
		}
		ticks = append(ticks, plot.Tick{Value: float64(n - 1 - i), Label: fit(label, func(s string) bool { return p.Y.Tick.Label.Width(s) <= labelWidth-vg.Points(20) })})
	}
	p.Y.Tick.Marker = plot.ConstantTicks(ticks)
	p.Y.Tick.LineStyle.Width = 0
	p.Y.Min, p.Y.Max, p.X.Min = -0.6-float64(b.below()), float64(n)-0.4, 0
	p.X.Max = 1.08 * in.longest()
	if p.X.Max <= 0 {
		p.X.Max = 1
	}
	p.Legend = legend
	p.Legend.Top = false
	p.Draw(at)
	return nil
}

// fit shortens a text in the middle until it fits.
func fit(s string, fits func(string) bool) string {
	r := []rune(s)
	for keep := len(r) - 1; keep > 1 && !fits(s); keep-- {
		s = string(r[:(keep+1)/2]) + "…" + string(r[len(r)-keep/2:])
	}
	return s
}
