package pressure

// This file draws the speed against the share of the model that fits: one line for each variant, and the bound above them.

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"path/filepath"
	"slices"
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

// FigureFormats are the formats of [Report.WriteFigure], which are also the extensions of such files.
var FigureFormats = []string{"png", "svg", "pdf"}

// ErrNoFigure says that a report has nothing to draw: no run has finished.
var ErrNoFigure = errors.New("there is nothing to draw: no run has finished")

// variantColors are told apart with and without colour blindness (Okabe and Ito, "Color Universal Design", 2008); the order avoids neighbours
// of equal lightness. After the last, the first comes again, with other marks.
var variantColors = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0xcc, 0x79, 0xa7, 0xff}, {0x56, 0xb4, 0xe9, 0xff},
}

var (
	variantMarks = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{}}
	figureInk    = color.RGBA{0x20, 0x20, 0x20, 0xff}
	figureGrid   = color.RGBA{0xe4, 0xe4, 0xe4, 0xff}
)

// curve is one variant at one readahead.
type curve struct {
	variant string
	points  []curvePoint // by x
}

type curvePoint struct{ x, speed, low, high float64 }

// panel is what is drawn of one readahead.
type panel struct {
	readahead int // KiB
	curves    []curve
	bound     plotter.XYs // empty if it is not known
}

// boundPoints is how many points the bound has: it is not a straight line.
const boundPoints = 200

// panels are what WriteFigure draws, by readahead. All have the same range of x, which is wider than that of the points, and of speeds, from 0 to
// high.
func (r *Report) panels() (all []panel, from, to, high float64) {
	steady := r.hasSteady()
	from, to = math.Inf(1), math.Inf(-1)
	for i := range r.Results {
		at := &r.Results[i]
		if !r.reached(i) {
			continue
		}
		p := slices.IndexFunc(all, func(p panel) bool { return p.readahead == at.ReadaheadKiB })
		if p < 0 {
			p = len(all)
			all = append(all, panel{readahead: at.ReadaheadKiB, curves: make([]curve, len(r.Variants))})
		}
		for v := range at.Summaries {
			c := &all[p].curves[v]
			c.variant = at.Summaries[v].Variant
			speed := at.Summaries[v].speed(steady)
			if speed.N == 0 {
				continue
			}
			c.points = append(c.points, curvePoint{at.X, speed.Median, speed.Min, speed.Max})
			from, to, high = min(from, at.X), max(to, at.X), max(high, speed.Max)
		}
	}
	margin := max(0.03, (to-from)*0.06)
	from, to = max(0, from-margin), to+margin
	for i := range all {
		for v := range all[i].curves {
			slices.SortFunc(all[i].curves[v].points, func(a, b curvePoint) int { return cmp.Compare(a.x, b.x) })
		}
		for n := range boundPoints + 1 {
			x := from + (to-from)*float64(n)/boundPoints
			if y := r.bound(x); y > 0 && from < to {
				all[i].bound = append(all[i].bound, plotter.XY{X: x, Y: y})
				high = max(high, y)
			}
		}
	}
	slices.SortFunc(all, func(a, b panel) int { return cmp.Compare(a.readahead, b.readahead) })
	return all, from, to, high * 1.08
}

// WriteFigure draws tok/s against x in one of the [FigureFormats]: of each variant the medians and, upright, the range of its runs; above them the bound.
// Each readahead has a panel. The speed is that of the steady state if the runs have one. It fails with [ErrNoFigure] if there is
// nothing to draw.
func (r *Report) WriteFigure(w io.Writer, format string) error {
	panels, from, to, high := r.panels()
	if !(from < to) {
		return ErrNoFigure
	}
	if math.IsInf(to, 0) || math.IsInf(high, 0) {
		return errors.New("draw figure: the numbers are too large")
	}
	const width, height = 6.2 * vg.Inch, 4.6 * vg.Inch
	size := width * vg.Length(len(panels))
	var canvas vg.CanvasWriterTo
	switch format {
	case "png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(size, height), vgimg.UseDPI(144))}
	case "svg":
		canvas = vgsvg.New(size, height)
	case "pdf":
		canvas = vgpdf.New(size, height)
	default:
		return fmt.Errorf("draw figure: format %q: want one of %s", format, strings.Join(FigureFormats, ", "))
	}
	all := draw.New(canvas)
	for i := range panels {
		p, err := r.draw(&panels[i], from, to, high)
		if err != nil {
			return fmt.Errorf("draw figure: %w", err)
		}
		left := width * vg.Length(i)
		part := draw.Crop(all, left, left+width-size, 0, 0)
		p.Draw(draw.Crop(part, vg.Points(8), -vg.Points(12), vg.Points(6), -vg.Points(8)))
	}
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("write figure: %w", err)
	}
	return nil
}

