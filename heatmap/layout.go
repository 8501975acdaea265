package heatmap

// This file computes the layout of a figure. All lengths are pixels from the top left corner.

import (
	"image/draw"
	"math"
	"slices"
	"sort"
	"strconv"

	"golang.org/x/image/font"
	plotfont "gonum.org/v1/plot/font"
	"gonum.org/v1/plot/font/liberation"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"

	"tensorcast/internal/chart"
)

const (
	dpi        = chart.DPI
	margin     = 28
	minWidth   = 1060 // enough for the legend
	gridWidth  = 1000 // cells are sized to fill this width
	gridHeight = 1200
	panelGap   = 16
	labelGap   = 10 // between a label and what it labels
	leader     = 22 // room for the lines from labels that had to move
	tickLength = 7
	maxLabel   = 300 // a longer label is cut
	rowText    = 16  // least height of a row that has its own label
	markHeight = 11
	barWidth   = 440
	barHeight  = 18
)

// style is a font size in points and a weight.
type style struct {
	size float64
	bold bool
}

var (
	titleStyle = style{13, true}
	bodyStyle  = style{9, false}
	headStyle  = style{9, true}
	smallStyle = style{7.5, false}
)

// layout says where everything in a figure lies, and paints it.
type layout struct {
	canvas        vg.Canvas
	pixels        draw.Image // where rectangles are painted; nil: on canvas, which has no pixels
	handler       text.Plain
	width, height int

	matrix *Matrix
	text   Text
	panels []panel
	// Lines of the title, of what is below it, of what a value is, and of the caption.
	title, subtitle, scale, caption []string

	left, top, bottom int   // edges of the cells, of all panels
	panelLeft         []int // left edge of each panel
	cellWidth         []int // width of a cell in each panel
	rowTop            []int // top edge of each row
	rowHeight         []int // height of each row
	rowLabels         bool  // each row has its own label
	blockWidth        int   // width of the column of block labels, if rowLabels
	scaleTop          int   // top edge of the legend
	labels            []label
}

// label is a text to the left of the cells, for rows first to last.
type label struct {
	text        string
	first, last int
	middle      int // vertical centre of the text
}

func layOut(m *Matrix, t Text) *layout {
	fold := meanOf
	if t.Greatest {
		fold = greatestOf
	}
	f := &layout{
		matrix: m, text: t, panels: splitPanels(m, fold),
		handler: text.Plain{Fonts: plotfont.NewCache(liberation.Collection())},
	}
	f.rowHeight = rowHeights(m.Rows)
	least := slices.Min(f.rowHeight)
	f.rowLabels = least >= rowText
	blocks := groupBlocks(m.Rows)

	// From top to bottom: title, subtitle, legend, panel names, cells, ticks.
	f.title, f.subtitle = f.wrap(t.Title, titleStyle), f.wrap(t.Subtitle, bodyStyle)
	f.scale, f.caption = f.wrap(t.Scale, bodyStyle), f.wrap(t.Caption, smallStyle)
	f.scaleTop = margin + len(f.title)*f.lineHeight(titleStyle) + len(f.subtitle)*f.lineHeight(bodyStyle) + 16
	f.top = f.scaleTop + len(f.scale)*f.lineHeight(bodyStyle) + 6 + barHeight + tickLength +
		f.lineHeight(smallStyle) + 18 + f.lineHeight(headStyle) + markHeight + 6
	y, gap := f.top, 1
	if least >= 8 {
		gap = 4
	}
	f.rowTop = make([]int, len(m.Rows))
	for i, b := range blocks {
		if i > 0 && (m.Rows[b.first].Block != "" || m.Rows[b.first-1].Block != "") {
			y += gap
		}
		for r := b.first; r <= b.last; r++ {
			f.rowTop[r] = y
			y += f.rowHeight[r]
		}
	}
	f.bottom = y
	f.height = f.bottom + tickLength + 4 + f.lineHeight(smallStyle) + margin
	f.height += len(f.caption) * f.lineHeight(smallStyle)

	f.placeLabels(blocks)
	f.left = margin + f.labelWidth(blocks)

	// From left to right: labels, panels.
	widest := 0
	for _, p := range f.panels {
		widest = max(widest, len(p.number))
	}
	cell := min(max(gridWidth/widest, 1), 100)
	x := f.left
	for i, p := range f.panels {
		if i > 0 {
			x += panelGap
		}
		// Narrow panels are widened to fit their names.
		own := max(cell, ceilDiv(f.textWidth(f.panelName(p), headStyle), len(p.number)))
		f.panelLeft, f.cellWidth = append(f.panelLeft, x), append(f.cellWidth, own)
		x += own * len(p.number)
	}
	f.width = max(x+margin, minWidth)
	return f
}

// wrap breaks a text into lines that fit the narrowest figure: how wide this one becomes depends on its labels.
func (f *layout) wrap(s string, st style) []string {
	const most = 6
	return chart.Wrap(s, most, func(line string) bool { return f.textWidth(line, st) <= minWidth-2*margin })
}

// rowHeights are the heights of rows in pixels: all the same, or by weight.
func rowHeights(rows []Row) []int {
	each := rowHeight(len(rows))
	heights, sum := make([]int, len(rows)), 0.0
	for _, r := range rows {
		sum += max(r.Weight, 0)
	}
	for i, r := range rows {
		heights[i] = each
		if sum > 0 && !math.IsInf(sum, 0) {
			least := max(each/3, min(each, 2))
			heights[i] = least + int(math.Round(float64((each-least)*len(rows))*max(r.Weight, 0)/sum))
		}
	}
	return heights
}

