// Package chart draws figures. A [Figure] has one or more panels of curves or dots. Curves that
// bound the others are dashed. [Bars] is a figure of horizontal bars, and [Map] one of coloured cells. Titles and
// captions are broken into lines, so that they are not cut.
package chart

// This file draws figures of curves.

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgpdf"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Formats are the formats of [Figure.Write], which are also the extensions of such files.
var Formats = []string{"png", "svg", "pdf"}

// FormatOf is the format that a file's name asks for by its extension. It need not be one of Formats.
func FormatOf(file string) string {
	return strings.ToLower(strings.TrimPrefix(filepath.Ext(file), "."))
}

// Shown is something that a figure of several things shows, such as a variant: its name, and what the figure calls it
// if that is something else.
type Shown struct{ Name, Label string }

// ParseShown reads NAME or NAME=LABEL.
func ParseShown(text string) Shown {
	name, label, _ := strings.Cut(text, "=")
	return Shown{name, label}
}

// Title is what the figure calls it.
func (s Shown) Title() string { return cmp.Or(s.Label, s.Name) }

// Figure is a figure of curves. All panels have the same axes.
type Figure struct {
	Panels  []Panel
	Columns int // number of panels side by side; 0: all
	// From and To are the ends of the x axis. The y axis goes from 0 to High. If Low is more than 0, the y axis is
	// logarithmic and begins there; points below are not drawn.
	From, To, Low, High float64
	XLabel, YLabel      string
	// Beside puts the legend to the right of the curves, where there is room for any number of
	// them. Otherwise it is at the top left.
	Beside bool
	// Caption is written in small letters below the figure, such as the machine and the command.
	Caption string
}

// Panel is a plot.
type Panel struct {
	Title  string
	Curves []Curve
}

// Curve is a line. A curve without points is not drawn, but takes a colour. So the curves of the
// same thing have the same colour in all panels. Of a curve with many points only some have marks, at other places than
// the marks of the other curves: where curves run over each other, all of them can still be seen.
type Curve struct {
	Name   string  // in the legend; "": it is not there
	Points []Point // in the order of X
	Bound  bool    // it bounds the others: drawn dashed (those after the first dotted), without marks, in no colour
	Dots   bool    // for many points: they are small, and no line joins them
	Steps  bool    // for many points: each value holds up to the next point, and no marks are drawn
}

// Point is a point of a curve. If High is greater than Low, that range is drawn as a vertical bar.
type Point struct{ X, Y, Low, High float64 }

// Errors of Write.
var (
	ErrEmpty    = errors.New("there is nothing to draw")
	ErrTooLarge = errors.New("the numbers are too large to draw")
)

// curveColors can be distinguished with and without colour blindness (Okabe and Ito, "Color
// Universal Design", 2008). The order avoids neighbours of equal lightness. After the last colour,
// the first comes again, with other marks.
var curveColors = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff},
	{0xd5, 0x5e, 0x00, 0xff}, {0xcc, 0x79, 0xa7, 0xff}, {0x56, 0xb4, 0xe9, 0xff},
}

var (
	curveMarks = []draw.GlyphDrawer{
		draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{},
	}
	ink     = color.RGBA{0x20, 0x20, 0x20, 0xff}
	gridInk = color.RGBA{0xe4, 0xe4, 0xe4, 0xff}
)

// Color is the colour of the curve or class with a number, which is the same in all figures.
func Color(number int) color.RGBA { return curveColors[number%len(curveColors)] }

// ColorText is Color as HTML and SVG write it, such as #0072b2.
func ColorText(number int) string {
	c := Color(number)
	return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B)
}

// Size of a panel.
const width, height = 6.2 * vg.Inch, 4.6 * vg.Inch

// Write draws the figure. It fails with [ErrEmpty] or [ErrTooLarge] before anything is written, or
// as w does.
func (f *Figure) Write(w io.Writer, format string) error {
	if len(f.Panels) == 0 || !(f.From < f.To) || !(f.High > max(f.Low, 0)) {
		return ErrEmpty
	}
	if math.IsInf(f.From, 0) || math.IsInf(f.To-f.From, 0) || math.IsInf(f.High, 0) {
		return ErrTooLarge
	}
	columns := f.Columns
	if columns < 1 || columns > len(f.Panels) {
		columns = len(f.Panels)
	}
	rows := (len(f.Panels) + columns - 1) / columns
	legendWidth := f.legendWidth()
	each := width + legendWidth
	wide := each * vg.Length(columns)
	caption := wrapCaption(f.Caption, wide)
	high := height*vg.Length(rows) + caption.height()
	canvas, err := NewCanvas(format, wide, high)
	if err != nil {
		return err
	}
	all := draw.New(canvas)
	for i := range f.Panels {
		left, top := each*vg.Length(i%columns), height*vg.Length(i/columns)
		part := draw.Crop(all, left, left+each-wide, high-top-height, -top)
		part = draw.Crop(part, vg.Points(8), -vg.Points(12), vg.Points(6), -vg.Points(8))
		if err := f.drawPanel(&f.Panels[i], legendWidth, part); err != nil {
			return fmt.Errorf("draw figure: %w", err)
		}
	}
	caption.drawOn(all)
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("write figure: %w", err)
	}
	return nil
}

