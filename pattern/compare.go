package pattern

// This file compares two captures: how fast their tokens were, what they read, how much of it from
// disk, and in which order.

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
	"tensorcast/trace/tables"
)

// Tally sums up what the generation steps of one pattern cost, tensor by tensor. Make it with
// NewTally, then add the rows of the capture's tables, each once, in any order. It is for one
// goroutine.
type Tally struct {
	pattern  *Pattern
	meta     *tables.Meta
	steps    map[int32]bool // that generate and are whole
	count    int            // tokens that these generate
	tensors  []tally        // by structure row
	other    tally          // metadata and padding
	nanos    int64
	times    []TokenTime
	pageIns  bool
	from, to int64 // of the counted steps
	stalls   bool
}

type tally struct{ disk, again, stall int64 }

// TokenTime is how long a step that generates took, per token of its batch.
type TokenTime struct {
	Token int32
	Nanos int64
}

// NewTally returns an empty one. PageIns says whether page-ins were observed, which may be none.
func NewTally(p *Pattern, meta *tables.Meta, pageIns bool) *Tally {
	t := &Tally{pattern: p, meta: meta, steps: map[int32]bool{}, tensors: make([]tally, len(p.Structure)),
		pageIns: pageIns}
	for i := range p.tokens() {
		t.steps[p.Steps[i].Number] = true
		t.count += int(p.Steps[i].Batch)
	}
	return t
}

// errOverflow says that what a capture tells of cannot have been.
var errOverflow = errors.New("its rows together are of too many bytes, or last too long")

// sumUp adds what is not negative.
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
	t.times = append(t.times, TokenTime{s.Token, (s.End - s.Begin) / int64(max(s.Tokens, 1))})
	return sumUp(&t.nanos, s.End-s.Begin)
}

