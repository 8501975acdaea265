package heatmap

// This file paints a figure.

import (
	"image"
	"image/color"
	"image/draw"
	"math"
	"strconv"

	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/vgimg"
)

// paintOn paints the figure on a canvas, which may have pixels or not.
func (f *layout) paintOn(canvas vg.Canvas) {
	f.canvas = canvas
	if png, ok := canvas.(vgimg.PngCanvas); ok {
		f.pixels = png.Image()
	}
	f.drawLines(f.drawLines(margin, f.title, titleStyle), f.subtitle, bodyStyle)
	f.paintLegend()
	f.paintLabels()
	for i := range f.panels {
		f.paintPanel(i)
	}
	f.drawLines(f.height-margin/2-len(f.caption)*f.lineHeight(smallStyle), f.caption, smallStyle)
}

// drawLines writes lines from y downwards, and returns where the next line would begin.
func (f *layout) drawLines(y int, lines []string, st style) (below int) {
	for _, line := range lines {
		f.drawText(margin, y+f.lineHeight(st)/2, line, st, text.XLeft, ink)
		y += f.lineHeight(st)
	}
	return y
}

func (f *layout) paintPanel(i int) {
	p, x, cell := f.panels[i], f.panelLeft[i], f.cellWidth[i]
	right := x + cell*len(p.number)
	f.fillBox(x-1, f.top-1, right+1, f.bottom+1, frame)
	f.fillBox(x, f.top, right, f.bottom, white)
	f.paintPixels(image.Rect(x, f.top, right, f.bottom), func() { f.paintCells(i) })
	for c, marked := range p.marked {
		if marked {
			f.paintMark(x+c*cell+cell/2, f.top-4)
		}
	}
	f.drawText(x, f.top-markHeight-6-f.lineHeight(headStyle)/2, f.panelName(p), headStyle, text.XLeft, ink)
	f.paintTicks(i)
}

// paintCells paints the cells of a panel. Large cells are separated by white lines.
func (f *layout) paintCells(i int) {
	x, cell := f.panelLeft[i], f.cellWidth[i]
	across := 0
	if cell >= 8 {
		across = 1
	}
	for r, values := range f.panels[i].cells {
		down := 0
		if f.rowHeight[r] >= 8 {
			down = 1
		}
		for c, v := range values {
			f.paintCell(image.Rect(x+c*cell, f.rowTop[r], x+(c+1)*cell-across, f.rowTop[r]+f.rowHeight[r]-down), v)
		}
	}
}

// paintPixels calls paint, which paints rectangles within at as pixels. A canvas that has no pixels gets
// the rectangles as one image.
func (f *layout) paintPixels(rect image.Rectangle, paint func()) {
	if f.pixels != nil {
		paint()
		return
	}
	img := image.NewRGBA(rect)
	f.pixels = img
	paint()
	f.pixels = nil
	f.canvas.DrawImage(vg.Rectangle{
		Min: f.canvasPoint(rect.Min.X, rect.Max.Y), Max: f.canvasPoint(rect.Max.X, rect.Min.Y),
	},
		img)
}

// paintCell paints a cell. It needs pixels: see paintPixels.
func (f *layout) paintCell(rect image.Rectangle, v float32) {
	if !isNaN(v) {
		f.fillRect(rect, cellColor(v))
		return
	}
	f.fillRect(rect, notObserved)
	for y := rect.Min.Y; y < rect.Max.Y; y++ {
		for x := rect.Min.X; x < rect.Max.X; x++ {
			if (x+y)%6 == 0 {
				f.pixels.Set(x, y, frame)
			}
		}
	}
}

// paintTicks numbers the columns of a panel. A panel with a single step gets no numbers.
func (f *layout) paintTicks(i int) {
	p, x, cell := f.panels[i], f.panelLeft[i], f.cellWidth[i]
	last := len(p.number) - 1
	if last == 0 && i != len(f.panels)-1 {
		return
	}
	// The numbers increase, so the last one is the widest.
	room := f.textWidth(strconv.Itoa(p.number[last]), smallStyle) + 18
	step := niceStep(max(ceilDiv(room*p.merged, cell), 1))
	for c, n := range p.number {
		// A merged column stands for the number n and those after it.
		if tick := ceilDiv(n, step) * step; n != tick && (tick >= n+p.merged || p.merged == 1) {
			continue
		}
		middle := x + c*cell + cell/2
		f.fillBox(middle, f.bottom+2, middle+1, f.bottom+2+tickLength, faint)
		f.drawText(middle, f.bottom+4+tickLength+f.lineHeight(smallStyle)/2, strconv.Itoa(ceilDiv(n, step)*step),
			smallStyle,
			text.XCenter, ink)
	}
}

// paintMark draws a triangle that points down to (x, y).
func (f *layout) paintMark(x, y int) {
	for d := range markHeight {
		f.fillBox(x-d/2, y-d, x+d/2+1, y-d+1, markColor)
	}
}

func (f *layout) paintLabels() {
	for _, l := range f.labels {
		right := f.left - labelGap
		if !f.rowLabels {
			right -= leader
			// A bracket along the rows, and a line to the text, which may have been moved.
			x, middle := f.left-6, (f.rowTop[l.first]+f.rowTop[l.last]+f.rowHeight[l.last])/2
			if l.last > l.first {
				f.fillBox(x, f.rowTop[l.first], x+1, f.rowTop[l.last]+f.rowHeight[l.last], faint)
			} else {
				f.fillBox(x, middle, x+4, middle+1, faint)
			}
			f.drawLine(right+4, l.middle, x, middle, faint)
		}
		f.drawText(right, l.middle, l.text, smallStyle, text.XRight, ink)
	}
	if !f.rowLabels {
		return
	}
	for _, b := range groupBlocks(f.matrix.Rows) {
		if f.matrix.Rows[b.first].Block == "" {
			continue
		}
		top, bottom := f.rowTop[b.first], f.rowTop[b.last]+f.rowHeight[b.last]
		x := margin + f.blockWidth - labelGap
		f.fillBox(x, top+1, x+1, bottom-1, faint)
		f.drawText(x-labelGap/2-2, (top+bottom)/2, f.shorten(b.text, smallStyle, maxLabel/2), smallStyle, text.XRight,
			ink)
	}
}