// DPI is the resolution of pictures of pixels.
const DPI = 144

// NewCanvas makes a canvas in a format. For png it has [DPI] pixels per inch.
func NewCanvas(format string, wide, high vg.Length) (vg.CanvasWriterTo, error) {
	switch format {
	case "png":
		return vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(wide, high), vgimg.UseDPI(DPI))}, nil
	case "svg":
		return svgCanvas{vgsvg.New(wide, high)}, nil
	case "pdf":
		return pdfCanvas{vgpdf.New(wide, high)}, nil
	}
	return nil, fmt.Errorf("draw figure: format %q: want one of %s", format, strings.Join(Formats, ", "))
}

// newLegend makes an empty legend.
func newLegend() plot.Legend {
	l := plot.NewLegend()
	l.TextStyle.Font.Variant, l.TextStyle.Color = "Sans", ink
	l.Top, l.Left, l.Padding = true, true, vg.Points(3)
	return l
}

// legendWidth is the width of legends beside the curves; 0 if they are not there.
func (f *Figure) legendWidth() (widest vg.Length) {
	if !f.Beside {
		return 0
	}
	l := newLegend()
	for i := range f.Panels {
		for _, c := range f.Panels[i].Curves {
			widest = max(widest, l.TextStyle.Width(c.Name))
		}
	}
	return widest + l.ThumbnailWidth + vg.Points(24)
}

// drawPanel draws a panel with its legend.
func (f *Figure) drawPanel(in *Panel, legendWidth vg.Length, at draw.Canvas) error {
	p := newPlot(f.XLabel, f.YLabel)
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(evenTicks), plot.TickerFunc(evenTicks)
	low, high := 0., f.High
	if f.Low > 0 {
		low, high = math.Log10(f.Low), math.Log10(f.High)
		p.Y.Tick.Marker = plot.TickerFunc(func(float64, float64) []plot.Tick {
			ticks := logTicks(f.Low, f.High)
			for i := range ticks {
				ticks[i].Value = math.Log10(ticks[i].Value)
			}
			return ticks
		})
	}
	lines := plotter.NewGrid()
	lines.Vertical.Color, lines.Horizontal.Color = gridInk, gridInk
	p.Add(lines)

	legend := newLegend()
	number := 0 // of the next curve that has a colour
	bounds := 0
	for i := range in.Curves {
		c := in.Curves[i]
		c.Points = f.placed(c.Points)
		var err error
		switch {
		case c.Bound && len(c.Points) > 0:
			err = addBound(p, &legend, &c, bounds)
			bounds++
		case !c.Bound:
			if len(c.Points) > 0 {
				err = addCurve(p, &legend, &c, number)
			}
			number++
		}
		if err != nil {
			return err
		}
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = f.From, f.To, low, high
	if !f.Beside {
		p.Legend = legend
		p.Legend.XOffs, p.Legend.YOffs = vg.Points(6), -vg.Points(4)
		drawTitled(p, in.Title, at)
		return nil
	}
	drawTitled(p, in.Title, draw.Crop(at, 0, -legendWidth, 0, 0))
	legend.Draw(draw.Crop(at, at.Rectangle.Size().X-legendWidth+vg.Points(8), 0, 0, -vg.Points(24)))
	return nil
}

// placed are the points as they lie on the y axis. On a logarithmic one these are the logarithms of those that are not
// below its beginning. gonum's own logarithmic axis leaves a large part of the picture free: it takes the middle of the
// values for the place of the axis's name.
func (f *Figure) placed(points []Point) (all []Point) {
	if f.Low <= 0 {
		return points
	}
	log := func(v float64) float64 { return math.Log10(max(v, f.Low)) }
	for _, at := range points {
		if at.Y >= f.Low {
			all = append(all, Point{X: at.X, Y: log(at.Y), Low: log(at.Low), High: log(at.High)})
		}
	}
	return all
}

// newPlot makes an empty plot in this package's fonts.
func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.Title.TextStyle.Font.Size, p.Title.Padding = vg.Points(13), vg.Points(8)
	for _, style := range []*text.Style{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label,
	} {
		style.Font.Variant, style.Color = "Sans", ink
	}
	return p
}

func addBound(p *plot.Plot, legend *plot.Legend, c *Curve, number int) error {
	l, err := plotter.NewLine(toXYs(c.Points))
	if err != nil {
		return err
	}
	l.Color, l.Width, l.Dashes = ink, vg.Points(1.5), []vg.Length{vg.Points(5), vg.Points(3)}
	if number > 0 {
		l.Dashes = []vg.Length{vg.Points(1.5), vg.Points(3)}
	}
	p.Add(l)
	legend.Add(c.Name, l)
	return nil
}

