package forecast

// This file judges, and says the judgement in words and as a table.

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/tabular"
)

// Verdict is what is expected of a model on a machine.
type Verdict struct {
	Line  string `json:"line"`  // in one sentence
	Helps bool   `json:"helps"` // prefetchd makes tokens come faster
	// Name is how the model was named.
	Name    string  `json:"model"`
	Pass    *Pass   `json:"pass"`
	Machine Machine `json:"machine"`
	Memory  Memory  `json:"memory"`
	// Routing says what is taken of a mixture's routing; "" of a dense model.
	Routing string `json:"routing,omitempty"`
	// Known says that the last run's choices are known.
	Known bool  `json:"routing_known"`
	Rows  []Row `json:"rows"` // one for each of Changes
	// FirstAlone and FirstHelped are seconds until the first token of a short prompt, if nothing of the model is in
	// memory before.
	FirstAlone  Range    `json:"first_token_alone_s"`
	FirstHelped Range    `json:"first_token_with_prefetchd_s"`
	Start       []Advice `json:"start_with"`
	// Notes say what could not be measured, and what was taken instead.
	Notes []string `json:"notes,omitempty"`
}

// worth is from which gain on help is worth its while: less than that differs from run to run.
const worth = 1.1

// Judge says what is expected. r is nil of a dense model. Start and Notes are left to the caller.
func Judge(name string, p *Pass, m Machine, memory Memory, r *Routing) *Verdict {
	v := &Verdict{Name: name, Pass: p, Machine: m, Memory: memory}
	if r != nil {
		v.Routing, v.Known = r.About, r.Known
	}
	for _, c := range Changes {
		v.Rows = append(v.Rows, Expect(p, m, memory, r, c))
	}
	here := v.Rows[0]
	v.Helps = !here.Fits && here.Helped.Likely >= worth*here.Alone.Likely
	v.FirstAlone, v.FirstHelped = firstToken(p, &m, here)
	v.Line = v.sentence()
	return v
}

// How many times as long the first token takes as the disk needs for what has to be read: see "The way to the first
// token".
var (
	firstFitting = Range{2.2, 2.6, 3.0} // alone, with room for all
	firstAlone   = Range{3.9, 5, 6}     // alone, without
	firstHelped  = Range{2.1, 2.6, 3.1} // with prefetchd
)

// firstPasses is how often the model is gone through before the first token is there: to warm up, and for the prompt.
const firstPasses = 2

// firstToken is how many seconds pass until the first token: the file is read once, and what has no room again by each
// pass.
func firstToken(p *Pass, m *Machine, here Row) (alone, helped Range) {
	if m.Disk <= 0 {
		return Range{}, Range{}
	}
	needed := (float64(p.Files) + firstPasses*here.Reads.High) / m.Disk
	times := func(of Range) Range { return Range{of.Low * needed, of.Likely * needed, of.High * needed} }
	if here.Fits {
		return times(firstFitting), times(firstHelped)
	}
	return times(firstAlone), times(firstHelped)
}

func (v *Verdict) sentence() string {
	here, p := v.Rows[0], v.Pass
	kind := "dense model"
	if p.Experts != nil {
		kind = "mixture of experts"
	}
	what := fmt.Sprintf("this %s has %s that tokens read, in memory for %s",
		kind, size(p.Weights()), size(v.Memory.Bytes))
	switch {
	case here.Fits:
		return fmt.Sprintf("all of it fits in memory: %s tok/s, with prefetchd and without; %s", here.Alone, what)
	case v.Memory.Bytes-ownBytes-helperBytes-p.Context*int64(v.Memory.Context) <= 0:
		return fmt.Sprintf("there is no memory for the model: %s tok/s at most, with prefetchd and without; %s",
			rate(here.Alone.High), what)
	case !v.Helps:
		return fmt.Sprintf("prefetchd would change little: %s tok/s alone, and %s with it; %s",
			here.Alone, here.Helped, what)
	}
	return fmt.Sprintf("prefetchd would give %s tok/s instead of %s, and nobody more than %s; %s", here.Helped, here.Alone,
		rate(here.Most.High), what)
}

