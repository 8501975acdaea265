package gather

// This file makes a report of the sums.

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
	"tensorcast/report"
	"tensorcast/trace/tables"
)

// seconds is how long a step took; NaN if its end was not observed.
func (s *stepSums) seconds() float64 {
	if s.row.End == tables.NotObserved || s.row.End <= s.row.Begin {
		return math.NaN()
	}
	return float64(s.row.End-s.row.Begin) / 1e9
}

// Report makes the page of what was collected. Title is its first line. Compute is as in Outlook.
func (c *Collector) Report(title string, meta *tables.Meta, compute Compute) *report.Report {
	r := &report.Report{
		Title: title, Main: c.phase.String(), Speed: c.speed(compute.Expected), Spans: c.spans(), Series: c.series(),
		Heat: c.heatmaps(), Reads: c.readMap(),
	}
	for _, sheet := range []*Sheet{c.Phases(), c.Components(), c.Layers(), c.Gaps(), c.Tensors()} {
		r.Tables = append(r.Tables, sheet.table())
	}
	for i := range c.steps {
		s := &c.steps[i].row
		label := "step " + strconv.Itoa(int(s.Step))
		if s.Token >= 0 {
			label = "token " + strconv.Itoa(int(s.Token))
		}
		r.Steps = append(r.Steps, report.Step{Label: label, Phase: s.Phase.String()})
	}
	r.Facts, r.Verdict = c.facts(meta, compute)
	r.Notes = c.MissingData(meta)
	return r
}

// countedSteps are the steps that generate a token, without the first. If nothing was generated, they are those of the
// prompts. The first of these is left out, too, if there are others: it finds the memory as the program left it when it
// loaded the model.
func (c *Collector) countedSteps() (all []*stepSums) {
	for i := range c.steps {
		if s := &c.steps[i]; s.row.Phase == c.phase {
			all = append(all, s)
		}
	}
	if !c.Generates() && len(all) == 1 {
		return all
	}
	return all[min(len(all), 1):]
}

// per is what the figures of texts are per.
func (c *Collector) per() string {
	if c.Generates() {
		return "token"
	}
	return "decode"
}

const mib = 1 << 20

// littleFromDisk is the share of what a token reads that may come from disk where memory suffices.
const littleFromDisk = 0.01

// perUnit has figures of each of the counted steps. They are divided by the tokens that the step generates, but for
// stalled, which is the share of the step's time. If it generates none, they are of the whole step. tokens is the sum
// of these steps' tokens.
func (c *Collector) perUnit() (times, bytes, disk, again, stalled []float64, tokens int) {
	for _, s := range c.countedSteps() {
		n := float64(max(s.row.Tokens, 1))
		tokens += int(n)
		if !c.Generates() {
			n = 1
		}
		if t := s.seconds(); t > 0 {
			times = append(times, t/n)
			stalled = append(stalled, float64(s.stall)/1e9/t)
		}
		bytes, disk, again = append(bytes, float64(s.bytes)/n), append(disk, float64(s.disk)/n),
			append(again, float64(s.reread)/n)
	}
	return times, bytes, disk, again, stalled, tokens
}

// facts are the most important figures, and the verdict on them.
func (c *Collector) facts(meta *tables.Meta, compute Compute) (facts []report.Fact, verdict []string) {
	times, bytes, disk, again, stalled, tokens := c.perUnit()
	if tokens == 0 {
		return nil, []string{nothingToSay}
	}
	about, perUnit := "median over the generated tokens but the first", 1.0
	if !c.Generates() {
		about, perUnit = "median over the decodes, without the first of several", c.tokensPerStep()
	}
	if len(times) > 0 {
		facts = append(facts, report.Fact{
			Name: "speed", Value: tabular.Number(perUnit/stats.Median(times)) + " tok/s", About: about,
		})
	}
	read := stats.Median(bytes)
	facts = append(facts,
		report.Fact{Name: "read per " + c.per(), Value: tabular.Size(read), About: about})
	if c.hasDisk {
		facts = append(facts,
			report.Fact{
				Name: "from disk per " + c.per(), Value: tabular.Size(stats.Median(disk)), About: about,
			},
			report.Fact{
				Name: "again from disk per " + c.per(), Value: tabular.Size(stats.Median(again)),
				About: about + "; what had been read from disk before in this capture",
			})
	}
	if c.hasStall && len(stalled) > 0 {
		facts = append(facts,
			report.Fact{
				Name: "waiting for the disk", Value: fmt.Sprintf("%.0f %% of a %s", 100*stats.Median(stalled), c.per()),
				About: about + "; summed over its threads",
			})
	}
	if c.Generates() {
		facts = append(facts, report.Fact{Name: "generated tokens", Value: strconv.Itoa(tokens + 1)})
	} else {
		facts = append(facts,
			report.Fact{Name: "decodes", Value: strconv.Itoa(len(bytes)), About: "that these figures are of"},
			report.Fact{Name: "tokens of a decode", Value: fmt.Sprintf("%.0f", c.tokensPerStep()), About: about},
			report.Fact{
				Name: "passes through the model", Value: strconv.Itoa(max(c.Passes, 1)), About: about + "; in one",
			})
	}
	return facts, c.Outlook(meta, compute).Sentences()
}

