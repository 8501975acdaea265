package gather

// This file makes the report of the sums.

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"tensorcast/internal/stats"
	"tensorcast/report"
	"tensorcast/trace/tables"
)

// seconds is how long a step took; NaN if its end was not observed.
func (s *step) seconds() float64 {
	if s.row.End == tables.NotObserved || s.row.End <= s.row.Begin {
		return math.NaN()
	}
	return float64(s.row.End-s.row.Begin) / 1e9
}

// Report makes the page of what was collected. Title is its first line.
func (c *Collector) Report(title string) *report.Report {
	r := &report.Report{Title: title, Series: c.series(), Heat: c.heatmaps(), Tables: c.tables()}
	for i := range c.steps {
		s := &c.steps[i].row
		label := "step " + strconv.Itoa(int(s.Step))
		if s.Token >= 0 {
			label = "token " + strconv.Itoa(int(s.Token))
		}
		r.Steps = append(r.Steps, report.Step{Label: label, Phase: s.Phase.String()})
	}
	if len(c.points) > 0 {
		r.Offsets = &report.Offsets{Size: c.most, Kinds: gapNames, Count: len(c.points), At: func(i int) report.Point { return c.points[i] }}
	}
	r.Facts, r.Verdict = c.facts()
	if !c.hasDisk {
		r.Notes = append(r.Notes, "what came from disk, and why: `tracer --detail op+io` records it")
	}
	if !c.hasStall {
		r.Notes = append(r.Notes, "how long ops waited for the disk: `tracer --detail op+io` records it")
	}
	if !c.hasTime {
		r.Notes = append(r.Notes, "how long ops took: `tracer --detail op` records it")
	}
	return r
}

// generated are the steps that generate a token, but for the first.
func (c *Collector) generated() (all []*step) {
	for i := range c.steps {
		if s := &c.steps[i]; s.row.Phase == tables.PhaseGeneration {
			all = append(all, s)
		}
	}
	return all[min(len(all), 1):]
}

const mib = 1 << 20

// facts are the most important figures, and what they say.
func (c *Collector) facts() (facts []report.Fact, verdict []string) {
	var times, bytes, disk, again, stalled []float64
	tokens := 0
	for _, s := range c.generated() {
		n := float64(max(s.row.Tokens, 1))
		tokens += int(n)
		if t := s.seconds(); t > 0 {
			times = append(times, t/n)
			stalled = append(stalled, float64(s.stall)/1e9/t)
		}
		bytes, disk, again = append(bytes, float64(s.reads)/n), append(disk, float64(s.disk)/n), append(again, float64(s.again)/n)
	}
	if tokens == 0 {
		return nil, []string{"No token was generated but the first: nothing can be said of their speed."}
	}
	const about = "median over the generated tokens but the first"
	if len(times) > 0 {
		facts = append(facts, report.Fact{Name: "speed", Value: fmt.Sprintf("%.3g tok/s", 1/stats.Median(times)), About: about})
	}
	read := stats.Median(bytes)
	facts = append(facts, report.Fact{Name: "read per token", Value: fmt.Sprintf("%.0f MiB", read/mib), About: about})
	if c.hasDisk {
		facts = append(facts, report.Fact{Name: "from disk per token", Value: fmt.Sprintf("%.0f MiB", stats.Median(disk)/mib), About: about},
			report.Fact{Name: "again from disk per token", Value: fmt.Sprintf("%.0f MiB", stats.Median(again)/mib), About: about + "; what had been read from disk before in this capture"})
	}
	if c.hasStall && len(stalled) > 0 {
		facts = append(facts, report.Fact{Name: "waiting for the disk", Value: fmt.Sprintf("%.0f %% of a token", 100*stats.Median(stalled)), About: about})
	}
	facts = append(facts, report.Fact{Name: "generated tokens", Value: strconv.Itoa(tokens + 1)})
	if !c.hasDisk {
		return facts, nil
	}
	const little = 0.01
	switch from := stats.Median(disk); {
	case from > little*read:
		verdict = append(verdict, fmt.Sprintf("Memory is short: for the %.3g MiB that a token reads, %.3g MiB come from disk, %.3g of them not for the first time.", read/mib, from/mib, stats.Median(again)/mib))
	default:
		verdict = append(verdict, fmt.Sprintf("Memory suffices: of the %.3g MiB that a token reads, %.2g come from disk.", read/mib, from/mib))
	}
	if c.hasStall && len(stalled) > 0 {
		verdict = append(verdict, fmt.Sprintf("Waiting for the disk takes %.0f %% of a token's time; what the kernel does to read and to map pages is not in that.", 100*stats.Median(stalled)))
	}
	return facts, verdict
}

