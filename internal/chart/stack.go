package chart

// This file draws figures of upright bars, each of which is divided in parts.

import (
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Stack is a figure of upright bars side by side, from 0 on. The colours of a bar are its parts, the first at the
// bottom.
type Stack struct {
	Title, XLabel, YLabel string
	To                    float64 // the end of the x axis, where the last bar ends
	// High is the end of the y axis. Higher bars are cut there.
	High   float64
	Values []float64 // the heights of the bars; 0: there is none
	Parts  []StackPart
	// Unknown is the name of what is left of bars without their parts. It is grey.
	Unknown   string
	Bound     float64 // a dashed line at this height; 0: none
	BoundName string
	Caption   string // as in Figure
}

// StackPart is a part of all bars.
type StackPart struct {
	Name   string
	Color  int       // the number of a [Color]
	Shares []float64 // of each bar: from 0 to 1, and together with the other parts at most 1
}

// unknownInk is the colour of what is not told apart.
var unknownInk = color.RGBA{0xc8, 0xc8, 0xd0, 0xff}

// Write draws the figure. It fails with [ErrEmpty] or [ErrTooLarge] before anything is written, or as w does.
func (s *Stack) Write(w io.Writer, format string) error {
	if len(s.Values) == 0 || !(s.To > 0) || !(s.High > 0) {
		return ErrEmpty
	}
	if math.IsInf(s.To, 0) || math.IsInf(s.High, 0) {
		return ErrTooLarge
	}
	f := newBeside(s.Title, s.XLabel, s.YLabel, s.Caption)
	lines := plotter.NewGrid()
	lines.Vertical.Color, lines.Horizontal.Color = nil, gridInk
	f.plot.Add(lines, stackBars{s})
	f.plot.X.Max, f.plot.Y.Max = s.To, s.High
	// The legend has the parts from top to bottom, as the bars have.
	if s.hasUnknown() {
		if err := f.addKey(s.Unknown, unknownInk); err != nil {
			return err
		}
	}
	for i := len(s.Parts) - 1; i >= 0; i-- {
		if part := &s.Parts[i]; part.hasAny() {
			if err := f.addKey(part.Name, Color(part.Color)); err != nil {
				return err
			}
		}
	}
	if s.Bound > 0 && s.Bound <= s.High {
		line, err := plotter.NewLine(plotter.XYs{{X: 0, Y: s.Bound}, {X: s.To, Y: s.Bound}})
		if err != nil {
			return err
		}
		line.Color, line.Width, line.Dashes = ink, vg.Points(1.2), []vg.Length{vg.Points(5), vg.Points(3)}
		f.plot.Add(line)
		f.addThumbnail(s.BoundName, line)
	}
	return f.write(w, format)
}

func (p *StackPart) hasAny() bool {
	for _, share := range p.Shares {
		if share > 0 {
			return true
		}
	}
	return false
}

// unknown is which share of a bar is in no part.
func (s *Stack) unknown(bar int) float64 {
	left := 1.0
	for i := range s.Parts {
		left -= s.Parts[i].Shares[bar]
	}
	return left
}

// littleShare is less than can be seen.
const littleShare = 1e-3

func (s *Stack) hasUnknown() bool {
	for bar, v := range s.Values {
		if v > 0 && s.unknown(bar) > littleShare {
			return true
		}
	}
	return false
}

// stackBars draws the bars on a plot.
type stackBars struct{ *Stack }

// Plot implements [plot.Plotter].
func (s stackBars) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	each := s.To / float64(len(s.Values))
	for bar, value := range s.Values {
		left, right := x(float64(bar)*each), x(float64(bar+1)*each)
		if right-left > vg.Points(4) { // bars that are wide enough have a gap between them
			right -= vg.Points(1)
		}
		from := 0.0
		box := func(share float64, paint color.Color) {
			to := from + share*value
			if bottom, top := min(from, s.High), min(to, s.High); top > bottom {
				c.FillPolygon(paint, []vg.Point{
					{X: left, Y: y(bottom)}, {X: right, Y: y(bottom)}, {X: right, Y: y(top)}, {X: left, Y: y(top)},
				})
			}
			from = to
		}
		for i := range s.Parts {
			box(s.Parts[i].Shares[bar], Color(s.Parts[i].Color))
		}
		if left := s.unknown(bar); left > littleShare {
			box(left, unknownInk)
		}
	}
}
