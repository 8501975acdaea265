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
	leader     = 22 // space for the lines from labels that had to move
	tickLength = 7
	maxLabel   = 300 // a longer label is cut
	rowText    = 16  // least height of a row with its own label
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

// figure is a laid-out figure.
type figure struct {
	canvas        vg.Canvas
	pixels        draw.Image // where rectangles are painted; nil: on canvas, which has no pixels
	handler       text.Plain
	width, height int

	m      *Matrix
	text   Text
	panels []panel

	left, top, bottom int   // edges of the cells
	x                 []int // left edge of each panel
	cell              []int // width of a cell in each panel
	y                 []int // top edge of each row
	rows              []int // height of each row
	rowLabels         bool  // each row has its own label
	blockWidth        int   // width of the column of block labels, if rowLabels
	scaleTop          int   // top edge of the legend
	labels            []label
}

// label is a text to the left of the cells, for rows first to last.
type label struct {
	text        string
	first, last int
	at          int // vertical centre of the text
}

func layOut(m *Matrix, t Text) *figure {
	fold := mean
	if t.Greatest {
		fold = greatest
	}
	f := &figure{
		m: m, text: t, panels: panels(m, fold),
		handler: text.Plain{Fonts: plotfont.NewCache(liberation.Collection())},
	}
	f.rows = rowHeights(m.Rows)
	least := slices.Min(f.rows)
	f.rowLabels = least >= rowText
	blocks := blocks(m.Rows)

	// Vertically: title, subtitle, legend, panel names, cells, ticks.
	f.scaleTop = margin + f.lineHeight(titleStyle) + f.lineHeight(bodyStyle) + 16
	f.top = f.scaleTop + f.lineHeight(bodyStyle) + 6 + barHeight + tickLength + f.lineHeight(smallStyle) + 18 +
		f.lineHeight(headStyle) + markHeight + 6
	y, gap := f.top, 1
	if least >= 8 {
		gap = 4
	}
	f.y = make([]int, len(m.Rows))
	for i, b := range blocks {
		if i > 0 && (m.Rows[b.first].Block != "" || m.Rows[b.first-1].Block != "") {
			y += gap
		}
		for r := b.first; r <= b.last; r++ {
			f.y[r] = y
			y += f.rows[r]
		}
	}
	f.bottom = y
	f.height = f.bottom + tickLength + 4 + f.lineHeight(smallStyle) + margin
	if t.Caption != "" {
		f.height += f.lineHeight(smallStyle)
	}

	f.placeLabels(blocks)
	f.left = margin + f.labelWidth(blocks)

	// Horizontally: labels, panels.
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
		// Narrow panels are widened to fit their name.
		own := max(cell, ceilDiv(f.textWidth(f.panelName(p), headStyle), len(p.number)))
		f.x, f.cell = append(f.x, x), append(f.cell, own)
		x += own * len(p.number)
	}
	f.width = max(x+margin, minWidth)
	return f
}

// rowHeights are uniform, or follow weights.
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

func (f *figure) panelName(p panel) string {
	if p.merged > 1 {
		fold := "mean"
		if f.text.Greatest {
			fold = "greatest"
		}
		return p.name + " (each column is the " + fold + " of " + strconv.Itoa(p.merged) + ")"
	}
	return p.name
}

// blocks groups rows into labels, one per block or single row.
func blocks(rows []Row) []label {
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

// placeLabels chooses which labels are written so that none overlap. Rows without a block come first:
// they are few, and cannot be guessed from their neighbours. Of the blocks, every k-th is labelled.
func (f *figure) placeLabels(blocks []label) {
	if f.rowLabels {
		for i, r := range f.m.Rows {
			f.labels = append(f.labels, label{text: r.Label, first: i, last: i, at: f.y[i] + f.rows[i]/2})
		}
		return
	}
	line := f.lineHeight(smallStyle)
	room := max((f.bottom-f.top)/line, 1)
	var alone, grouped int
	for _, b := range blocks {
		if f.m.Rows[b.first].Block == "" {
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
		b.at = (f.y[b.first] + f.y[b.last] + f.rows[b.last]) / 2
		if f.m.Rows[b.first].Block == "" {
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
	spread(f.labels, line, f.top+line/2, f.bottom-line/2)
}

// spread moves labels so that neighbours are at least line apart and all are between low and high, if
// they fit. It first moves each label down as far as necessary, then, from the last to the first, up.
func spread(labels []label, line, low, high int) {
	next := low
	for i := range labels {
		labels[i].at = max(labels[i].at, next)
		next = labels[i].at + line
	}
	next = max(high, low+(len(labels)-1)*line)
	for i := len(labels) - 1; i >= 0; i-- {
		labels[i].at = min(labels[i].at, next)
		next = labels[i].at - line
	}
}

// labelWidth is the width needed left of the cells. It shortens labels that are too long.
func (f *figure) labelWidth(blocks []label) int {
	width := 0
	for i := range f.labels {
		f.labels[i].text = f.fit(f.labels[i].text, smallStyle, maxLabel)
		width = max(width, f.textWidth(f.labels[i].text, smallStyle))
	}
	if !f.rowLabels {
		return width + labelGap + leader
	}
	for _, b := range blocks {
		if f.m.Rows[b.first].Block != "" {
			f.blockWidth = max(f.blockWidth, f.textWidth(f.fit(b.text, smallStyle, maxLabel/2), smallStyle))
		}
	}
	if f.blockWidth > 0 {
		f.blockWidth += 2 * labelGap
	}
	return f.blockWidth + width + labelGap
}

// fit shortens s in the middle until it is no wider than width.
func (f *figure) fit(s string, st style, width int) string {
	if f.textWidth(s, st) <= width {
		return s
	}
	r := []rune(s)
	cut := func(keep int) string { return string(r[:(keep+1)/2]) + "…" + string(r[len(r)-keep/2:]) }
	return cut(sort.Search(len(r)-1, func(keep int) bool { return f.textWidth(cut(keep+1), st) > width }))
}

func (f *figure) font(st style) plotfont.Font {
	ft := plotfont.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(st.size)}
	if st.bold {
		ft.Weight = font.WeightBold
	}
	return ft
}

func (f *figure) textWidth(s string, st style) int {
	w, _, _ := f.handler.Box(s, f.font(st))
	return int(math.Ceil(w.Dots(dpi)))
}

func (f *figure) lineHeight(st style) int { return int(math.Ceil(st.size / 72 * dpi * 1.25)) }

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