func (c *Collector) series() (all []report.Series) {
	add := func(name, unit string, value func(s *step) float64) {
		one := report.Series{Name: name, Unit: unit}
		for i := range c.steps {
			one.Values = append(one.Values, value(&c.steps[i]))
		}
		all = append(all, one)
	}
	add("speed", "tok/s", func(s *step) float64 { return float64(max(s.row.Tokens, 1)) / s.seconds() })
	if c.hasDisk {
		add("read from disk", "B", func(s *step) float64 { return float64(s.disk) })
		add("of it again", "B", func(s *step) float64 { return float64(s.again) })
	}
	if c.hasStall {
		add("waiting for disk", "ns", func(s *step) float64 {
			if !s.tookStall {
				return math.NaN()
			}
			return float64(s.stall)
		})
	}
	add("time", "ns", func(s *step) float64 { return s.seconds() * 1e9 })
	return all
}

// heatmaps begin with what differs between tokens: what came from disk, if that was observed, then times. All tokens of a dense model read the same bytes.
func (c *Collector) heatmaps() (all []report.Heatmap) {
	rows := make([]report.Row, len(c.order))
	for i, t := range c.order {
		s := &c.structure[t]
		rows[i] = report.Row{Name: s.Name, Weight: float64(s.Size), Detail: fmt.Sprintf("%s, %.3g MiB", s.Type, float64(s.Size)/mib)}
	}
	nothing := map[string]int{}
	// rest is what a tensor without any value has.
	add := func(name, unit, about string, m *matrix, rest float64) {
		nothing[name] = 1
		for _, values := range m.rows {
			if slices.ContainsFunc(values, func(v float32) bool { return v > 0 }) {
				nothing[name] = 0
				break
			}
		}
		all = append(all, report.Heatmap{Name: name, Unit: unit, About: about, Rows: rows, At: func(row, step int) float64 {
			values := m.rows[c.order[row]]
			if values == nil {
				return rest
			}
			return float64(values[step/c.perBin]) / float64(c.perBin)
		}})
	}
	// What is nothing everywhere shows nothing: it comes last.
	defer func() {
		slices.SortStableFunc(all, func(a, b report.Heatmap) int { return cmp.Compare(nothing[a.Name], nothing[b.Name]) })
	}()
	const heights = " Rows are as high as their tensors are large, and a sixth of the average at least."
	if c.hasDisk {
		add("from disk", "B", "How much of each tensor was read from disk in each step."+heights, &c.disk, 0)
	}
	if c.hasStall {
		add("waiting", "ns", "How long the ops that read each tensor waited for the disk."+heights, &c.stall, 0)
	}
	if c.hasTime {
		add("time", "ns", "How long the ops took that read each tensor."+heights, &c.seconds, math.NaN())
	}
	add("reads", "B", "How much of each tensor each step reads."+heights, &c.bytes, 0)
	return all
}

func (t *total) add(o total) {
	t.accesses += o.accesses
	t.bytes += o.bytes
	t.disk += o.disk
	t.again += o.again
	t.stall += o.stall
	t.nanos += o.nanos
}

// cells are a total's, as the columns of totalColumns.
func (c *Collector) cells(t *total) []any {
	cells := []any{float64(t.accesses), float64(t.bytes)}
	if c.hasTime {
		cells = append(cells, float64(t.nanos))
	}
	if c.hasDisk {
		cells = append(cells, float64(t.disk), float64(t.again))
	}
	if c.hasStall {
		cells = append(cells, float64(t.stall))
	}
	return cells
}

