package pattern

// This file compares two captures: how fast their tokens were, what they read, how much of that
// from disk, and in which order.

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
	"tensorcast/trace/tables"
)

// Tally sums up what the steps of one pattern's phase cost, tensor by tensor. Make it with
// NewTally. Then add the rows of the capture's tables, each once, with those of the steps table
// before the page-ins. It is not safe for concurrent use.
type Tally struct {
	pattern  *Pattern
	meta     *tables.Meta
	steps    map[int32]bool // the steps of the pattern's phase that are whole
	tokens   int            // that these steps compute
	tensors  []costs        // by structure row
	other    costs          // metadata and padding
	nanos    int64
	times    []TokenTime
	pageIns  bool
	from, to int64 // when the counted steps began and ended (ns)
	stalls   bool
}

type costs struct{ disk, reread, stall int64 }

// TokenTime is how long a step took, per token of its batch.
type TokenTime struct {
	Token  int32 // -1 if the step generates nothing
	Nanos  int64
	Decode int64 // ns, of the whole step
}

// NewTally returns an empty Tally. pageIns tells whether page-ins were observed, even if none
// happened.
func NewTally(p *Pattern, meta *tables.Meta, pageIns bool) *Tally {
	t := &Tally{
		pattern: p, meta: meta, steps: map[int32]bool{}, tensors: make([]costs, len(p.Structure)),
		pageIns: pageIns,
	}
	for i := range p.comparedSteps() {
		t.steps[p.Steps[i].Number] = true
		t.tokens += int(p.Steps[i].Batch)
	}
	return t
}

// errOverflow means that a capture's sums are impossible.
var errOverflow = errors.New("its rows together are of too many bytes, or last too long")

// sumUp adds n to sum if it is not negative.
func sumUp(sum *int64, n int64) error {
	if *sum += max(n, 0); *sum < 0 || *sum > maxCaptureBytes {
		return errOverflow
	}
	return nil
}

// Step adds a row of the steps table.
func (t *Tally) Step(s *tables.StepRow) error {
	if !t.steps[s.Step] || s.Context != t.pattern.Context || s.End < s.Begin {
		return nil
	}
	if len(t.times) == 0 {
		t.from, t.to = s.Begin, s.End
	}
	t.from, t.to = min(t.from, s.Begin), max(t.to, s.End)
	nanos := s.End - s.Begin
	t.times = append(t.times, TokenTime{Token: s.Token, Nanos: nanos / int64(max(s.Tokens, 1)), Decode: nanos})
	return sumUp(&t.nanos, s.End-s.Begin)
}

// PageIn adds a row of the pagein table, after the steps were added. Reads by others than a step's
// thread, for instance by a prefetcher, count from the begin of the first counted step to the end
// of the last one.
func (t *Tally) PageIn(r *tables.PageInRow) error {
	during := r.Step < 0 && len(t.times) > 0 && r.Timestamp >= t.from && r.Timestamp <= t.to
	if !t.steps[r.Step] && !during || r.Model != t.pattern.Model {
		return nil
	}
	of := &t.other
	if r.Tensor >= 0 && int(r.Tensor) < len(t.tensors) {
		of = &t.tensors[r.Tensor]
	}
	if r.Rereads > 0 {
		if err := sumUp(&of.reread, r.Bytes); err != nil {
			return err
		}
	}
	return sumUp(&of.disk, r.Bytes)
}

// Access adds a row of the access table.
func (t *Tally) Access(a *tables.Access) error {
	if a.Stall < 0 || !t.steps[a.Step] || int(a.Tensor) >= len(t.tensors) || a.Tensor < 0 {
		return nil
	}
	t.stalls = true
	return sumUp(&t.tensors[a.Tensor].stall, a.Stall)
}

