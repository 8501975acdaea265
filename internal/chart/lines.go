package chart

// This file breaks titles and captions into lines that fit a figure's width.

import (
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Wrap breaks a text into lines that fit: at spaces, or within words that are longer than a line. Line feeds begin a
// line, too. Of more than most lines, the last ends with an ellipsis. Without a text there are no lines.
func Wrap(s string, most int, fits func(line string) bool) (lines []string) {
	for paragraph := range strings.SplitSeq(s, "\n") {
		line := ""
		for _, word := range strings.Fields(paragraph) {
			if line != "" && fits(line+" "+word) {
				line += " " + word
				continue
			}
			if line != "" {
				lines = append(lines, line)
			}
			for line = word; !fits(line); {
				head := longestHead(line, fits)
				if head == line { // one character, which is wider than a line
					break
				}
				lines, line = append(lines, head), line[len(head):]
			}
		}
		if line != "" {
			lines = append(lines, line)
		}
	}
	if len(lines) > most {
		lines = lines[:most]
		last := []rune(lines[most-1])
		for len(last) > 1 && !fits(string(last)+"…") {
			last = last[:len(last)-1]
		}
		lines[most-1] = string(last) + "…"
	}
	return lines
}

// longestHead is the longest beginning of a word that fits, and at least one character.
func longestHead(word string, fits func(string) bool) string {
	end := len(word)
	for i := range word {
		if i > 0 && !fits(word[:i]) {
			break
		}
		if i > 0 {
			end = i
		}
	}
	if end == len(word) { // not even two characters fit
		for i := range word {
			if i > 0 {
				return word[:i]
			}
		}
	}
	return word[:end]
}

// paragraph is lines of a style, as wide as a figure.
type paragraph struct {
	lines  []string
	style  text.Style
	each   vg.Length // the height of a line
	center bool
}

// Bounds of lines: commands may be as long as a book.
const (
	mostTitleLines   = 3
	mostCaptionLines = 6
)

// sideMargin is left free on both sides of titles and captions together.
const sideMargin vg.Length = 20

// wrapCaption breaks a caption into lines.
func wrapCaption(s string, wide vg.Length) paragraph {
	style := newPlot("", "").X.Label.TextStyle
	style.Font.Size, style.XAlign, style.YAlign = vg.Points(8), draw.XLeft, draw.YBottom
	fits := func(line string) bool { return style.Width(line) <= wide-sideMargin }
	return paragraph{lines: Wrap(s, mostCaptionLines, fits), style: style, each: vg.Points(11)}
}

// wrapTitle breaks a title into lines.
func wrapTitle(s string, wide vg.Length) paragraph {
	style := newPlot("", "").Title.TextStyle
	style.Font.Size, style.XAlign, style.YAlign = vg.Points(13), draw.XLeft, draw.YBottom
	fits := func(line string) bool { return style.Width(line) <= wide-sideMargin }
	return paragraph{lines: Wrap(s, mostTitleLines, fits), style: style, each: vg.Points(17), center: true}
}

// drawTitled draws a plot with a title above its axes, in so many lines as it needs. A title of gonum's own takes much
// more room than its lines.
func drawTitled(p *plot.Plot, title string, at draw.Canvas) {
	lines := wrapTitle(title, at.Rectangle.Size().X)
	lines.drawOn(draw.Crop(at, 0, 0, at.Rectangle.Size().Y-lines.height()-vg.Points(2), 0))
	p.Draw(draw.Crop(at, 0, 0, 0, -lines.height()-vg.Points(4)))
}

// height is that of all lines with a margin; 0 of none.
func (p *paragraph) height() vg.Length {
	if len(p.lines) == 0 {
		return 0
	}
	return p.each*vg.Length(len(p.lines)) + vg.Points(5)
}

// drawOn draws the lines at the bottom of a canvas.
func (p *paragraph) drawOn(c draw.Canvas) {
	wide := c.Rectangle.Size().X
	y := c.Min.Y + vg.Points(6) + p.each*vg.Length(len(p.lines)-1)
	for _, line := range p.lines {
		x := c.Min.X + sideMargin/2
		if p.center {
			x = c.Min.X + (wide-p.style.Width(line))/2
		}
		c.FillText(p.style, vg.Point{X: x, Y: y}, line)
		y -= p.each
	}
}