// draw makes the plot of a panel.
func (r *Report) draw(in *panel, from, to, high float64) (*plot.Plot, error) {
	f := plot.New()
	f.Title.Text = fmt.Sprintf("%s, readahead %d KiB", filepath.Base(r.Model.Path), in.readahead)
	if r.Throttle > 0 {
		f.Title.Text += fmt.Sprintf(", throttled to %s MiB/s", number(float64(r.Throttle)/mib))
	}
	f.X.Label.Text = "share of a token's weights that fits in memory"
	f.Y.Label.Text = r.speedName()
	f.Title.TextStyle.Font.Size, f.Title.Padding = vg.Points(13), vg.Points(8)
	for _, style := range []*text.Style{&f.Title.TextStyle, &f.X.Label.TextStyle, &f.Y.Label.TextStyle, &f.X.Tick.Label, &f.Y.Tick.Label, &f.Legend.TextStyle} {
		style.Font.Variant, style.Color = "Sans", figureInk
	}
	f.X.Tick.Marker, f.Y.Tick.Marker = plot.TickerFunc(evenTicks), plot.TickerFunc(evenTicks)
	f.Legend.Top, f.Legend.Left, f.Legend.Padding = true, true, vg.Points(3)
	f.Legend.XOffs, f.Legend.YOffs = vg.Points(6), -vg.Points(4)
	lines := plotter.NewGrid()
	lines.Vertical.Color, lines.Horizontal.Color = figureGrid, figureGrid
	f.Add(lines)

	if len(in.bound) > 0 {
		l, err := plotter.NewLine(in.bound)
		if err != nil {
			return nil, err
		}
		l.Color, l.Width, l.Dashes = figureInk, vg.Points(1.5), []vg.Length{vg.Points(5), vg.Points(3)}
		f.Add(l)
		f.Legend.Add("bound", l)
	}
	for i, c := range in.curves {
		if len(c.points) == 0 {
			continue
		}
		if err := addCurve(f, c, variantColors[i%len(variantColors)], variantMarks[(i+i/len(variantColors))%len(variantMarks)]); err != nil {
			return nil, err
		}
	}
	f.X.Min, f.X.Max, f.Y.Min, f.Y.Max = from, to, 0, high
	return f, nil
}

// spreads are points with the range of their runs.
type spreads struct {
	plotter.XYs
	plotter.YErrors
}

func addCurve(f *plot.Plot, c curve, paint color.Color, mark draw.GlyphDrawer) error {
	var at spreads
	for _, p := range c.points {
		at.XYs = append(at.XYs, plotter.XY{X: p.x, Y: p.speed})
		at.YErrors = append(at.YErrors, struct{ Low, High float64 }{p.speed - p.low, p.high - p.speed})
	}
	line, points, err := plotter.NewLinePoints(at.XYs)
	if err != nil {
		return err
	}
	bars, err := plotter.NewYErrorBars(at)
	if err != nil {
		return err
	}
	line.Color, line.Width = paint, vg.Points(1.5)
	points.Color, points.Shape, points.Radius = paint, mark, vg.Points(3.5)
	bars.Color, bars.Width, bars.CapWidth = paint, vg.Points(1), vg.Points(6)
	f.Add(line, bars, points)
	f.Legend.Add(c.variant, line, points)
	return nil
}

// evenTicks places about eight ticks at multiples of 1, 2 or 5 times a power of ten.
func evenTicks(low, high float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/8)))
	for _, k := range []float64{1, 2, 5, 10} {
		if (high-low)/(k*step) <= 9 {
			step *= k
			break
		}
	}
	var ticks []plot.Tick
	first := math.Ceil(low/step - 1e-9)
	for n := range 10 {
		if at := (first + float64(n)) * step; at <= high {
			ticks = append(ticks, plot.Tick{Value: at, Label: strconv.FormatFloat(at, 'g', 3, 64)})
		}
	}
	return ticks
}
