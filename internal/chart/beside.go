package chart

// This file lays out wide figures of one plot whose axes begin at 0, with its legend to the right.

import (
	"fmt"
	"image/color"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Size of the picture, without the legend.
const besideWidth, besideHeight = 9 * vg.Inch, 5 * vg.Inch

// beside is such a figure while it is made.
type beside struct {
	plot           *plot.Plot
	legend         plot.Legend
	widest         vg.Length // of the legend's names
	title, caption string
}

func newBeside(title, x, y, caption string) *beside {
	f := &beside{plot: newPlot(x, y), legend: newLegend(), title: title, caption: caption}
	f.plot.X.Tick.Marker, f.plot.Y.Tick.Marker = plot.TickerFunc(evenTicks), plot.TickerFunc(evenTicks)
	return f
}

// addKey adds a colour to the legend.
func (f *beside) addKey(name string, paint color.Color) error {
	key, err := plotter.NewScatter(plotter.XYs{{}})
	if err != nil {
		return fmt.Errorf("draw figure: %w", err)
	}
	key.Color, key.Shape, key.Radius = paint, draw.BoxGlyph{}, vg.Points(3.5)
	f.addThumbnail(name, key)
	return nil
}

func (f *beside) addThumbnail(name string, key plot.Thumbnailer) {
	f.legend.Add(name, key)
	f.widest = max(f.widest, f.legend.TextStyle.Width(name))
}

// write draws the figure. The caller has set the ends of the axes.
func (f *beside) write(w io.Writer, format string) error {
	legendWidth := f.widest + f.legend.ThumbnailWidth + vg.Points(24)
	wide := besideWidth + legendWidth
	caption := wrapCaption(f.caption, wide)
	canvas, err := NewCanvas(format, wide, besideHeight+caption.height())
	if err != nil {
		return err
	}
	all := draw.New(canvas)
	at := draw.Crop(all, vg.Points(8), -vg.Points(12), vg.Points(6)+caption.height(), -vg.Points(8))
	f.plot.X.Min, f.plot.Y.Min = 0, 0
	drawTitled(f.plot, f.title, draw.Crop(at, 0, -legendWidth, 0, 0))
	f.legend.Draw(draw.Crop(at, at.Rectangle.Size().X-legendWidth+vg.Points(8), 0, 0, -vg.Points(24)))
	caption.drawOn(all)
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("write figure: %w", err)
	}
	return nil
}
