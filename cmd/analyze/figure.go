package main

// This file turns a pattern into the matrix that the heatmap shows.

import (
	"fmt"
	"math"
	"slices"

	"github.com/dustin/go-humanize"

	"tensorcast/heatmap"
	"tensorcast/pattern"
	"tensorcast/trace/tables"
)

// Values of --order.
const (
	orderAccess = "access"
	orderFile   = "file"
)

var panelNames = [...]string{tables.PhaseWarmup: "warm-up", tables.PhasePrompt: "prompt", tables.PhaseGeneration: "generated tokens"}

// What bounds the memory of a heatmap: the values, at 192 MiB, and the cells that are drawn, of which each phase has at most 1200 columns.
const (
	maxValues = 48 << 20
	maxCells  = 16 << 20
)

// matrix has a row per tensor and a column per step, phase by phase. A value is the bytes read over the tensor's bytes. What a
// step that is cut short has not read was not observed.
func matrix(p *pattern.Pattern, order string) (*heatmap.Matrix, error) {
	m := &heatmap.Matrix{}
	rows := p.AccessOrder()
	if len(rows) > maxValues/len(p.Steps) || len(rows) > maxCells/min(len(p.Steps), 3*1200) {
		return nil, fmt.Errorf("%d tensors in %d steps are too many to draw", len(rows), len(p.Steps))
	}
	if order == orderFile {
		slices.Sort(rows)
	}
	for _, r := range rows {
		t := &p.Structure[r]
		row := heatmap.Row{Label: t.Name}
		if t.Layer >= 0 {
			row = heatmap.Row{Label: t.Component, Block: fmt.Sprintf("blk.%d", t.Layer)}
		}
		m.Rows = append(m.Rows, row)
	}
	m.Values = make([]float32, len(rows)*len(p.Steps))
	sum := make([]int64, len(p.Structure))
	for phase, panel := range panelNames {
		inPanel := 0
		for i := range p.Steps {
			s := &p.Steps[i]
			if s.Phase != tables.Phase(phase) {
				continue
			}
			number := inPanel
			if s.Phase == tables.PhaseGeneration {
				number = int(s.Token)
			}
			inPanel++
			clear(sum)
			s.AddBytes(sum)
			for row, tensor := range rows {
				m.Values[row*len(p.Steps)+len(m.Columns)] = share(sum[tensor], p.Structure[tensor].Size, s.CutShort)
			}
			m.Columns = append(m.Columns, heatmap.Column{Panel: panel, Number: number, Marked: p.Deviates(s)})
		}
	}
	return m, nil
}

func share(read, size int64, cutShort bool) float32 {
	switch {
	case read <= 0 && cutShort:
		return float32(math.NaN())
	case read <= 0:
		return 0
	case size <= 0:
		return 1
	}
	return float32(float64(read) / float64(size))
}

// figureText has caption as its last line. Where all tokens read the same, the figure shows just that, and says what shows more.
func figureText(s *pattern.Summary, m *heatmap.Matrix, order, caption string) heatmap.Text {
	rows := "first read first"
	if order == orderFile {
		rows = "in the file's order"
	}
	subtitle := fmt.Sprintf("%d tensors, %s, all rows as high; %d of them and %s read for each token; %s",
		s.Tensors, rows, s.TensorsRead, humanize.Bytes(uint64(s.BytesPerToken.Median)), s.Sequence)
	if alike(m) {
		subtitle = fmt.Sprintf("all tokens read as much of each tensor: `analyze heatmap` draws what differs; %d tensors, %s, all rows as high; %s for each token", s.Tensors, rows, humanize.Bytes(uint64(s.BytesPerToken.Median)))
	}
	return heatmap.Text{
		Title:    s.Model + ": weights read per token",
		Subtitle: subtitle,
		Scale:    "Share of a tensor's bytes that a step reads (square-root scale; more than 100 % is drawn as 100 %)",
		Mark:     "sequence differs",
		Caption:  caption,
	}
}

// alike says whether all steps that generate have the same values, as far as these were observed.
func alike(m *heatmap.Matrix) bool {
	n := len(m.Columns)
	for row := range m.Rows {
		first := float32(math.NaN())
		for i, v := range m.Values[row*n : (row+1)*n] {
			if m.Columns[i].Panel != panelNames[tables.PhaseGeneration] || v != v {
				continue
			}
			if first != first {
				first = v
			}
			if v != first {
				return false
			}
		}
	}
	return true
}
