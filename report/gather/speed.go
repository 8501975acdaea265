package gather

// This file says what each step spent its time with, and what the target did when.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/chart"
	"tensorcast/internal/stats"
	"tensorcast/report"
	"tensorcast/trace/tables"
)

// Parts of a step's time. Their numbers are those of their colours.
const (
	partComputing = iota
	partWaiting
	partOther
	partCount
)

var (
	partNames  = [partCount]string{"computing", "waiting for the disk", "the rest: the kernel's work, other programs"}
	partColors = [partCount]int{0, 3, 5} // of chart.Color
)

// shares are what a step spent its time with, in seconds. NaN is for what is not known.
func (c *Collector) shares(s *stepSums, compute time.Duration) (parts [partCount]float64) {
	for i := range parts {
		parts[i] = math.NaN()
	}
	took := s.seconds()
	if !(took > 0) {
		return parts
	}
	left := took
	isUsual := s.row.Phase == c.phase && s.row.Tokens == c.usualBatch && compute > 0
	if isUsual {
		parts[partComputing] = min(compute.Seconds(), left)
		left -= parts[partComputing]
	}
	// Threads wait at the same time, so the sum over them may be more than the step's time.
	if s.hasStall {
		parts[partWaiting] = min(float64(s.stall)/1e9, left)
		left -= parts[partWaiting]
	}
	if isUsual && s.hasStall {
		parts[partOther] = left
	}
	return parts
}

// speed is how fast each step was, and what it spent its time with. It is nil if no step's time is known. Compute is
// how long a step computes that waits for nothing; 0 if that is not known.
func (c *Collector) speed(compute time.Duration) *report.Speed {
	s := &report.Speed{Parts: make([]report.Part, partCount)}
	for i := range s.Parts {
		s.Parts[i].Class = report.Class{Name: partNames[i], Color: chart.ColorText(partColors[i])}
	}
	isTimed := false
	for i := range c.steps {
		step := &c.steps[i]
		isTimed = isTimed || step.seconds() > 0
		s.Tokens = append(s.Tokens, float64(max(step.row.Tokens, 1)))
		s.Seconds = append(s.Seconds, step.seconds())
		s.Begins = append(s.Begins, float64(step.row.Begin)/1e9)
		for part, seconds := range c.shares(step, compute) {
			s.Parts[part].Seconds = append(s.Parts[part].Seconds, seconds)
		}
	}
	if !isTimed {
		return nil
	}
	if compute > 0 {
		s.Possible = float64(max(c.usualBatch, 1)) / compute.Seconds()
	}
	s.About = "A bar is as high as its step is fast, and its colours are the shares of the step's time. Computing is " +
		"what a step takes that waits for nothing; it is known of steps of the usual size. What threads wait is summed " +
		"over them, up to the time that is left."
	if !c.hasStall {
		s.About += " This capture does not tell how long ops waited: `tracer --detail op+io` records it."
	}
	return s
}

// mostSpeedBars is how many bars a figure of speed has at most. Beyond it, steps share bars.
const mostSpeedBars = 400

// SpeedFigure shows the same as a picture. It is nil if no step's time is known.
func (c *Collector) SpeedFigure(title string, compute time.Duration) *chart.Stack {
	s := c.speed(compute)
	if s == nil {
		return nil
	}
	each := ceilDiv(len(s.Tokens), mostSpeedBars)
	bars := ceilDiv(len(s.Tokens), each)
	f := &chart.Stack{
		Title: title, XLabel: "step", YLabel: "tokens per second", Unknown: "not told apart", To: float64(bars * each),
		Bound: s.Possible, BoundName: "if nothing waited", Values: make([]float64, bars), Caption: s.About,
	}
	for i, part := range s.Parts {
		f.Parts = append(f.Parts, chart.StackPart{Name: part.Name, Color: partColors[i], Shares: make([]float64, bars)})
	}
	highest := 0.0
	var usual []float64 // bars of the phase that the figures are of
	for bar := range bars {
		var tokens, seconds, main float64
		for i := bar * each; i < min((bar+1)*each, len(s.Tokens)); i++ {
			if !(s.Seconds[i] > 0) {
				continue
			}
			tokens, seconds = tokens+s.Tokens[i], seconds+s.Seconds[i]
			if c.steps[i].row.Phase == c.phase {
				main++
			}
			for part := range f.Parts {
				if v := s.Parts[part].Seconds[i]; v > 0 {
					f.Parts[part].Shares[bar] += v
				}
			}
		}
		if seconds == 0 {
			continue
		}
		f.Values[bar] = tokens / seconds
		for part := range f.Parts {
			f.Parts[part].Shares[bar] /= seconds
		}
		highest = max(highest, f.Values[bar])
		if main > 0 {
			usual = append(usual, f.Values[bar])
		}
	}
	if f.High = cmp.Or(scaleEnd(usual), highest); highest > f.High {
		f.Caption += " Bars that reach the top are higher."
	}
	if f.Bound < 2*f.High {
		f.High = max(f.High, f.Bound)
	} else { // the bars would be low
		f.Caption += fmt.Sprintf(" If nothing waited it would be %.3g tokens per second.", f.Bound)
	}
	f.High *= 1.06
	return f
}