// PageIn adds a row of the pagein table, after the steps. What others than a step's thread read, a
// prefetcher for instance, counts from the first counted step's begin to the last one's end.
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
		if err := sumUp(&of.again, r.Bytes); err != nil {
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

// Side is what is known of one of two captures. Per token is per generated token of the whole
// steps. Null is what was not observed.
type Side struct {
	Model     string   `json:"model"`
	Command   []string `json:"command"`
	Host      string   `json:"host"`
	Tokens    int      `json:"tokens"`
	TokS      *float64 `json:"tokens_per_second"` // in llama_decode; what is between two calls is left out
	MedianNS  *int64   `json:"token_ns_median"`
	Bytes     int64    `json:"bytes_per_token"` // that ops read, wherever they came from
	DiskBytes *int64   `json:"disk_bytes_per_token"`
	Again     *int64   `json:"reread_bytes_per_token"` // of these, what had been read before
	StallNS   *int64   `json:"stall_ns_per_token"`     // of all threads together, in ops that read weights
	Reads     int      `json:"reads_per_token"`        // of the canonical sequence

	times []TokenTime
}

// TensorSides is a tensor in both. The figures are per generated token; null is what was not
// observed, or a model without that tensor.
type TensorSides struct {
	Name                            string
	Size, Bytes, Disk, Again, Stall [2]*int64
}

// Comparison is of two captures. Index 0 is the first, 1 the second.
type Comparison struct {
	Sides     [2]Side       `json:"captures"`
	SameModel bool          `json:"same_model"` // by fingerprint
	Identical bool          `json:"sequence_identical"`
	Edits     []Edit        `json:"edits"` // that make the second's canonical sequence of the first's
	Tensors   []TensorSides `json:"-"`     // largest difference of bytes from disk first, then of bytes, then of stall
}

// Compare compares. Tensors are matched by name.
func Compare(a, b *Tally) *Comparison {
	c := &Comparison{Sides: [2]Side{a.side(), b.side()}, Edits: []Edit{}}
	print := func(t *Tally) string {
		if int(t.pattern.Model) < len(t.meta.Models) {
			return t.meta.Models[t.pattern.Model].Fingerprint
		}
		return ""
	}
	c.SameModel = print(a) != "" && print(a) == print(b)
	names := map[string]int32{} // tensors of a, then those that only b has
	var all []string
	index := func(p *Pattern, row int32) int32 {
		name := p.Structure[row].Name
		i, ok := names[name]
		if !ok {
			i = int32(len(all))
			names[name], all = i, append(all, name)
		}
		return i
	}
	var sequences [2][]Read
	at := map[int32]int{} // of c.Tensors, by name
	for side, t := range []*Tally{a, b} {
		for _, r := range t.pattern.reference[tables.PhaseGeneration].reads {
			r.Tensor = index(t.pattern, r.Tensor)
			sequences[side] = append(sequences[side], r)
		}
		read := map[string]float64{}
		for _, r := range t.pattern.Tensors() {
			read[r.Name] = r.BytesPerToken * float64(len(t.steps)) / float64(max(t.count, 1))
		}
		for row := range t.tensors {
			s := &t.pattern.Structure[row]
			if s.Model != t.pattern.Model {
				continue
			}
			n := index(t.pattern, int32(row))
			i, ok := at[n]
			if !ok {
				i = len(c.Tensors)
				at[n] = i
				c.Tensors = append(c.Tensors, TensorSides{Name: s.Name})
			}
			of := &c.Tensors[i]
			bytes := int64(read[s.Name])
			of.Size[side], of.Bytes[side] = &s.Size, &bytes
			if t.pageIns {
				of.Disk[side], of.Again[side] = t.per(t.tensors[row].disk), t.per(t.tensors[row].again)
			}
			if t.stalls {
				of.Stall[side] = t.per(t.tensors[row].stall)
			}
		}
	}
	d := differ{same: sameRead, work: 1 << 26}
	c.Edits, _ = d.edits(sequences[0], sequences[1])
	for i := range c.Edits {
		c.Edits[i].Name = all[c.Edits[i].Tensor]
	}
	c.Identical = len(c.Edits) == 0
	c.Tensors = slices.DeleteFunc(c.Tensors, func(t TensorSides) bool {
		return value(t.Bytes[0])+value(t.Bytes[1])+value(t.Disk[0])+value(t.Disk[1]) == 0
	})
	slices.SortStableFunc(c.Tensors, func(x, y TensorSides) int {
		return cmp.Or(cmp.Compare(apart(y.Disk), apart(x.Disk)), cmp.Compare(apart(y.Bytes), apart(x.Bytes)),
			cmp.Compare(apart(y.Stall), apart(x.Stall)))
	})
	return c
}

func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// apart is by how much two figures differ; 0 if one is not known.
func apart(v [2]*int64) int64 {
	if v[0] == nil || v[1] == nil {
		return 0
	}
	return max(*v[0]-*v[1], *v[1]-*v[0])
}

// per is a sum per token.
func (t *Tally) per(sum int64) *int64 {
	n := sum / int64(max(t.count, 1))
	return &n
}

func (t *Tally) side() Side {
	p := t.pattern
	s := Side{
		Model: ModelName(t.meta, p.Model), Command: t.meta.Command, Host: t.meta.Host.CPU, Tokens: t.count,
		Reads: len(p.reference[tables.PhaseGeneration].reads), times: t.times,
	}
	var bytes int64
	for i := range p.tokens() {
		bytes += p.Steps[i].Bytes
	}
	s.Bytes = *t.per(bytes)
	if t.nanos > 0 {
		var each []int64
		tokens := 0
		for _, at := range t.times {
			each = append(each, at.Nanos)
		}
		tokens = t.count * len(t.times) / max(len(t.steps), 1) // steps without times are not counted
		rate, median := float64(tokens)/(float64(t.nanos)/1e9), int64(stats.Median(each))
		s.TokS, s.MedianNS = &rate, &median
	}
	disk, again, stall := t.other.disk, t.other.again, int64(0)
	for i := range t.tensors {
		disk, again, stall = disk+t.tensors[i].disk, again+t.tensors[i].again, stall+t.tensors[i].stall
	}
	if t.pageIns {
		s.DiskBytes, s.Again = t.per(disk), t.per(again)
	}
	if t.stalls {
		s.StallNS = t.per(stall)
	}
	return s
}

// Times are how long each step took, per token, of one side (0 or 1), in the order of the steps table.
func (c *Comparison) Times(side int) []TokenTime { return c.Sides[side].times }

// Document is the comparison in words and tables, with at most top tensors.
func (c *Comparison) Document(names [2]string, top int) tabular.Document {
	t := &tabular.Table{Columns: slices.Concat(tabular.Left(""), tabular.Right(names[0], names[1], "ratio"))}
	row := func(what string, text func(s *Side) string, of func(s *Side) float64) {
		ratio := "-"
		if x, y := of(&c.Sides[0]), of(&c.Sides[1]); x > 0 && y > 0 {
			ratio = fmt.Sprintf("%.3g", y/x)
		}
		t.Rows = append(t.Rows, []string{what, text(&c.Sides[0]), text(&c.Sides[1]), ratio})
	}
	bytes := func(of func(s *Side) *int64) (func(*Side) string, func(*Side) float64) {
		return func(s *Side) string { return sizeOf(of(s)) }, func(s *Side) float64 { return float64(value(of(s))) }
	}
	row("tokens", func(s *Side) string { return fmt.Sprint(s.Tokens) },
		func(s *Side) float64 { return float64(s.Tokens) })
	row("tokens per second", func(s *Side) string {
		if s.TokS == nil {
			return "-"
		}
		return fmt.Sprintf("%.3g", *s.TokS)
	}, func(s *Side) float64 {
		if s.TokS == nil {
			return 0
		}
		return *s.TokS
	})
	row("a token, median", func(s *Side) string { return millis(s.MedianNS) },
		func(s *Side) float64 { return float64(value(s.MedianNS)) })
	for _, line := range []struct {
		what string
		of   func(*Side) *int64
	}{
		{"read per token", func(s *Side) *int64 { return &s.Bytes }},
		{"of it from disk", func(s *Side) *int64 { return s.DiskBytes }},
		{"of that again", func(s *Side) *int64 { return s.Again }},
	} {
		text, figure := bytes(line.of)
		row(line.what, text, figure)
	}
	row("stall per token", func(s *Side) string { return millis(s.StallNS) },
		func(s *Side) float64 { return float64(value(s.StallNS)) })
	verdict := fmt.Sprintf("both read the same tensors in the same order for each token (%d reads)", c.Sides[0].Reads)
	if !c.Identical {
		verdict = fmt.Sprintf("their canonical sequences differ by %s; the first, at %d: %v",
			count(len(c.Edits), "edit"), c.Edits[0].Position, c.Edits[0])
	}
	lines := tabular.Lines{verdict}
	if !c.SameModel {
		lines = append(tabular.Lines{"the models differ: tensors are matched by name"}, lines...)
	}
	doc := tabular.Document{lines, t}
	tensors := &tabular.Table{Title: "tensors that differ most, per token",
		Columns: slices.Concat(tabular.Right("read "+names[0], names[1], "disk "+names[0], names[1],
			"stall "+names[0], names[1]), tabular.Left("tensor"))}
	for _, x := range c.Tensors[:min(top, len(c.Tensors))] {
		if apart(x.Disk)+apart(x.Bytes)+apart(x.Stall) == 0 && (x.Bytes[0] == nil) == (x.Bytes[1] == nil) {
			continue
		}
		tensors.Rows = append(tensors.Rows, []string{sizeOf(x.Bytes[0]), sizeOf(x.Bytes[1]), sizeOf(x.Disk[0]),
			sizeOf(x.Disk[1]), millis(x.Stall[0]), millis(x.Stall[1]), x.Name})
	}
	if len(tensors.Rows) > 0 {
		doc = append(doc, tensors)
	}
	return doc
}

func sizeOf(n *int64) string {
	if n == nil {
		return "-"
	}
	return humanize.Bytes(uint64(max(*n, 0)))
}

func millis(ns *int64) string {
	if ns == nil {
		return "-"
	}
	return fmt.Sprintf("%.3g ms", float64(*ns)/1e6)
}

// Columns is a table with a row for each tensor that either reads; a is the first capture, b the second.
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