func (c *Collector) totalColumns(first ...report.Column) []report.Column {
	all := append(first, report.Column{Name: "accesses"}, report.Column{Name: "read", Unit: "B"})
	if c.hasTime {
		all = append(all, report.Column{Name: "time of ops", Unit: "ns"})
	}
	if c.hasDisk {
		all = append(all, report.Column{Name: "from disk", Unit: "B"}, report.Column{Name: "again", Unit: "B"})
	}
	if c.hasStall {
		all = append(all, report.Column{Name: "waiting", Unit: "ns"})
	}
	return all
}

func (c *Collector) tables() []report.Table {
	const all = "Sums over all steps of the capture. An op's time is in the row of each tensor that it reads."
	tensors := report.Table{Name: "Tensors", About: all, Columns: c.totalColumns(report.Column{Name: "tensor"}, report.Column{Name: "layer"}, report.Column{Name: "component"}, report.Column{Name: "type"}, report.Column{Name: "size", Unit: "B"})}
	layers, components := map[int32]*total{}, map[string]*total{}
	into := func(t *total) *total {
		if t == nil {
			t = &total{}
		}
		return t
	}
	for _, t := range c.order {
		s, sum := &c.structure[t], &c.tensors[t]
		layer := any(float64(s.Layer))
		if s.Layer < 0 {
			layer = math.NaN()
		}
		tensors.Rows = append(tensors.Rows, append([]any{s.Name, layer, s.Component, s.Type, float64(s.Size)}, c.cells(sum)...))
		layers[s.Layer], components[s.Component] = into(layers[s.Layer]), into(components[s.Component])
		layers[s.Layer].add(*sum)
		components[s.Component].add(*sum)
	}
	byLayer := report.Table{Name: "Layers", About: all, Columns: c.totalColumns(report.Column{Name: "layer"})}
	for _, layer := range slices.Sorted(maps.Keys(layers)) {
		name := "none"
		if layer >= 0 {
			name = strconv.Itoa(int(layer))
		}
		byLayer.Rows = append(byLayer.Rows, append([]any{name}, c.cells(layers[layer])...))
	}
	byComponent := report.Table{Name: "Components", About: all, Columns: c.totalColumns(report.Column{Name: "component"})}
	for _, name := range slices.Sorted(maps.Keys(components)) {
		byComponent.Rows = append(byComponent.Rows, append([]any{name}, c.cells(components[name])...))
	}
	gaps := report.Table{Name: "Gaps", About: "Where a read begins, after the end of the one before in the same file.", Columns: []report.Column{{Name: "gap"}, {Name: "reads"}, {Name: "read", Unit: "B"}}}
	for i, name := range gapNames {
		gaps.Rows = append(gaps.Rows, []any{name, float64(c.gaps[i].accesses), float64(c.gaps[i].bytes)})
	}
	phases := report.Table{Name: "Phases", About: "Sums over the steps of each phase.", Columns: []report.Column{{Name: "phase"}, {Name: "steps"}, {Name: "tokens"}, {Name: "time", Unit: "ns"}, {Name: "read", Unit: "B"}}}
	if c.hasDisk {
		phases.Columns = append(phases.Columns, report.Column{Name: "from disk", Unit: "B"}, report.Column{Name: "again", Unit: "B"})
	}
	for phase := range tables.PhaseNames() {
		var n, tokens, seconds, read, disk, again float64
		for i := range c.steps {
			s := &c.steps[i]
			if s.row.Phase != tables.Phase(phase) {
				continue
			}
			n++
			tokens += float64(max(s.row.Tokens, 0))
			if t := s.seconds(); t > 0 {
				seconds += t
			}
			read, disk, again = read+float64(s.reads), disk+float64(s.disk), again+float64(s.again)
		}
		if n == 0 {
			continue
		}
		row := []any{tables.Phase(phase).String(), n, tokens, seconds * 1e9, read}
		if c.hasDisk {
			row = append(row, disk, again)
		}
		phases.Rows = append(phases.Rows, row)
	}
	return []report.Table{phases, byComponent, byLayer, gaps, tensors}
}