// String writes a range with two digits, as more would say more than is known.
func (r Range) String() string {
	low, high := rate(r.Low), rate(r.High)
	if low == high {
		return low
	}
	return low + " to " + high
}

// rate writes a number with two digits and without an exponent.
func rate(x float64) string {
	if !(x > 0) || math.IsInf(x, 1) {
		return "0"
	}
	digits := int(math.Floor(math.Log10(x))) - 1 // the second one is that of 10 to this power
	scale := math.Pow(10, float64(digits))
	return strconv.FormatFloat(math.Round(x/scale)*scale, 'f', max(-digits, 0), 64)
}

func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// perSecond writes a rate of bytes.
func perSecond(x float64) string { return size(int64(x)) + "/s" }

// Document is the verdict for people: the sentence, the table, and what it goes by.
func (v *Verdict) Document() tabular.Document {
	t := &tabular.Table{
		Title:   "tokens per second",
		Columns: append(tabular.Left(""), tabular.Right("alone", "with prefetchd", "at most", "read a pass")...),
	}
	for _, r := range v.Rows {
		reads := "nothing"
		if !r.Fits {
			low, high := size(int64(r.Reads.Low)), size(int64(r.Reads.High))
			if reads = high; low != high {
				reads = low + " to " + high
			}
		}
		t.Rows = append(t.Rows, []string{"  " + r.Name, r.Alone.String(), r.Helped.String(), r.Most.String(), reads})
	}
	start := &tabular.Table{Title: "start llama.cpp with"}
	for _, a := range v.Start {
		start.Rows = append(start.Rows, []string{"  " + a.Flag, a.Why})
	}
	if len(v.Start) == 0 {
		start.Title = ""
	}
	return tabular.Document{tabular.Lines{v.Line}, t, v.basis(), start}
}

// basis says what the forecast goes by.
func (v *Verdict) basis() tabular.Lines {
	p, m := v.Pass, &v.Machine
	types := make([]string, 0, len(p.Types))
	for _, w := range p.Types {
		if w.Bytes >= p.Types[0].Bytes/20 {
			types = append(types, w.Name)
		}
	}
	lines := tabular.Lines{fmt.Sprintf("model: %s, %s, a token reads %s of it, in %s", v.Name, size(p.Files),
		size(int64(v.tokenBytes())), strings.Join(types, ", "))}
	if e := p.Experts; e != nil {
		lines = append(lines, fmt.Sprintf("experts: %d in each of %d layers, %s in all; a token chooses %d; every token reads "+
			"%s besides; %s", e.Geometry.Experts, e.Layers, size(e.Bytes), e.Chosen, size(p.Trunk),
			v.Routing))
	}
	lines = append(lines, fmt.Sprintf("memory: %s, bounded by %s; %s of it for llama.cpp itself with %d tokens of context",
		size(v.Memory.Bytes), v.Memory.Bound, size(ownBytes+p.Context*int64(v.Memory.Context)), v.Memory.Context))
	if m.Disk > 0 {
		lines = append(lines, fmt.Sprintf("disk: %s, %s beside a program that computes, and %s for a program's own faults",
			perSecond(m.Disk), perSecond(m.streamed()), perSecond(m.touched())))
	}
	lines = append(lines, fmt.Sprintf("computing: %.3g ms a token if all is in memory, which delivers %s to %d threads",
		1000*p.ComputeTime(m, 1), perSecond(m.Pace.Memory), m.Threads))
	if m.Disk > 0 {
		lines = append(lines, fmt.Sprintf("first token of a short prompt, with nothing in memory before: %s s alone, %s s with "+
			"prefetchd --exec", v.FirstAlone, v.FirstHelped))
	}
	lines = append(lines, fmt.Sprintf("ranges have %.0f %% for what differs from run to run", 100*(spread-1)))
	return append(lines, v.Notes...)
}

// tokenBytes is how many bytes of weights a token reads.
func (v *Verdict) tokenBytes() (sum float64) {
	for _, w := range v.Pass.Types {
		sum += w.Bytes
	}
	return sum
}