// scaleEnd is the end of a scale that shows most values: it leaves out few of them that are many times as great, and
// would leave nothing of it to the others. It is 0 of no values.
func scaleEnd(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	const many = 3
	return min(slices.Max(values), many*stats.Quantile(values, 0.9))
}

// SpeedSheet has a row for each step: how long it took, and what with. Compute is as in SpeedFigure.
func (c *Collector) SpeedSheet(compute time.Duration) *Sheet {
	s := &Sheet{Name: "Speed", About: "What each step spent its time with. Computing is known of steps of the usual size."}
	phases := make([]string, len(c.steps))
	parts := make([][partCount]float64, len(c.steps))
	for i := range c.steps {
		phases[i], parts[i] = c.steps[i].row.Phase.String(), c.shares(&c.steps[i], compute)
	}
	add := func(key, name, unit string, value func(i int) (int64, bool)) {
		s.addNumbers(key, name, unit, len(c.steps), value)
	}
	add("step", "step", "", func(i int) (int64, bool) { return int64(c.steps[i].row.Step), true })
	s.addTexts("phase", "phase", phases)
	add("tokens", "tokens", "", func(i int) (int64, bool) { return int64(c.steps[i].row.Tokens), true })
	add("begin_ns", "begin", unitTime, func(i int) (int64, bool) { return c.steps[i].row.Begin, true })
	add("step_ns", "time", unitTime, func(i int) (int64, bool) {
		r := &c.steps[i].row
		return r.End - r.Begin, c.steps[i].seconds() > 0
	})
	for part, name := range [partCount][2]string{
		{"computing_ns", "computing"}, {"waiting_ns", "waiting for the disk"}, {"other_ns", "the rest"},
	} {
		add(name[0], name[1], unitTime, func(i int) (int64, bool) {
			v := parts[i][part]
			return int64(v * 1e9), !math.IsNaN(v)
		})
	}
	return s
}

// mostSpans is how many spans there are at most.
const mostSpans = 400

// spans are what the target did when: before its first step, and then the phases. Steps of a phase that follow each
// other make one span, unless the target did nothing for a while.
func (c *Collector) spans() (all []report.Span) {
	if len(c.steps) == 0 {
		return nil
	}
	for pause := int64(time.Second); ; pause *= 4 {
		if all = c.spansApart(pause); len(all) <= mostSpans || pause > math.MaxInt64/4 {
			return all[:min(len(all), mostSpans)]
		}
	}
}

// spansApart are the spans between which the target did nothing for so many nanoseconds, or went to another phase.
func (c *Collector) spansApart(pause int64) (all []report.Span) {
	if begin := c.steps[0].row.Begin; begin > 0 {
		about := "before the first step: the program starts and loads the model"
		if c.hasDisk {
			about += ", " + humanize.IBytes(uint64(c.loadDisk)) + " from disk"
		}
		all = append(all, report.Span{
			Class: report.Class{Name: "start", Color: chart.ColorText(len(tables.PhaseNames()))},
			End:   float64(begin) / 1e9, About: about,
		})
	}
	for from := 0; from < len(c.steps); {
		first := &c.steps[from].row
		end, to, tokens, disk := first.Begin, from, int64(0), int64(0)
		for ; to < len(c.steps); to++ {
			s := &c.steps[to]
			if s.row.Phase != first.Phase || s.row.Begin-end > pause {
				break
			}
			end = max(end, s.row.Begin, s.row.End)
			tokens += int64(max(s.row.Tokens, 0))
			disk += s.disk
		}
		about := fmt.Sprintf("steps: %d, tokens: %d", to-from, tokens)
		if c.hasDisk {
			about += ", " + humanize.IBytes(uint64(max(disk, 0))) + " from disk"
		}
		all = append(all, report.Span{
			Class: report.Class{Name: first.Phase.String(), Color: chart.ColorText(int(first.Phase))},
			Begin: float64(first.Begin) / 1e9, End: float64(end) / 1e9, About: about,
		})
		from = to
	}
	return all
}
