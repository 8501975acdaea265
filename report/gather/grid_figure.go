package gather

// This file draws a grid of tensors and steps, and makes a table of it.

import (
	"fmt"
	"math"
	"slices"

	"github.com/dustin/go-humanize"

	"tensorcast/heatmap"
	"tensorcast/internal/chart"
	"tensorcast/trace/tables"
)

// gridSubjects say what the cells of a grid show, by its name.
var gridSubjects = map[string]string{
	GridDisk: "bytes from disk", GridRereads: "bytes read again from disk", GridStall: "waiting for the disk",
	GridPace: "time of ops per byte", GridTime: "time of ops", GridReads: "bytes read",
}

// Subject says what the grid's cells show, in a few words.
func (g *Grid) Subject() string { return gridSubjects[g.Name] }

// GridOrder is the order in which a grid's rows are shown, as indices of its rows: that of the first reads, or, with
// fileOrder, that of the model's file.
func (c *Collector) GridOrder(g *Grid, fileOrder bool) []int {
	order := make([]int, len(g.Rows))
	for i := range order {
		order[i] = i
	}
	if fileOrder {
		slices.SortFunc(order, func(a, b int) int { return int(c.firstReads[a] - c.firstReads[b]) })
	}
	return order
}

// GridFigure draws a grid with its rows in an order, and returns its greatest value, too. Of columns that stand for
// several steps it shows the mean, or the greatest value. The error says that there is nothing, or too much, to draw.
// The caller adds title and caption.
func (c *Collector) GridFigure(g *Grid, fileOrder, greatest bool) (f *heatmap.Figure, most float64, err error) {
	order := c.GridOrder(g, fileOrder)
	m, scale, err := gridMatrix(g, order, c.Steps(), c.phase)
	if err != nil {
		return nil, 0, err
	}
	for i, row := range order {
		t := &c.structure[c.firstReads[row]]
		m.Rows[i] = tensorRow(t)
		m.Rows[i].Weight = float64(t.Size)
	}
	return &heatmap.Figure{Matrix: m, Text: heatmap.Text{
		Subtitle: fmt.Sprintf("%d tensors, %s; a row is as high as its tensor is large, and a third of the "+
			"average at least",
			len(order), orderText(fileOrder)),
		Greatest: greatest,
		Scale:    g.About + " " + scale.name(),
		Nothing:  "nothing",
		Ticks:    scale.ticks(g.Unit),
	}}, scale.most, nil
}

// gridScale is the scale of a grid's values. It ends at the greatest of the phase that the figure is about: a prompt of
// a thousand tokens would leave nothing of the scale to those that are generated. It is that of the square root.
// Where values range over several orders of magnitude, it is logarithmic and begins at the least.
type gridScale struct {
	least, most float64 // of the values above 0
	log         bool
	isExceeded  bool // by values of other phases
}

// add widens the scale for a value above 0.
func (s *gridScale) add(v float64) {
	s.most = max(s.most, v)
	if s.least == 0 || v < s.least {
		s.least = v
	}
}

func (s *gridScale) name() string {
	if s.log {
		return "Logarithmic scale."
	}
	return "Square-root scale."
}

// share turns a value into what package heatmap draws at its place of the scale: heatmap takes the square root.
func (s *gridScale) share(v float64) float64 {
	switch {
	case math.IsNaN(v) || v <= 0 || s.most <= 0:
		return v
	case !s.log:
		return v / s.most
	case s.most <= s.least:
		return 1
	}
	position := math.Log(v/s.least) / math.Log(s.most/s.least)
	const something = 1e-9 // the least is not nothing
	return max(position*position, something)
}

func (s *gridScale) ticks(unit string) (ticks []heatmap.Tick) {
	add := func(share, v float64) {
		label := humanize.SIWithDigits(v/1e9, 1, "s/B")
		switch unit {
		case "B":
			label = humanize.IBytes(uint64(v))
		case "ns":
			label = humanize.SIWithDigits(v/1e9, 1, "s")
		}
		switch {
		case share == 0 && !s.log:
			label = "> 0"
		case share == 1 && s.isExceeded:
			label += " and more"
		}
		ticks = append(ticks, heatmap.Tick{Share: share, Label: label})
	}
	for _, position := range []float64{0, 1. / 3, 2. / 3, 1} {
		if s.log {
			add(position*position, s.least*math.Pow(s.most/s.least, position))
		} else {
			add(position*position, position*position*s.most)
		}
	}
	return ticks
}