// series are what each step read and how long it waited, without what is nothing in all steps.
func (c *Collector) series() (all []report.Series) {
	add := func(name, unit string, value func(s *stepSums) float64) {
		one := report.Series{Name: name, Unit: unit}
		for i := range c.steps {
			one.Values = append(one.Values, value(&c.steps[i]))
		}
		if slices.ContainsFunc(one.Values, func(v float64) bool { return v > 0 }) {
			all = append(all, one)
		}
	}
	add("read from disk", "B", func(s *stepSums) float64 { return float64(s.disk) })
	add("of it again", "B", func(s *stepSums) float64 { return float64(s.reread) })
	add("waiting for disk", "ns", func(s *stepSums) float64 {
		if !s.hasStall {
			return math.NaN()
		}
		return float64(s.stall)
	})
	return all
}

// Grid is a value for each tensor and step.
type Grid struct {
	Name  string // one of GridNames
	Title string
	Unit  string // "B", "ns" or "ns/B"
	About string
	Rows  []report.Row
	// Empty says that the grid is 0 or unknown everywhere.
	Empty bool
	// At is the value of a row in a step: 0 for nothing, NaN for what was not observed.
	At func(row, step int) float64
}

// Names of grids.
const (
	GridDisk    = "disk"
	GridRereads = "rereads"
	GridStall   = "stall"
	GridPace    = "pace"
	GridTime    = "time"
	GridReads   = "reads"
)

// TitleReads is the title of GridReads.
const TitleReads = "reads"

// GridNames are the names of all grids, the most telling first.
func GridNames() []string {
	return []string{GridDisk, GridRereads, GridStall, GridPace, GridTime, GridReads}
}

// Grids are those of which the capture has something. They begin with what differs between tokens: what
// came from disk, then times. Reads come after these, because all tokens of a dense model read the same
// bytes. Empty grids come last.
func (c *Collector) Grids() (all []Grid) {
	rows := make([]report.Row, len(c.firstReads))
	for i, t := range c.firstReads {
		s := &c.structure[t]
		rows[i] = report.Row{
			Name: s.Name, Weight: float64(s.Size), Detail: s.Type + ", " + tabular.Size(float64(s.Size)),
			Block: tensorRow(s).Block,
		}
	}
	// Of a tensor without any value, rest is shown.
	add := func(name, title, unit, about string, m *matrix, rest float64) {
		g := Grid{Name: name, Title: title, Unit: unit, About: about, Rows: rows, Empty: true,
			At: func(row, step int) float64 {
				values := m.rows[c.firstReads[row]]
				if values == nil {
					return rest
				}
				return float64(values[step/c.stepsPerColumn]) / float64(c.stepsPerColumn)
			}}
		for _, values := range m.rows {
			g.Empty = g.Empty && !slices.ContainsFunc(values, func(v float32) bool { return v > 0 })
		}
		all = append(all, g)
	}
	if c.hasDisk {
		add(GridDisk, "from disk", "B", "How much of each tensor was read from disk in each step.", &c.fromDisk, 0)
		add(GridRereads, "again from disk", "B", "How much of each tensor was read from disk in each step, and "+
			"had been before.", &c.reread, 0)
	}
	if c.hasStall {
		add(GridStall, "waiting", "ns", "How long the ops that read each tensor waited for the disk.", &c.waiting, 0)
	}
	if c.hasTime {
		pace := Grid{Name: GridPace, Title: "time per byte", Unit: "ns/B",
			About: "How long the ops that read each tensor took for each byte of it.", Rows: rows,
			At: func(row, step int) float64 {
				time, bytes := c.opNanos.rows[c.firstReads[row]], c.readBytes.rows[c.firstReads[row]]
				if time == nil || bytes == nil || bytes[step/c.stepsPerColumn] == 0 {
					return math.NaN()
				}
				return float64(time[step/c.stepsPerColumn]) / float64(bytes[step/c.stepsPerColumn])
			}}
		all = append(all, pace)
		add(GridTime, "time", "ns", "How long the ops took that read each tensor.", &c.opNanos, math.NaN())
	}
	add(GridReads, TitleReads, "B", "How much of each tensor each step reads.", &c.readBytes, 0)
	slices.SortStableFunc(all, func(a, b Grid) int {
		switch {
		case a.Empty == b.Empty:
			return 0
		case b.Empty:
			return -1
		}
		return 1
	})
	return all
}

// heatmaps are the grids that a page shows, without those in which there is nothing.
func (c *Collector) heatmaps() (all []report.Heatmap) {
	for _, g := range c.Grids() {
		if g.Name == GridRereads || g.Name == GridPace || g.Empty {
			continue
		}
		all = append(all, report.Heatmap{Name: g.Title, Unit: g.Unit, About: g.About + " Rows are as high as " +
			"their tensors are large, and a sixth of the average at least.", Rows: g.Rows, At: g.At})
	}
	return all
}