func rowHeight(rows int) int {
	floor := 3
	switch {
	case rows > 4000:
		floor = 1
	case rows > 1500:
		floor = 2
	}
	return min(max(gridHeight/rows, floor), 28)
}

func (f *layout) panelName(p panel) string {
	if p.merged > 1 {
		fold := "mean"
		if f.text.Greatest {
			fold = "greatest"
		}
		return p.name + " (each column is the " + fold + " of " + strconv.Itoa(p.merged) + ")"
	}
	return p.name
}

// groupBlocks makes labels of rows: one for each block, and one for each row without a block.
func groupBlocks(rows []Row) []label {
	var bs []label
	for i, r := range rows {
		if n := len(bs); r.Block != "" && n > 0 && rows[i-1].Block == r.Block {
			bs[n-1].last = i
			continue
		}
		b := label{text: r.Block, first: i, last: i}
		if r.Block == "" {
			b.text = r.Label
		}
		bs = append(bs, b)
	}
	return bs
}

// placeLabels chooses which labels are written so that none overlap. Rows without a block come first, as
// they are few and cannot be guessed from their neighbours. Of the blocks, every k-th is labelled.
func (f *layout) placeLabels(blocks []label) {
	if f.rowLabels {
		for i, r := range f.matrix.Rows {
			f.labels = append(f.labels, label{text: r.Label, first: i, last: i, middle: f.rowTop[i] + f.rowHeight[i]/2})
		}
		return
	}
	line := f.lineHeight(smallStyle)
	room := max((f.bottom-f.top)/line, 1)
	var alone, grouped int
	for _, b := range blocks {
		if f.matrix.Rows[b.first].Block == "" {
			alone++
		} else {
			grouped++
		}
	}
	everyAlone := ceilDiv(alone, max(room/2, 1))
	kept := 0
	if alone > 0 {
		kept = ceilDiv(alone, everyAlone)
	}
	// A distance of twice the line height between blocks is easier to read than a solid column of text.
	everyBlock := niceStep(ceilDiv(grouped, max(room*2/3-kept, 1)))
	alone, grouped = 0, 0
	for _, b := range blocks {
		b.middle = (f.rowTop[b.first] + f.rowTop[b.last] + f.rowHeight[b.last]) / 2
		if f.matrix.Rows[b.first].Block == "" {
			if alone%everyAlone == 0 {
				f.labels = append(f.labels, b)
			}
			alone++
			continue
		}
		if grouped%everyBlock == 0 {
			f.labels = append(f.labels, b)
		}
		grouped++
	}
	spreadLabels(f.labels, line, f.top+line/2, f.bottom-line/2)
}

// spreadLabels moves labels so that neighbours are at least line apart, and that all are between low and
// high, if they fit. It first moves each label down as far as necessary. Then it moves labels up, from
// the last to the first.
func spreadLabels(labels []label, line, low, high int) {
	next := low
	for i := range labels {
		labels[i].middle = max(labels[i].middle, next)
		next = labels[i].middle + line
	}
	next = max(high, low+(len(labels)-1)*line)
	for i := len(labels) - 1; i >= 0; i-- {
		labels[i].middle = min(labels[i].middle, next)
		next = labels[i].middle - line
	}
}

// labelWidth is the width of what is left of the cells. It shortens labels that are too long.
func (f *layout) labelWidth(blocks []label) int {
	width := 0
	for i := range f.labels {
		f.labels[i].text = f.shorten(f.labels[i].text, smallStyle, maxLabel)
		width = max(width, f.textWidth(f.labels[i].text, smallStyle))
	}
	if !f.rowLabels {
		return width + labelGap + leader
	}
	for _, b := range blocks {
		if f.matrix.Rows[b.first].Block != "" {
			f.blockWidth = max(f.blockWidth, f.textWidth(f.shorten(b.text, smallStyle, maxLabel/2), smallStyle))
		}
	}
	if f.blockWidth > 0 {
		f.blockWidth += 2 * labelGap
	}
	return f.blockWidth + width + labelGap
}

// shorten cuts s in the middle until it is no wider than width.
func (f *layout) shorten(s string, st style, width int) string {
	if f.textWidth(s, st) <= width {
		return s
	}
	r := []rune(s)
	cut := func(keep int) string { return string(r[:(keep+1)/2]) + "…" + string(r[len(r)-keep/2:]) }
	return cut(sort.Search(len(r)-1, func(keep int) bool { return f.textWidth(cut(keep+1), st) > width }))
}

func (f *layout) font(st style) plotfont.Font {
	ft := plotfont.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(st.size)}
	if st.bold {
		ft.Weight = font.WeightBold
	}
	return ft
}

func (f *layout) textWidth(s string, st style) int {
	w, _, _ := f.handler.Box(s, f.font(st))
	return int(math.Ceil(w.Dots(dpi)))
}

func (f *layout) lineHeight(st style) int { return int(math.Ceil(st.size / 72 * dpi * 1.25)) }

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// niceStep is the smallest of 1, 2, 5, 10, 20, 50, ... that is at least n.
func niceStep(n int) int {
	for p := 1; ; p *= 10 {
		for _, k := range [...]int{1, 2, 5} {
			if k*p >= n {
				return k * p
			}
		}
	}
}