// toXYs returns points without their ranges.
func toXYs(points []Point) plotter.XYs {
	var all plotter.XYs
	for _, p := range points {
		all = append(all, plotter.XY{X: p.X, Y: p.Y})
	}
	return all
}

// spreads are points with their ranges.
type spreads struct {
	plotter.XYs
	plotter.YErrors
}

// someMarks are about so many points of a curve that has many. They begin at another point for each number of a curve.
func someMarks(points plotter.XYs, number int) (some plotter.XYs) {
	const most, about = 12, 5
	if len(points) <= most {
		return points
	}
	every := len(points) / about
	for i := number * 2 % every; i < len(points); i += every {
		some = append(some, points[i])
	}
	return some
}

// addKey adds what has a name to a legend.
func addKey(legend *plot.Legend, name string, keys ...plot.Thumbnailer) {
	if name != "" {
		legend.Add(name, keys...)
	}
}

// addCurve adds the curve with a number, which has a colour, a mark and, after the last colour, dashes.
func addCurve(p *plot.Plot, legend *plot.Legend, c *Curve, number int) error {
	paint := Color(number)
	mark := curveMarks[(number+number/len(curveColors))%len(curveMarks)]
	line, points, err := plotter.NewLinePoints(toXYs(c.Points))
	if err != nil {
		return err
	}
	line.Color, line.Width = paint, vg.Points(1.5)
	if number >= len(curveColors) {
		line.Dashes = []vg.Length{vg.Points(7), vg.Points(2), vg.Points(1.5), vg.Points(2)}
	}
	points.Color, points.Shape, points.Radius = paint, mark, vg.Points(3.5)
	if c.Dots {
		points.Shape, points.Radius = draw.BoxGlyph{}, vg.Points(0.8)
		p.Add(points)
		key := *points
		key.Radius = vg.Points(3.5)
		addKey(legend, c.Name, &key)
		return nil
	}
	p.Add(line)
	if c.Steps {
		line.StepStyle = plotter.PostStep
		addKey(legend, c.Name, line)
		return nil
	}
	var ranged spreads
	for _, at := range c.Points {
		if at.High > at.Low {
			ranged.XYs = append(ranged.XYs, plotter.XY{X: at.X, Y: at.Y})
			ranged.YErrors = append(ranged.YErrors, struct{ Low, High float64 }{at.Y - at.Low, at.High - at.Y})
		}
	}
	if len(ranged.XYs) > 0 {
		bars, err := plotter.NewYErrorBars(ranged)
		if err != nil {
			return err
		}
		bars.Color, bars.Width, bars.CapWidth = paint, vg.Points(1), vg.Points(6)
		p.Add(bars)
	}
	points.XYs = someMarks(points.XYs, number)
	p.Add(points)
	addKey(legend, c.Name, line, points)
	return nil
}

// tickLabel formats a number with three digits. Numbers from 1000 to a million have all their
// digits instead of an exponent.
func tickLabel(at float64) string {
	if at >= 1000 && at < 1e6 {
		return strconv.FormatFloat(at, 'f', 0, 64)
	}
	return strconv.FormatFloat(at, 'g', 3, 64)
}

// logTicks makes ticks of a logarithmic axis: at 1, 2 and 5 times each power of ten, or, if there are many of these, at
// the powers of ten. An axis that has less than two of these has even ticks.
func logTicks(low, high float64) (ticks []plot.Tick) {
	const many = 9
	first, last := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	for _, digits := range [][]float64{{1, 2, 5}, {1}} {
		ticks = ticks[:0]
		for power := first; power <= last; power++ {
			for _, digit := range digits {
				if at := digit * math.Pow(10, power); at >= low*(1-1e-9) && at <= high*(1+1e-9) {
					ticks = append(ticks, plot.Tick{Value: at, Label: tickLabel(at)})
				}
			}
		}
		if len(ticks) <= many {
			break
		}
	}
	if len(ticks) < 2 {
		return evenTicks(low, high)
	}
	return ticks
}

// evenTicks makes about eight ticks at multiples of 1, 2 or 5 times a power of ten.
func evenTicks(low, high float64) []plot.Tick { return makeTicks(low, high, 9) }

// makeTicks makes ticks at a distance so that at most about most of them are between low and high.
func makeTicks(low, high, most float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/(most-1))))
	for _, k := range []float64{1, 2, 5, 10} {
		if (high-low)/(k*step) <= most {
			step *= k
			break
		}
	}
	var ticks []plot.Tick
	first := math.Ceil(low/step - 1e-9)
	for n := range 10 {
		if at := (first + float64(n)) * step; at <= high {
			ticks = append(ticks, plot.Tick{Value: at, Label: tickLabel(at)})
		}
	}
	return ticks
}
