package chart

// This file draws figures of coloured cells.

import (
	"image"
	"image/color"
	"image/draw"
	"io"
	"math"

	"gonum.org/v1/plot/plotter"
)

// Map is a figure of cells of equal size on two axes that begin at 0. A cell has the colour of its class, and is the
// paler the less there is in it. In SVG and PDF all cells are one image.
type Map struct {
	Title, XLabel, YLabel string
	To, High              float64 // the ends of the axes
	Columns, Rows         int
	Classes               []MapClass
	// Cell is the class of a cell, as an index of Classes, and how much is in it: from 0, for nothing, to 1. Rows count
	// from the bottom. Each cell is asked for once.
	Cell    func(column, row int) (class int, share float64)
	Caption string // as in Figure
}

// MapClass is a class of cells.
type MapClass struct {
	Name  string // in the legend
	Color int    // the number of a [Color]
}

// maxCells bounds the cells of a map.
const maxCells = 1 << 24

// Write draws the figure. It fails with [ErrEmpty] or [ErrTooLarge] before anything is written, or as w does.
func (m *Map) Write(w io.Writer, format string) error {
	if m.Columns < 1 || m.Rows < 1 || !(m.To > 0) || !(m.High > 0) {
		return ErrEmpty
	}
	if m.Columns > maxCells/m.Rows || math.IsInf(m.To, 0) || math.IsInf(m.High, 0) {
		return ErrTooLarge
	}
	img, used := m.paint()
	f := newBeside(m.Title, m.XLabel, m.YLabel, m.Caption)
	for i, class := range m.Classes {
		if used[i] {
			if err := f.addKey(class.Name, Color(class.Color)); err != nil {
				return err
			}
		}
	}
	f.plot.Add(plotter.NewImage(img, 0, 0, m.To, m.High))
	f.plot.X.Max, f.plot.Y.Max = m.To, m.High
	return f.write(w, format)
}

// paint paints the cells, and says which classes there are. Where cells are larger than a pixel of the picture, a cell
// is several pixels of the image: else their edges would be blurred.
func (m *Map) paint() (img *image.RGBA, used map[int]bool) {
	const acrossPixels, upPixels = 1200, 600
	across, up := 1+(acrossPixels-1)/m.Columns, 1+(upPixels-1)/m.Rows
	img, used = image.NewRGBA(image.Rect(0, 0, m.Columns*across, m.Rows*up)), map[int]bool{}
	for row := range m.Rows {
		for column := range m.Columns {
			class, share := m.Cell(column, row)
			paint := color.RGBA{0xff, 0xff, 0xff, 0xff}
			if share > 0 {
				used[class] = true
				paint = Tint(Color(m.Classes[class].Color), share)
			}
			x, y := column*across, (m.Rows-1-row)*up
			draw.Draw(img, image.Rect(x, y, x+across, y+up), image.NewUniform(paint), image.Point{}, draw.Src)
		}
	}
	return img, used
}

// Tint is a colour on white paper for a share that is more than 0: the whole colour for 1, and a quarter of it, which
// can still be seen, for the least.
func Tint(c color.RGBA, share float64) color.RGBA {
	const least = 0.25
	part := least + (1-least)*min(max(share, 0), 1)
	mix := func(v uint8) uint8 { return uint8(math.Round(0xff + part*(float64(v)-0xff))) }
	return color.RGBA{mix(c.R), mix(c.G), mix(c.B), 0xff}
}
