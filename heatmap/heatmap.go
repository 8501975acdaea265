// Package heatmap draws a [Matrix] of shares, such as how much of each tensor a step reads, as a figure
// ([Write]). It uses the text and the canvases of gonum/plot. It does not know where the numbers come
// from.
//
// Cells are painted as whole pixels, and everything else is laid out around them. gonum's own vector
// cells make huge files, and its labels overlap at hundreds of rows. In SVG and PDF the cells of a panel
// are one image, and the rest are lines and letters.
package heatmap

import (
	"errors"
	"fmt"
	"io"
	"math"

	"tensorcast/internal/chart"
)

// This file defines what callers see, and merges the columns of long runs so that they fit a screen.

// Matrix is the content of a figure.
type Matrix struct {
	Rows    []Row
	Columns []Column
	// Values has len(Rows)*len(Columns) elements, row by row. A value is a share of the scale's end. 0
	// means "nothing", values above 1 are drawn as 1, and NaN means "not observed".
	Values []float32
}

// Row is a line of cells.
type Row struct {
	Label string
	// Block is the name of the group that the row belongs to, such as a layer; "" if it belongs to none.
	// Adjacent rows of the same block have one label together. If there is room, each row has its own
	// label, too.
	Block string
	// Weight makes rows differ in height. Each row has a third of the average height, and a share by
	// weight of the rest. If all weights are 0, all rows are equally high.
	Weight float64
}

// Column is a step.
type Column struct {
	Panel  string // adjacent columns of the same panel are drawn without a gap, under its name
	Number int    // shown on the axis
	Marked bool   // drawn with a mark, which Text.Mark explains
}

// Text is what is written around the cells. Texts that are too long for a line are broken into several.
type Text struct {
	Title    string
	Subtitle string
	Scale    string // what a value is
	Ticks    []Tick // of the scale, ascending; if there are none, shares from "> 0" to 100 %
	Nothing  string // what 0 means; if it is "", "not read"
	Mark     string // what a marked column is
	Caption  string // below the cells, in small letters: machine, time, command
	// Greatest says that a column that stands for several has the greatest of their values, not the mean.
	Greatest bool
}

// Tick is a mark on the scale: its share of the scale's end, and its label.
type Tick struct {
	Share float64
	Label string
}

var shareTicks = []Tick{
	{0, "> 0"},
	{0.01, "1 %"},
	{0.05, "5 %"},
	{0.1, "10 %"},
	{0.25, "25 %"},
	{0.5, "50 %"},
	{1, "100 %"},
}

// MaxColumns is the greatest number of columns that a panel shows one by one.
const MaxColumns = 1200

// MaxRows limits the image to a size that viewers can open.
const MaxRows = 20000

// Write draws m in one of [chart.Formats]. If a panel has more than MaxColumns columns, groups of equally
// many neighbours are merged. A merged cell has the mean, or the greatest, of the observed values, and a
// merged column is marked if any of its columns is. An image of 1000 tensors takes about 20 MB of memory,
// for any number of steps.
func Write(w io.Writer, m *Matrix, text Text, format string) error {
	if len(m.Rows) == 0 || len(m.Columns) == 0 {
		return errors.New("draw heatmap: there is nothing to draw")
	}
	if len(m.Values) != len(m.Rows)*len(m.Columns) {
		return fmt.Errorf("draw heatmap: %d values for %d rows and %d columns", len(m.Values), len(m.Rows),
			len(m.Columns))
	}
	if len(m.Rows) > MaxRows {
		return fmt.Errorf("draw heatmap: %d rows, at most %d can be drawn", len(m.Rows), MaxRows)
	}
	fig := layOut(m, text)
	canvas, err := chart.NewCanvas(format, fig.canvasLength(fig.width), fig.canvasLength(fig.height))
	if err != nil {
		return fmt.Errorf("draw heatmap: %w", err)
	}
	fig.paintOn(canvas)
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("write heatmap: %w", err)
	}
	return nil
}

// panel is a run of columns with a common name, reduced to at most MaxColumns.
type panel struct {
	name   string
	first  int // the first column of the matrix
	merged int // columns of the matrix per column of the panel
	cells  [][]float32
	number []int // of the first column that was merged
	marked []bool
}

func splitPanels(m *Matrix, fold func([]float32) float32) []panel {
	var ps []panel
	for from := 0; from < len(m.Columns); {
		to := from
		for to < len(m.Columns) && m.Columns[to].Panel == m.Columns[from].Panel {
			to++
		}
		ps = append(ps, mergeColumns(m, from, to, fold))
		from = to
	}
	return ps
}

func mergeColumns(m *Matrix, from, to int, fold func([]float32) float32) panel {
	p := panel{name: m.Columns[from].Panel, first: from, merged: (to - from + MaxColumns - 1) / MaxColumns}
	for c := from; c < to; c += p.merged {
		end := min(c+p.merged, to)
		marked := false
		for i := c; i < end; i++ {
			marked = marked || m.Columns[i].Marked
		}
		p.number = append(p.number, m.Columns[c].Number)
		p.marked = append(p.marked, marked)
	}
	p.cells = make([][]float32, len(m.Rows))
	for r := range p.cells {
		line := m.Values[r*len(m.Columns) : (r+1)*len(m.Columns)]
		for c := from; c < to; c += p.merged {
			p.cells[r] = append(p.cells[r], fold(line[c:min(c+p.merged, to)]))
		}
	}
	return p
}

// meanOf is the mean of the observed values; NaN if there are none. Values above 1 count as 1.
func meanOf(values []float32) float32 {
	sum, n := 0.0, 0
	for _, v := range values {
		if !isNaN(v) {
			sum += min(float64(v), 1)
			n++
		}
	}
	if n == 0 {
		return float32(math.NaN())
	}
	return float32(sum / float64(n))
}

// greatestOf is the greatest of the observed values; NaN if there are none.
func greatestOf(values []float32) float32 {
	most := float32(math.NaN())
	for _, v := range values {
		if !isNaN(v) && !(most >= v) {
			most = v
		}
	}
	return most
}

func isNaN(v float32) bool { return v != v }

// Figure is a matrix with what is written around it.
type Figure struct {
	Matrix *Matrix
	Text   Text
}

// Write draws the figure in one of [chart.Formats]; see the function [Write].
func (f *Figure) Write(w io.Writer, format string) error { return Write(w, f.Matrix, f.Text, format) }