// Side describes one of two captures. Figures per token are per token that the whole steps compute. These
// generate, unless nothing was generated (Decodes). What was not observed is null.
type Side struct {
	Model     string   `json:"model"`
	Command   []string `json:"command"`
	Host      string   `json:"host"`
	Tokens    int      `json:"tokens"`
	TokS      *float64 `json:"tokens_per_second"` // in llama_decode, without the time between two calls
	MedianNS  *int64   `json:"token_ns_median"`
	Bytes     int64    `json:"bytes_per_token"` // that ops read, from disk or from memory
	DiskBytes *int64   `json:"disk_bytes_per_token"`
	Again     *int64   `json:"reread_bytes_per_token"` // the part of these that had been read before
	StallNS   *int64   `json:"stall_ns_per_token"`     // of all threads together, in ops that read weights
	Reads     int      `json:"reads_per_token"`        // of the canonical sequence, for one pass through the model
	Decodes   int      `json:"decodes,omitempty"`      // the steps, if these generate nothing; see Pattern.Basis

	times []TokenTime
}

// TensorSides is a tensor in both captures. The figures are per token, as those of Side. They are null if
// they were not observed, or if the model lacks that tensor.
type TensorSides struct {
	Name                            string
	Size, Bytes, Disk, Again, Stall [2]*int64
}

// Comparison compares two captures. Index 0 is the first, 1 the second.
type Comparison struct {
	Sides     [2]Side       `json:"captures"`
	SameModel bool          `json:"same_model"` // by fingerprint
	Identical bool          `json:"sequence_identical"`
	Edits     []Edit        `json:"edits"` // that turn the first's canonical sequence into the second's
	Tensors   []TensorSides `json:"-"`     // largest difference of bytes from disk first, then of bytes, then of stall
}

// Compare compares two captures. It matches tensors by name.
func Compare(a, b *Tally) *Comparison {
	c := &Comparison{Sides: [2]Side{a.buildSide(), b.buildSide()}, Edits: []Edit{}}
	c.SameModel = a.fingerprint() != "" && a.fingerprint() == b.fingerprint()
	c.compareSequences(a.pattern, b.pattern)
	byName := map[string]int{} // index of c.Tensors
	for side, t := range []*Tally{a, b} {
		c.addTensors(side, t, byName)
	}
	c.Tensors = slices.DeleteFunc(c.Tensors, func(t TensorSides) bool {
		return valueOrZero(t.Bytes[0])+valueOrZero(t.Bytes[1])+valueOrZero(t.Disk[0])+valueOrZero(t.Disk[1]) == 0
	})
	slices.SortStableFunc(c.Tensors, func(x, y TensorSides) int {
		return cmp.Or(cmp.Compare(c.differenceOf(y.Disk), c.differenceOf(x.Disk)),
			cmp.Compare(c.differenceOf(y.Bytes), c.differenceOf(x.Bytes)),
			cmp.Compare(c.differenceOf(y.Stall), c.differenceOf(x.Stall)))
	})
	return c
}

// fingerprint returns that of the model, "" if the capture lacks it.
func (t *Tally) fingerprint() string {
	if int(t.pattern.Model) < len(t.meta.Models) {
		return t.meta.Models[t.pattern.Model].Fingerprint
	}
	return ""
}

// compareSequences finds the edits between the canonical sequences of two patterns.
func (c *Comparison) compareSequences(a, b *Pattern) {
	var names []string
	numbers := map[string]int32{}                       // index of names
	var sequences [2][]Read                             // with Tensor as an index of names
	sizesDiffer := a.Phase != b.Phase || !a.Generates() // what is gathered depends on the number of tokens
	for side, p := range []*Pattern{a, b} {
		reads, _ := p.referencePass()
		for _, r := range reads {
			if _, gathers := gatherOf(r.Op); gathers && sizesDiffer {
				r.Varies = true
			}
			name := p.Structure[r.Tensor].Name
			number, known := numbers[name]
			if !known {
				number = int32(len(names))
				numbers[name], names = number, append(names, name)
			}
			r.Tensor = number
			sequences[side] = append(sequences[side], r)
		}
	}
	d := differ{same: sameRead, work: 1 << 26}
	c.Edits, _ = d.findScript(sequences[0], sequences[1])
	for i := range c.Edits {
		c.Edits[i].Name = names[c.Edits[i].Tensor]
	}
	c.Identical = len(c.Edits) == 0
}

