package gather

// This file draws which share of each tensor every step reads, from a pattern.

import (
	"fmt"
	"math"
	"slices"

	"github.com/dustin/go-humanize"

	"tensorcast/heatmap"
	"tensorcast/pattern"
	"tensorcast/trace/tables"
)

// phasePanels are the names of a heatmap's panels.
var phasePanels = [...]string{
	tables.PhaseWarmup: "warm-up", tables.PhasePrompt: "prompt", tables.PhaseGeneration: "generated tokens",
}

// Bounds of the memory that a heatmap takes.
const (
	maxValues = 48 << 20 // values of its matrix: 192 MiB
	maxDrawn  = 16 << 20 // cells that are drawn, of which each panel has at most heatmap.MaxColumns in a row
)

// checkDrawable says why a heatmap with a panel for each phase is too large to draw. Neither number is 0.
func checkDrawable(tensors, steps int) error {
	if tensors > maxValues/steps || tensors > maxDrawn/min(steps, len(phasePanels)*heatmap.MaxColumns) {
		return fmt.Errorf("%d tensors in %d steps are too many to draw", tensors, steps)
	}
	return nil
}

// AccessFigure has a row per tensor and a column per step, phase by phase. A value is the bytes read over
// the tensor's bytes. Rows are in the order of the first reads, or, with fileOrder, as in the model's
// file. The error says that there is too much to draw. The figure has no texts: AccessText makes them.
func AccessFigure(p *pattern.Pattern, fileOrder bool) (*heatmap.Figure, error) {
	rows := p.AccessOrder()
	if err := checkDrawable(len(rows), len(p.Steps)); err != nil {
		return nil, err
	}
	if fileOrder {
		slices.Sort(rows)
	}
	m := &heatmap.Matrix{}
	for _, r := range rows {
		m.Rows = append(m.Rows, tensorRow(&p.Structure[r]))
	}
	m.Values = make([]float32, len(rows)*len(p.Steps))
	sum := make([]int64, len(p.Structure))
	for phase, panel := range phasePanels {
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
				share := readShare(sum[tensor], p.Structure[tensor].Size, s.CutShort)
				m.Values[row*len(p.Steps)+len(m.Columns)] = share
			}
			m.Columns = append(m.Columns, heatmap.Column{Panel: panel, Number: number, Marked: p.Deviates(s)})
		}
	}
	return &heatmap.Figure{Matrix: m}, nil
}

// tensorRow labels a tensor's row: by its component within its layer's block, or by its whole name.
func tensorRow(t *tables.StructureRow) heatmap.Row {
	if t.Layer >= 0 {
		return heatmap.Row{Label: t.Component, Block: fmt.Sprintf("blk.%d", t.Layer)}
	}
	return heatmap.Row{Label: t.Name}
}

// readShare is the share of size bytes that was read. It is NaN for what a step that was cut short has not read: that
// was not observed.
func readShare(read, size int64, cutShort bool) float32 {
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

// AccessText is what is written around the matrix of an AccessFigure. Where all steps read the same, the figure shows
// nothing else: the subtitle says so, and names the command that shows more.
func AccessText(s *pattern.Summary, m *heatmap.Matrix, fileOrder bool, caption string) heatmap.Text {
	rows, per := orderText(fileOrder), "token"
	if s.Decodes != nil {
		per = "decode"
	}
	median := humanize.IBytes(uint64(s.BytesPerToken.Median))
	subtitle := fmt.Sprintf("%d tensors, %s, all rows as high; %d of them and %s read for each %s; %s",
		s.Tensors, rows, s.TensorsRead, median, per, s.Sequence)
	if stepsAlike(m, phasePanels[s.Phase()]) {
		subtitle = fmt.Sprintf("all %ss read as much of each tensor: `analyze heatmap` draws what differs; "+
			"%d tensors, %s, all rows as high; %s for each %s", per, s.Tensors, rows, median, per)
	}
	return heatmap.Text{
		Title:    s.Model + ": weights read per " + per,
		Subtitle: subtitle,
		Scale:    "Share of a tensor's bytes that a step reads (square-root scale; more than 100 % is drawn as 100 %)",
		Mark:     "sequence differs",
		Caption:  caption,
	}
}

// orderText says in which order a heatmap's rows are.
func orderText(fileOrder bool) string {
	if fileOrder {
		return "in the file's order"
	}
	return "first read first"
}

// stepsAlike says whether all steps of a panel have the same values, as far as these were observed.
func stepsAlike(m *heatmap.Matrix, panel string) bool {
	n := len(m.Columns)
	for row := range m.Rows {
		first := float32(math.NaN())
		for i, v := range m.Values[row*n : (row+1)*n] {
			if m.Columns[i].Panel != panel || v != v {
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
