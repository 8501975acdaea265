package main

// This file has the heatmap of tensors and steps.

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/heatmap"
	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/internal/tabular"
	"tensorcast/report/gather"
	"tensorcast/trace/tables"
)

const gridFile = "heatmap"

// Values of --fold.
const (
	foldMean     = "mean"
	foldGreatest = "greatest"
)

// cells are a heatmap.
type cells struct {
	matrix *heatmap.Matrix
	text   heatmap.Text
}

func (c cells) Write(w io.Writer, format string) error {
	return heatmap.Write(w, c.matrix, c.text, format)
}

func heatmapFlags(cmd *cobra.Command, s *study) {
	const byItself = "auto"
	s.grid = byItself
	cli.EnumVar(cmd, &s.grid, "value", "", append([]string{byItself}, gather.GridNames()...), "what a cell shows: bytes from disk, those read again, waiting for the disk, time per byte, time, bytes read")
	cli.EnumVar(cmd, &s.fold, "fold", "", []string{foldMean, foldGreatest}, "what a column shows that stands for several steps, beyond 1200: their mean, or the greatest")
	cli.EnumVar(cmd, &s.order, "order", "", []string{orderAccess, orderFile}, "of rows: access is first read first, file as in the model's file")
}

// gridTitles say what a figure shows.
var gridTitles = map[string]string{
	gather.GridDisk: "bytes from disk", gather.GridRereads: "bytes read again from disk", gather.GridStall: "waiting for the disk",
	gather.GridPace: "time of ops per byte", gather.GridTime: "time of ops", gather.GridReads: "bytes read",
}

func heatmapAnswer(_ context.Context, s *study) (*answer, error) {
	want := s.grid
	if gridTitles[want] == "" {
		want = s.sums.Default()
	}
	all := s.sums.Grids()
	at := slices.IndexFunc(all, func(g gather.Grid) bool { return g.Name == want })
	if at < 0 {
		return nil, fmt.Errorf("--value %s: the capture has none of it: tracer --detail op+io records what came from disk and waiting, --detail op times", want)
	}
	g := &all[at]
	steps := s.sums.Steps()
	order := make([]int, len(g.Rows))
	for i := range order {
		order[i] = i
	}
	structure, tensors := s.in.capture.Structure, s.sums.Order()
	if s.order == orderFile {
		slices.SortFunc(order, func(a, b int) int { return int(tensors[a] - tensors[b]) })
	}
	a := &answer{files: tableFiles(gridFile, gridColumns(g, order, steps), s.model())}
	text := fmt.Sprintf("%s of each tensor in each step", gridTitles[want])
	if g.Empty {
		text = fmt.Sprintf("nothing: no tensor has %s", gridTitles[want])
	}
	var picture drawing
	m, scale, err := gridMatrix(g, order, steps)
	if err != nil {
		s.in.warn("left out: the figure: %v", err)
	} else {
		for i, row := range order {
			of := &structure[tensors[row]]
			m.Rows[i] = heatmap.Row{Label: of.Name, Weight: float64(of.Size)}
			if of.Layer >= 0 {
				m.Rows[i].Label, m.Rows[i].Block = of.Component, fmt.Sprintf("blk.%d", of.Layer)
			}
		}
		rows := "first read first"
		if s.order == orderFile {
			rows = "in the file's order"
		}
		label := heatmap.Text{
			Title:    s.title(gridTitles[want]),
			Subtitle: fmt.Sprintf("%d tensors, %s; a row is as high as its tensor is large, and a third of the average at least", len(order), rows), Caption: s.caption(), Greatest: s.fold == foldGreatest,
			Scale: g.About + " " + scale.name(), Nothing: "nothing", Ticks: scale.ticks(g.Unit),
		}
		picture = cells{m, label}
	}
	a.files = append(a.files, figureFiles(gridFile, picture, s.format)...)
	a.text = tabular.Document{tabular.Lines{text}}
	a.data = map[string]any{"value": want, "unit": g.Unit, "most": scale.most, "empty": g.Empty}
	return a, nil
}

// scale is that of a grid: values to its greatest. What ranges over several orders of magnitude has a logarithmic one, from its least.
type scale struct {
	least, most float64 // of the values above 0
	log         bool
}

func (s *scale) name() string {
	if s.log {
		return "Logarithmic scale."
	}
	return "Square-root scale."
}

