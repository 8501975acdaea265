package gather

// This file draws the sums.

import (
	"slices"

	"tensorcast/event"
	"tensorcast/internal/chart"
	"tensorcast/internal/stats"
)

// maxTensorBars is how many tensors a figure shows, so that it is not higher than a page.
const maxTensorBars = 40

const (
	nanosToMillis  = 1e-6
	nanosToSeconds = 1e-9
)

// barPanel is a panel with one bar for each total, whose values are multiplied by scale.
func barPanel(label string, scale float64, sums []*total, value func(t *total) int64) chart.BarPanel {
	part := chart.BarPart{}
	for _, t := range sums {
		part.Values = append(part.Values, float64(value(t))*scale)
	}
	return chart.BarPanel{XLabel: label, Parts: []chart.BarPart{part}}
}

// totalPanels are the panels of some sums: what was read, how long that took, and what came from disk, as
// far as that was observed.
func (c *Collector) totalPanels(sums []*total) []chart.BarPanel {
	all := []chart.BarPanel{
		barPanel("reads", 1, sums, func(t *total) int64 { return t.accesses }),
		barPanel("read (MiB)", 1./mib, sums, func(t *total) int64 { return t.bytes }),
	}
	if c.hasTime {
		all = append(all, barPanel("time of ops (s)", nanosToSeconds, sums, func(t *total) int64 { return t.nanos }))
	}
	if c.hasDisk {
		disk := barPanel("from disk (MiB)", 1./mib, sums, func(t *total) int64 { return t.disk - t.reread })
		again := barPanel("", 1./mib, sums, func(t *total) int64 { return t.reread })
		disk.Parts[0].Name, again.Parts[0].Name = "first time", "again"
		disk.Parts = append(disk.Parts, again.Parts...)
		all = append(all, disk)
	}
	if c.hasStall {
		all = append(all,
			barPanel("waiting for disk (ms)", nanosToMillis, sums, func(t *total) int64 { return t.stall }))
	}
	return all
}

// RereadsFigure has bars of the tensors at the head of Rereads: bytes read again from disk, by cause, and
// waiting. It has no bars if nothing was read again.
func (c *Collector) RereadsFigure(title string) *chart.Bars {
	order := slices.DeleteFunc(c.orderByRereads(), func(t int32) bool { return c.perTensor[t].reread == 0 })
	order = order[:min(len(order), maxTensorBars)]
	var sums []*total
	b := &chart.Bars{Title: title}
	if len(order) == 0 {
		return b
	}
	for _, t := range order {
		b.Labels = append(b.Labels, c.structure[t].Name)
		sums = append(sums, &c.perTensor[t])
	}
	if c.hasDisk {
		again := chart.BarPanel{XLabel: "read again from disk (MiB)"}
		for cause, name := range event.CauseNames() {
			part := barPanel("", 1./mib, sums, func(t *total) int64 { return t.causes[cause] }).Parts[0]
			if slices.Max(append(part.Values, 0)) > 0 {
				part.Name = name
				again.Parts = append(again.Parts, part)
			}
		}
		if len(again.Parts) > 0 {
			b.Panels = append(b.Panels, again)
		}
	}
	if c.hasStall {
		b.Panels = append(b.Panels,
			barPanel("waiting for disk (ms)", nanosToMillis, sums, func(t *total) int64 { return t.stall }))
	}
	b.Panels = append(b.Panels, barPanel("read (MiB)", 1./mib, sums, func(t *total) int64 { return t.bytes }))
	return b
}

// LayersFigure has bars for each layer. If there are more than chart.MaxBars, it cannot be drawn.
func (c *Collector) LayersFigure(title string) *chart.Bars {
	names, sums := c.sumByLayer()
	for i, n := range names {
		if n != "none" {
			names[i] = "layer " + n
		}
	}
	return &chart.Bars{Title: title, Labels: names, Panels: c.totalPanels(sums)}
}

// ComponentsFigure has bars for each component: reads, bytes, time, waiting.
func (c *Collector) ComponentsFigure(title string) *chart.Bars {
	names, sums := c.sumByComponent()
	return &chart.Bars{Title: title, Labels: names, Panels: c.totalPanels(sums)}
}

// PhasesFigure has bars for each phase.
func (c *Collector) PhasesFigure(title string) *chart.Bars {
	b := &chart.Bars{Title: title}
	phases := c.sumPhases()
	panel := func(label string, scale float64, value func(p *phaseSum) int64) chart.BarPanel {
		part := chart.BarPart{}
		for i := range phases {
			part.Values = append(part.Values, float64(value(&phases[i]))*scale)
		}
		return chart.BarPanel{XLabel: label, Parts: []chart.BarPart{part}}
	}
	for _, p := range phases {
		b.Labels = append(b.Labels, p.name)
	}
	b.Panels = append(b.Panels, panel("time (s)", nanosToSeconds, func(p *phaseSum) int64 { return p.nanos }),
		panel("read (MiB)", 1./mib, func(p *phaseSum) int64 { return p.read }))
	if c.hasDisk {
		disk := panel("from disk (MiB)", 1./mib, func(p *phaseSum) int64 { return p.disk - p.reread })
		again := panel("", 1./mib, func(p *phaseSum) int64 { return p.reread })
		disk.Parts[0].Name, again.Parts[0].Name = "first time", "again"
		disk.Parts = append(disk.Parts, again.Parts...)
		b.Panels = append(b.Panels, disk)
	}
	if c.hasStall {
		b.Panels = append(b.Panels,
			panel("waiting for disk (ms)", nanosToMillis, func(p *phaseSum) int64 { return p.stall }))
	}
	return b
}

// GapsFigure has bars for each class of gaps.
func (c *Collector) GapsFigure(title string) *chart.Bars {
	var sums []*total
	for i := range c.gaps {
		sums = append(sums, &c.gaps[i])
	}
	return &chart.Bars{Title: title, Labels: gapNames, Panels: []chart.BarPanel{
		barPanel("reads", 1, sums, func(t *total) int64 { return t.accesses }),
		barPanel("read (MiB)", 1./mib, sums, func(t *total) int64 { return t.bytes }),
	}}
}

// OffsetsFigure has a dot for each read, at its step and its offset in the file. If there are more than
// some ten thousand reads, only every n-th is shown.
func (c *Collector) OffsetsFigure(title string) *chart.Figure {
	const dots = 30_000 // more blacken it
	f := &chart.Figure{
		XLabel: "step", YLabel: "offset in the file (MiB)", To: float64(len(c.steps)), High: 1.02 * c.fileEnd / mib,
		Beside: true, Panels: []chart.Panel{{Title: title}},
	}
	curves := make([]chart.Curve, len(gapNames))
	for i, name := range gapNames {
		curves[i] = chart.Curve{Name: name, Dots: true}
	}
	for i := 0; i < len(c.points); i += max(1, len(c.points)/dots) {
		p := &c.points[i]
		curves[p.Kind].Points = append(curves[p.Kind].Points, chart.Point{X: p.Step, Y: p.Offset / mib})
	}
	f.Panels[0].Curves = curves
	return f
}

// DefaultGrid is the name of the grid that shows best how steps differ: bytes from disk where memory is
// short, else the time for each byte, else what was read.
func (c *Collector) DefaultGrid() string {
	var disk, read []float64
	for _, s := range c.countedSteps() {
		disk, read = append(disk, float64(s.disk)), append(read, float64(s.bytes))
	}
	switch {
	case c.hasDisk && len(disk) > 0 && stats.Median(disk) > littleFromDisk*stats.Median(read):
		return GridDisk
	case c.hasTime:
		return GridPace
	}
	return GridReads
}