// addTensors adds the figures of one side's tensors. byName has their indices in c.Tensors.
func (c *Comparison) addTensors(side int, t *Tally, byName map[string]int) {
	bytesPerToken := map[string]float64{}
	for _, r := range t.pattern.Tensors() {
		bytesPerToken[r.Name] = r.BytesPerToken * float64(len(t.steps)) / float64(max(t.tokens, 1))
	}
	for row := range t.tensors {
		s := &t.pattern.Structure[row]
		if s.Model != t.pattern.Model {
			continue
		}
		i, known := byName[s.Name]
		if !known {
			i = len(c.Tensors)
			byName[s.Name] = i
			c.Tensors = append(c.Tensors, TensorSides{Name: s.Name})
		}
		sides := &c.Tensors[i]
		bytes := int64(bytesPerToken[s.Name])
		sides.Size[side], sides.Bytes[side] = &s.Size, &bytes
		if t.pageIns {
			sides.Disk[side] = t.perToken(t.tensors[row].disk)
			sides.Again[side] = t.perToken(t.tensors[row].reread)
		}
		if t.stalls {
			sides.Stall[side] = t.perToken(t.tensors[row].stall)
		}
	}
}

func valueOrZero(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// differenceOf returns by how much two figures per token differ, in what texts are per. It is 0 if one is
// not known.
func (c *Comparison) differenceOf(v [2]*int64) int64 {
	if v[0] == nil || v[1] == nil {
		return 0
	}
	a, b := *scale(v[0], c.tokensPerUnit(0)), *scale(v[1], c.tokensPerUnit(1))
	return max(a-b, b-a)
}

// perToken returns a sum per token.
func (t *Tally) perToken(sum int64) *int64 {
	n := sum / int64(max(t.tokens, 1))
	return &n
}

func (t *Tally) buildSide() Side {
	p := t.pattern
	s := Side{
		Model: ModelName(t.meta, p.Model), Command: t.meta.Command, Host: t.meta.Host.CPU, Tokens: t.tokens,
		times: t.times,
	}
	pass, _ := p.referencePass()
	if s.Reads = len(pass); !p.Generates() {
		s.Decodes = len(t.steps)
	}
	var bytes int64
	for i := range p.comparedSteps() {
		bytes += p.Steps[i].Bytes
	}
	s.Bytes = *t.perToken(bytes)
	if t.nanos > 0 {
		var each []int64
		for _, at := range t.times {
			each = append(each, at.Nanos)
		}
		tokens := t.tokens * len(t.times) / max(len(t.steps), 1) // steps without times are not counted
		rate, median := float64(tokens)/(float64(t.nanos)/1e9), int64(stats.Median(each))
		s.TokS, s.MedianNS = &rate, &median
	}
	disk, again, stall := t.other.disk, t.other.reread, int64(0)
	for i := range t.tensors {
		disk, again, stall = disk+t.tensors[i].disk, again+t.tensors[i].reread, stall+t.tensors[i].stall
	}
	if t.pageIns {
		s.DiskBytes, s.Again = t.perToken(disk), t.perToken(again)
	}
	if t.stalls {
		s.StallNS = t.perToken(stall)
	}
	return s
}

// Times are how long each step took, per token, of one side (0 or 1), in the order of the steps table.
func (c *Comparison) Times(side int) []TokenTime { return c.Sides[side].times }

// PerDecode reports whether neither capture generated anything. Its texts and figures are then per decode.
func (c *Comparison) PerDecode() bool { return c.Sides[0].Decodes > 0 && c.Sides[1].Decodes > 0 }

// unit is what the figures of texts are per.
func (c *Comparison) unit() string {
	if c.PerDecode() {
		return "decode"
	}
	return "token"
}

// tokensPerUnit is how many tokens of a side a figure of a text is of, on average.
func (c *Comparison) tokensPerUnit(side int) float64 {
	if s := &c.Sides[side]; c.PerDecode() {
		return float64(max(s.Tokens, 1)) / float64(s.Decodes)
	}
	return 1
}

// Document returns the comparison in words and tables, with at most top tensors. names are what the two
// captures are called.
func (c *Comparison) Document(names [2]string, top int) tabular.Document {
	verdict := fmt.Sprintf("both read the same tensors in the same order for each %s (%d reads)", c.unit(),
		c.Sides[0].Reads)
	if c.PerDecode() {
		verdict = fmt.Sprintf("both read the same tensors in the same order as they go through the model (%d reads)",
			c.Sides[0].Reads)
	}
	if !c.Identical {
		verdict = fmt.Sprintf("their canonical sequences differ by %s; the first, at %d: %v",
			formatCount(len(c.Edits), "edit"), c.Edits[0].Position, c.Edits[0])
	}
	lines := tabular.Lines{verdict}
	if !c.SameModel {
		lines = append(tabular.Lines{"the models differ: tensors are matched by name"}, lines...)
	}
	doc := tabular.Document{lines, c.sidesTable(names)}
	if tensors := c.tensorsTable(names, top); len(tensors.Rows) > 0 {
		doc = append(doc, tensors)
	}
	return doc
}

// sideFigure is a figure of both sides: as text, and as a number for the ratio (0 if it is not known).
type sideFigure struct {
	name   string
	text   func(side int) string
	number func(side int) float64
}

// sideFigures are the figures of the two sides.
func (c *Comparison) sideFigures() []sideFigure {
	size := func(name string, of func(*Side) *int64) sideFigure {
		scaled := func(side int) *int64 { return scale(of(&c.Sides[side]), c.tokensPerUnit(side)) }
		return sideFigure{name, func(side int) string { return formatSize(scaled(side)) },
			func(side int) float64 { return float64(valueOrZero(scaled(side))) }}
	}
	time := func(name string, of func(side int) *int64) sideFigure {
		return sideFigure{name, func(side int) string { return formatMillis(of(side)) },
			func(side int) float64 { return float64(valueOrZero(of(side))) }}
	}
	count := func(name string, of func(*Side) int) sideFigure {
		return sideFigure{name, func(side int) string { return fmt.Sprint(of(&c.Sides[side])) },
			func(side int) float64 { return float64(of(&c.Sides[side])) }}
	}
	unit := c.unit()
	figures := []sideFigure{count("tokens", func(s *Side) int { return s.Tokens })}
	if c.PerDecode() {
		figures = append(figures, count("decodes", func(s *Side) int { return s.Decodes }))
	}
	return append(figures,
		sideFigure{"tokens per second", func(side int) string { return rateText(&c.Sides[side]) },
			func(side int) float64 { return rateNumber(&c.Sides[side]) }},
		time("a "+unit+", median", c.medianTime),
		size("read per "+unit, func(s *Side) *int64 { return &s.Bytes }),
		size("of it from disk", func(s *Side) *int64 { return s.DiskBytes }),
		size("of that again", func(s *Side) *int64 { return s.Again }),
		time("stall per "+unit, func(side int) *int64 {
			return scale(c.Sides[side].StallNS, c.tokensPerUnit(side))
		}),
	)
}

// medianTime is the median time of a token, or of a decode.
func (c *Comparison) medianTime(side int) *int64 {
	s := &c.Sides[side]
	if !c.PerDecode() || len(s.times) == 0 {
		return s.MedianNS
	}
	var each []int64
	for _, t := range s.times {
		each = append(each, t.Decode)
	}
	median := int64(stats.Median(each))
	return &median
}

// scale multiplies what is known.
func scale(n *int64, by float64) *int64 {
	if n == nil || by == 1 {
		return n
	}
	scaled := int64(math.Round(min(float64(*n)*by, maxCaptureBytes)))
	return &scaled
}

func rateText(s *Side) string {
	if s.TokS == nil {
		return "-"
	}
	return tabular.Number(*s.TokS)
}

func rateNumber(s *Side) float64 {
	if s.TokS == nil {
		return 0
	}
	return *s.TokS
}

// sidesTable has a row for each figure of the two sides.
func (c *Comparison) sidesTable(names [2]string) *tabular.Table {
	t := &tabular.Table{Columns: slices.Concat(tabular.Left(""), tabular.Right(names[0], names[1], "ratio"))}
	for _, f := range c.sideFigures() {
		ratio := "-"
		if x, y := f.number(0), f.number(1); x > 0 && y > 0 {
			ratio = tabular.Number(y / x)
		}
		t.Rows = append(t.Rows, []string{f.name, f.text(0), f.text(1), ratio})
	}
	return t
}

// tensorsTable has the first tensors that differ, at most top.
func (c *Comparison) tensorsTable(names [2]string, top int) *tabular.Table {
	t := &tabular.Table{
		Title: "tensors that differ most, per " + c.unit(),
		Columns: slices.Concat(tabular.Right("read "+names[0], names[1], "disk "+names[0], names[1],
			"stall "+names[0], names[1]), tabular.Left("tensor")),
	}
	for _, x := range c.Tensors[:min(top, len(c.Tensors))] {
		if c.differenceOf(x.Disk)+c.differenceOf(x.Bytes)+c.differenceOf(x.Stall) == 0 &&
			(x.Bytes[0] == nil) == (x.Bytes[1] == nil) {
			continue
		}
		var row []string
		for _, format := range []struct {
			of   [2]*int64
			text func(*int64) string
		}{{x.Bytes, formatSize}, {x.Disk, formatSize}, {x.Stall, formatMillis}} {
			for side := range format.of {
				row = append(row, format.text(scale(format.of[side], c.tokensPerUnit(side))))
			}
		}
		t.Rows = append(t.Rows, append(row, x.Name))
	}
	return t
}

func formatSize(n *int64) string {
	if n == nil {
		return "-"
	}
	return humanize.IBytes(uint64(max(*n, 0)))
}

func formatMillis(ns *int64) string {
	if ns == nil {
		return "-"
	}
	return tabular.Number(float64(*ns)/1e6) + " ms"
}

// Columns returns a table with a row for each tensor that either capture reads. The suffix _a
// stands for the first capture, _b for the second.
func (c *Comparison) Columns() []tables.Column {
	name := make([]string, len(c.Tensors))
	columns := []tables.Column{{Name: "tensor_name", Values: name}}
	for i, of := range []struct {
		name string
		of   func(t *TensorSides) [2]*int64
	}{
		{"size_bytes", func(t *TensorSides) [2]*int64 { return t.Size }},
		{"bytes_per_token", func(t *TensorSides) [2]*int64 { return t.Bytes }},
		{"disk_bytes_per_token", func(t *TensorSides) [2]*int64 { return t.Disk }},
		{"reread_bytes_per_token", func(t *TensorSides) [2]*int64 { return t.Again }},
		{"stall_ns_per_token", func(t *TensorSides) [2]*int64 { return t.Stall }},
	} {
		for side, suffix := range []string{"_a", "_b"} {
			values := make([]*int64, len(c.Tensors))
			for row := range c.Tensors {
				values[row] = of.of(&c.Tensors[row])[side]
				if i == 0 {
					name[row] = c.Tensors[row].Name
				}
			}
			columns = append(columns, tables.Column{Name: of.name + suffix, Values: values})
		}
	}
	return columns
}