// share is what package heatmap, whose scale is the square root, is to be told of a value.
func (s *scale) share(v float64) float64 {
	switch {
	case math.IsNaN(v) || v <= 0 || s.most <= 0:
		return v
	case !s.log:
		return v / s.most
	case s.most <= s.least:
		return 1
	}
	at := math.Log(v/s.least) / math.Log(s.most/s.least)
	const something = 1e-9 // the least is not nothing
	return max(at*at, something)
}

func (s *scale) ticks(unit string) (ticks []heatmap.Tick) {
	add := func(share, v float64) {
		label := humanize.SIWithDigits(v/1e9, 1, "s/B")
		switch unit {
		case "B":
			label = humanize.IBytes(uint64(v))
		case "ns":
			label = humanize.SIWithDigits(v/1e9, 1, "s")
		}
		if share == 0 && !s.log {
			label = "> 0"
		}
		ticks = append(ticks, heatmap.Tick{Share: share, Label: label})
	}
	for _, at := range []float64{0, 1. / 3, 2. / 3, 1} {
		if s.log {
			add(at*at, s.least*math.Pow(s.most/s.least, at))
		} else {
			add(at*at, at*at*s.most)
		}
	}
	return ticks
}

// gridMatrix has places on a scale. Its rows have no labels yet.
func gridMatrix(g *gather.Grid, order []int, steps []tables.StepRow) (m *heatmap.Matrix, of scale, err error) {
	if len(order) == 0 || len(steps) == 0 {
		return nil, of, chart.ErrEmpty
	}
	if len(order) > maxValues/len(steps) || len(order) > maxCells/min(len(steps), 3*1200) {
		return nil, of, fmt.Errorf("%d tensors in %d steps are too many to draw", len(order), len(steps))
	}
	m = &heatmap.Matrix{Rows: make([]heatmap.Row, len(order)), Values: make([]float32, 0, len(order)*len(steps))}
	places := byPhase(steps)
	for _, row := range order {
		for _, step := range places {
			v := g.At(row, step)
			m.Values = append(m.Values, float32(v))
			if v > 0 {
				of.most = max(of.most, v)
				if of.least == 0 {
					of.least = v
				}
				of.least = min(of.least, v)
			}
		}
	}
	const wide = 1e4
	of.log = g.Name == gather.GridPace && of.most > wide*of.least
	for i, v := range m.Values {
		m.Values[i] = float32(of.share(float64(v)))
	}
	number, before := 0, tables.Phase(255)
	for _, step := range places {
		s := &steps[step]
		if s.Phase != before {
			number, before = 0, s.Phase
		}
		c := heatmap.Column{Panel: panelNames[s.Phase], Number: number}
		if s.Phase == tables.PhaseGeneration {
			c.Number = int(s.Token)
		}
		number++
		m.Columns = append(m.Columns, c)
	}
	return m, of, nil
}

// byPhase are the places of steps, phase by phase.
func byPhase(steps []tables.StepRow) []int {
	places := make([]int, len(steps))
	for i := range places {
		places[i] = i
	}
	slices.SortStableFunc(places, func(a, b int) int { return int(steps[a].Phase) - int(steps[b].Phase) })
	return places
}

// gridColumns has a row for each tensor and each of at most so many columns in a phase.
func gridColumns(g *gather.Grid, order []int, steps []tables.StepRow) []tables.Column {
	const most = 256
	var names, phases []string
	var first, count []int64
	var mean, greatest []float64
	places := byPhase(steps)
	for _, row := range order {
		for from := 0; from < len(places); {
			phase, to := steps[places[from]].Phase, from
			for to < len(places) && steps[places[to]].Phase == phase {
				to++
			}
			each := (to - from + most - 1) / most
			for ; from < to; from += min(each, to-from) {
				sum, top, known := 0.0, math.NaN(), 0
				end := min(from+each, to)
				for _, step := range places[from:end] {
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
				first, count = append(first, int64(steps[places[from]].Step)), append(count, int64(end-from))
				mean, greatest = append(mean, sum/float64(max(known, 1))), append(greatest, top)
			}
		}
	}
	unit := map[string]string{"B": "bytes", "ns": "ns", "ns/B": "ns_per_byte"}[g.Unit]
	return []tables.Column{
		{Name: "tensor_name", Values: names}, {Name: "phase", Values: phases}, {Name: "first_step", Values: first}, {Name: "steps", Values: count},
		{Name: g.Name + "_" + unit, Values: mean}, {Name: g.Name + "_max_" + unit, Values: greatest},
	}
}