// placeLabel returns where the label of a tick at x begins: in the middle below it, or within the scale at its ends. It
// gives way to the right of what is taken already; there is room beyond the scale.
func placeLabel(x, width int, share float64, taken int) (left int) {
	switch {
	case share <= 0:
		left = x
	case share >= 1:
		left = x + 1 - width
	default:
		left = x - width/2
	}
	if taken > 0 {
		left = max(left, taken+labelGap)
	}
	return left
}

func (f *layout) paintLegend() {
	y := f.drawLines(f.scaleTop, f.scale, bodyStyle) + 6
	f.fillBox(margin-1, y-1, margin+barWidth+1, y+barHeight+1, frame)
	for x := range barWidth {
		f.fillBox(margin+x, y, margin+x+1, y+barHeight, scaleColor(float64(x)/(barWidth-1)))
	}
	ticks := f.text.Ticks
	if ticks == nil {
		ticks = shareTicks
	}
	taken := 0 // by the labels so far: the end of the last one
	for _, t := range ticks {
		x := margin + int(math.Round(scalePosition(t.Share)*(barWidth-1)))
		f.fillBox(x, y+barHeight+1, x+1, y+barHeight+1+tickLength, faint)
		width := f.textWidth(t.Label, smallStyle)
		left := placeLabel(x, width, t.Share, taken)
		f.drawText(left, y+barHeight+tickLength+f.lineHeight(smallStyle)/2, t.Label, smallStyle, text.XLeft, ink)
		taken = left + width
	}
	x := margin + barWidth + 40
	middle := y + barHeight/2
	const swatch = 2 * barHeight
	entry := func(name string, paint func(image.Rectangle)) {
		paint(image.Rect(x, y, x+swatch, y+barHeight))
		x += swatch + labelGap
		f.drawText(x, middle, name, bodyStyle, text.XLeft, ink)
		x += f.textWidth(name, bodyStyle) + 30
	}
	framed := func(v float32) func(image.Rectangle) {
		return func(rect image.Rectangle) {
			f.fillRect(rect.Inset(-1), frame)
			f.paintPixels(rect, func() { f.paintCell(rect, v) })
		}
	}
	nothing := f.text.Nothing
	if nothing == "" {
		nothing = "not read"
	}
	entry(nothing, framed(0))
	if f.hasUnobserved() {
		entry("not observed", framed(float32(math.NaN())))
	}
	if f.hasMarks() {
		entry(f.text.Mark, func(rect image.Rectangle) { f.paintMark(rect.Min.X+swatch/2, rect.Max.Y-3) })
	}
}

func (f *layout) hasUnobserved() bool {
	for _, v := range f.matrix.Values {
		if isNaN(v) {
			return true
		}
	}
	return false
}

func (f *layout) hasMarks() bool {
	for _, c := range f.matrix.Columns {
		if c.Marked {
			return true
		}
	}
	return false
}

// drawText writes one line of text, vertically centred on y. Text that would exceed the figure's right
// edge is shortened.
func (f *layout) drawText(x, y int, s string, st style, align text.XAlignment, c color.Color) {
	if align == text.XLeft {
		s = f.shorten(s, st, f.width-x-margin/2)
	}
	sty := text.Style{Color: c, Font: f.font(st), XAlign: align, YAlign: text.YCenter, Handler: f.handler}
	f.handler.Draw(f.canvas, s, sty, f.canvasPoint(x, y))
}

func (f *layout) drawLine(x0, y0, x1, y1 int, c color.Color) {
	f.canvas.SetColor(c)
	f.canvas.SetLineWidth(vg.Length(1) / dpi * vg.Inch)
	var p vg.Path
	p.Move(f.canvasPoint(x0, y0))
	p.Line(f.canvasPoint(x1, y1))
	f.canvas.Stroke(p)
}

// canvasPoint converts a pixel to the canvas's coordinates, which are points of 1/72 inch from the bottom
// left corner.
func (f *layout) canvasPoint(x, y int) vg.Point {
	return vg.Point{X: f.canvasLength(x), Y: f.canvasLength(f.height - y)}
}

// canvasLength is the length of so many pixels.
func (f *layout) canvasLength(pixels int) vg.Length { return vg.Length(pixels) / dpi * vg.Inch }

func (f *layout) fillBox(x0, y0, x1, y1 int, c color.Color) {
	f.fillRect(image.Rect(x0, y0, x1, y1), c)
}

func (f *layout) fillRect(r image.Rectangle, c color.Color) {
	if f.pixels != nil {
		draw.Draw(f.pixels, r, image.NewUniform(c), image.Point{}, draw.Src)
		return
	}
	from, to := f.canvasPoint(r.Min.X, r.Max.Y), f.canvasPoint(r.Max.X, r.Min.Y)
	var p vg.Path
	p.Move(from)
	p.Line(vg.Point{X: to.X, Y: from.Y})
	p.Line(to)
	p.Line(vg.Point{X: from.X, Y: to.Y})
	p.Close()
	f.canvas.SetColor(c)
	f.canvas.Fill(p)
}