// gridMatrix has a grid's values as shares of its scale, phase by phase. Its rows have no labels yet. The scale is that
// of the steps of one phase, if these have any value.
func gridMatrix(
	g *Grid, order []int, steps []tables.StepRow, phase tables.Phase,
) (m *heatmap.Matrix, scale gridScale, err error) {
	if len(order) == 0 || len(steps) == 0 {
		return nil, scale, chart.ErrEmpty
	}
	if err := checkDrawable(len(order), len(steps)); err != nil {
		return nil, scale, err
	}
	m = &heatmap.Matrix{Rows: make([]heatmap.Row, len(order)), Values: make([]float32, 0, len(order)*len(steps))}
	byPhase := stepsByPhase(steps)
	var all gridScale
	for _, row := range order {
		for _, step := range byPhase {
			v := g.At(row, step)
			m.Values = append(m.Values, float32(v))
			if v > 0 {
				all.add(v)
				if steps[step].Phase == phase {
					scale.add(v)
				}
			}
		}
	}
	if scale.most == 0 {
		scale = all
	}
	scale.isExceeded = all.most > scale.most
	scale.least = all.least
	const wide = 1e4
	scale.log = g.Name == GridPace && scale.most > wide*scale.least
	for i, v := range m.Values {
		m.Values[i] = float32(scale.share(float64(v)))
	}
	number, before := 0, tables.Phase(255)
	for _, step := range byPhase {
		s := &steps[step]
		if s.Phase != before {
			number, before = 0, s.Phase
		}
		c := heatmap.Column{Panel: phasePanels[s.Phase], Number: number}
		if s.Phase == tables.PhaseGeneration {
			c.Number = int(s.Token)
		}
		number++
		m.Columns = append(m.Columns, c)
	}
	return m, scale, nil
}

// stepsByPhase are indices of steps, phase by phase.
func stepsByPhase(steps []tables.StepRow) []int {
	order := make([]int, len(steps))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(steps[a].Phase) - int(steps[b].Phase) })
	return order
}

// GridColumns are a table of a grid: a row for each tensor and each run of steps of a phase. A phase has
// at most 256 runs of equal length; the last may be shorter. A row has the mean and the greatest value of
// its steps; NaN if none is known.
func (c *Collector) GridColumns(g *Grid, fileOrder bool) []tables.Column {
	const mostRuns = 256
	var names, phases []string
	var first, count []int64
	var mean, greatest []float64
	steps := c.Steps()
	byPhase := stepsByPhase(steps)
	for _, row := range c.GridOrder(g, fileOrder) {
		for from := 0; from < len(byPhase); {
			phase, to := steps[byPhase[from]].Phase, from
			for to < len(byPhase) && steps[byPhase[to]].Phase == phase {
				to++
			}
			each := (to - from + mostRuns - 1) / mostRuns
			for ; from < to; from += min(each, to-from) {
				sum, top, known := 0.0, math.NaN(), 0
				end := min(from+each, to)
				for _, step := range byPhase[from:end] {
					if v := g.At(row, step); !math.IsNaN(v) {
						sum, known = sum+v, known+1
						if !(top > v) {
							top = v
						}
					}
				}
				if known == 0 {
					sum = math.NaN()
				}
				names, phases = append(names, g.Rows[row].Name), append(phases, phase.String())
				first, count = append(first, int64(steps[byPhase[from]].Step)), append(count, int64(end-from))
				mean, greatest = append(mean, sum/float64(max(known, 1))), append(greatest, top)
			}
		}
	}
	unit := map[string]string{"B": "bytes", "ns": "ns", "ns/B": "ns_per_byte"}[g.Unit]
	return []tables.Column{
		{Name: "tensor_name", Values: names}, {Name: "phase", Values: phases},
		{Name: "first_step", Values: first}, {Name: "steps", Values: count},
		{Name: g.Name + "_" + unit, Values: mean}, {Name: g.Name + "_max_" + unit, Values: greatest},
	}
}
