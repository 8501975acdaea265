package gather

// This file draws the sums.

import (
	"cmp"
	"fmt"
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

// shownSteps are the steps that figures of sums are of: those that count, or, if only one step was generated, that one.
func (c *Collector) shownSteps() []*stepSums {
	if all := c.countedSteps(); len(all) > 0 {
		return all
	}
	var all []*stepSums
	for i := range c.steps {
		if c.steps[i].row.Phase == c.phase {
			all = append(all, &c.steps[i])
		}
	}
	return all
}

// units is how many tokens the steps of figures generate, or how many steps that are, if they generate none; at least
// 1.
func (c *Collector) units() (n int) {
	for _, s := range c.shownSteps() {
		if c.Generates() {
			n += int(max(s.row.Tokens, 1))
		} else {
			n++
		}
	}
	return max(n, 1)
}

// perUnitTitle is a title with what the sums are divided by.
func (c *Collector) perUnitTitle(title string) string {
	what := "generated tokens"
	if !c.Generates() {
		what = "decodes"
	}
	if n := c.units(); n > 1 {
		return fmt.Sprintf("%s, per %s (mean of %d %s)", title, c.per(), n, what)
	}
	return fmt.Sprintf("%s, per %s", title, c.per())
}

// barPanel is a panel with one bar for each total, whose values are multiplied by scale.
func barPanel[T any](label string, scale float64, sums []T, value func(sum T) int64) chart.BarPanel {
	part := chart.BarPart{}
	for _, t := range sums {
		part.Values = append(part.Values, float64(value(t))*scale)
	}
	return chart.BarPanel{XLabel: label, Parts: []chart.BarPart{part}}
}

// stackPanels makes one panel of several, with a part for each, which has its name. It is that of what came from disk.
func stackPanels(label string, names []string, panels ...chart.BarPanel) chart.BarPanel {
	stack := chart.BarPanel{XLabel: label}
	for i, p := range panels {
		part := p.Parts[0]
		part.Name = names[i]
		stack.Parts = append(stack.Parts, part)
	}
	return stack
}

// partsOfDisk are the names of the parts of what came from disk.
var partsOfDisk = []string{"first time", "again"}

// filled are the panels that have a bar which is longer than nothing.
func filled(panels ...chart.BarPanel) (all []chart.BarPanel) {
	for _, p := range panels {
		isFilled := func(part chart.BarPart) bool { return len(part.Values) > 0 && slices.Max(part.Values) > 0 }
		if slices.ContainsFunc(p.Parts, isFilled) {
			all = append(all, p)
		}
	}
	return all
}

// totalPanels are the panels of some sums, per token or decode: what was read, how long that took, and what came from
// disk, as far as that was observed and is not nothing.
func (c *Collector) totalPanels(sums []*total) []chart.BarPanel {
	each, per := 1/float64(c.units()), " per "+c.per()
	return filled(
		barPanel("reads"+per, each, sums, func(t *total) int64 { return t.accesses }),
		barPanel("read (MiB"+per+")", each/mib, sums, func(t *total) int64 { return t.bytes }),
		barPanel("time of ops (ms"+per+")", each*nanosToMillis, sums, func(t *total) int64 { return t.nanos }),
		stackPanels("from disk (MiB"+per+")", partsOfDisk,
			barPanel("", each/mib, sums, func(t *total) int64 { return t.disk - t.reread }),
			barPanel("", each/mib, sums, func(t *total) int64 { return t.reread })),
		barPanel("waiting for disk (ms"+per+")", each*nanosToMillis, sums, func(t *total) int64 { return t.stall }),
	)
}

// RereadsFigure has bars of the tensors of which most is read again from disk: bytes, by cause, and waiting. It has
// none if nothing was read again.
func (c *Collector) RereadsFigure(title string) *chart.Bars {
	var order []int32
	for _, t := range c.firstReads {
		if c.perCounted[t].reread > 0 {
			order = append(order, t)
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		return cmp.Compare(c.perCounted[b].reread, c.perCounted[a].reread)
	})
	order = order[:min(len(order), maxTensorBars)]
	var sums []*total
	b := &chart.Bars{Title: c.perUnitTitle(title)}
	for _, t := range order {
		b.Labels = append(b.Labels, c.structure[t].Name)
		sums = append(sums, &c.perCounted[t])
	}
	each, per := 1/float64(c.units()), " per "+c.per()
	again := chart.BarPanel{XLabel: "read again from disk (MiB" + per + ")"}
	for cause, name := range event.CauseNames() {
		part := barPanel("", each/mib, sums, func(t *total) int64 { return t.causes[cause] }).Parts[0]
		if slices.Max(append(part.Values, 0)) > 0 {
			part.Name = name
			again.Parts = append(again.Parts, part)
		}
	}
	b.Panels = filled(again,
		barPanel("waiting for disk (ms"+per+")", each*nanosToMillis, sums, func(t *total) int64 { return t.stall }),
		barPanel("read (MiB"+per+")", each/mib, sums, func(t *total) int64 { return t.bytes }))
	return b
}

// LayersFigure has bars for each layer. If there are more than chart.MaxBars, it cannot be drawn.
func (c *Collector) LayersFigure(title string) *chart.Bars {
	names, sums := c.sumByLayer(c.perCounted)
	for i, n := range names {
		if n == "none" {
			names[i] = "outside of layers"
		} else {
			names[i] = "layer " + n
		}
	}
	return &chart.Bars{Title: c.perUnitTitle(title), Labels: names, Panels: c.totalPanels(sums)}
}

// ComponentsFigure has bars for each component: reads, bytes, time, waiting.
func (c *Collector) ComponentsFigure(title string) *chart.Bars {
	names, sums := c.sumByComponent(c.perCounted)
	return &chart.Bars{Title: c.perUnitTitle(title), Labels: names, Panels: c.totalPanels(sums)}
}

// PhasesFigure has bars for each phase: its time, and the time and bytes of each of its tokens. So a prompt, which
// reads the model once for many tokens, can be compared with the tokens that are generated.
func (c *Collector) PhasesFigure(title string) *chart.Bars {
	b := &chart.Bars{Title: title}
	// Load has no tokens, so what it read cannot stand beside figures per token.
	phases := slices.DeleteFunc(c.sumPhases(), func(p phaseSum) bool { return p.outside })
	panel := func(label string, scale float64, value func(p phaseSum) int64) chart.BarPanel {
		one := barPanel(label, scale, phases, value)
		for i := range phases {
			one.Parts[0].Values[i] /= float64(max(phases[i].tokens, 1))
		}
		return one
	}
	for _, p := range phases {
		b.Labels = append(b.Labels, fmt.Sprintf("%s (tokens: %d)", p.name, p.tokens))
	}
	b.Panels = filled(
		barPanel("time of all tokens (s)", nanosToSeconds, phases, func(p phaseSum) int64 { return p.nanos }),
		panel("time (ms per token)", nanosToMillis, func(p phaseSum) int64 { return p.nanos }),
		panel("read (MiB per token)", 1./mib, func(p phaseSum) int64 { return p.read }),
		stackPanels("from disk (MiB per token)", partsOfDisk,
			panel("", 1./mib, func(p phaseSum) int64 { return p.disk - p.reread }),
			panel("", 1./mib, func(p phaseSum) int64 { return p.reread })),
		panel("waiting for disk (ms per token)", nanosToMillis, func(p phaseSum) int64 { return p.stall }),
	)
	return b
}

// GapsFigure has bars for each class of gaps.
func (c *Collector) GapsFigure(title string) *chart.Bars {
	var sums []*total
	for i := range c.countedGaps {
		sums = append(sums, &c.countedGaps[i])
	}
	each, per := 1/float64(c.units()), " per "+c.per()
	return &chart.Bars{Title: c.perUnitTitle(title), Labels: gapNames, Panels: filled(
		barPanel("reads"+per, each, sums, func(t *total) int64 { return t.accesses }),
		barPanel("read (MiB"+per+")", each/mib, sums, func(t *total) int64 { return t.bytes }),
	)}
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
