package pattern

// This file says how deterministic a run is: for each phase and each size of batch the canonical
// sequence, who follows it, and where and why the others do not.

import (
	"cmp"
	"fmt"
	"slices"

	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
	"tensorcast/trace/tables"
)

// Cause is why a sequence departs from the canonical one. It is concluded from what else is known
// of the steps: see the constants.
type Cause string

// The causes, in the order in which they are tried.
const (
	CauseBatch   Cause = "batch"   // it is the canonical sequence of batches of another size
	CauseRouting Cause = "routing" // apart from reads of chosen experts it is the canonical one
	// only reads behind the last layer differ: logits are computed for some steps only
	CauseSampling Cause = "sampling"
	CauseWarmup   Cause = "warm-up"        // it is the warm-up's sequence, or only the first steps have it
	CauseContext  Cause = "context length" // all steps from one on to the last have it
	CauseUnknown  Cause = "unknown"
)

// Determinism is the verdict on all whole steps.
type Determinism struct {
	Groups     []Group     `json:"groups"`
	Departures []Departure `json:"departures"` // most steps first
	Steps      []StepMatch `json:"-"`          // all, in the order of Pattern.Steps
}

// Group is the steps of one phase whose batches have one size. Sequences are compared by tensor and
// op; in generation by bytes, too. The skeleton is the reads that are not of chosen experts: of a
// dense model all.
type Group struct {
	Phase             string `json:"phase"`
	Batch             int    `json:"batch_tokens"` // of each step; 0: not known
	Steps             int    `json:"steps"`
	Tokens            int    `json:"tokens"`    // that the steps compute; 0 where Batch is
	Following         int    `json:"following"` // steps with exactly the canonical sequence
	Distinct          int    `json:"distinct"`  // sequences
	Reads             int    `json:"reads"`     // of the canonical sequence
	Bytes             int64  `json:"bytes"`     // of a step that follows, the median
	SkeletonReads     int    `json:"skeleton_reads"`
	SkeletonBytes     int64  `json:"skeleton_bytes"`
	SkeletonFollowing int    `json:"skeleton_following"` // steps with exactly the canonical skeleton
}

// Departure is a sequence that is not the canonical one of its group.
type Departure struct {
	Phase    string  `json:"phase"`
	Batch    int     `json:"batch_tokens"`
	Steps    []int32 `json:"steps"`
	Tokens   []int32 `json:"tokens,omitempty"` // generated ones
	Cause    Cause   `json:"cause"`
	Skeleton bool    `json:"skeleton_follows"`
	Edits    []Edit  `json:"edits"`
	// Rough says that a shorter script of edits may exist: there were too many to look for it.
	Rough bool `json:"rough,omitempty"`
}

// StepMatch is what is found of a step.
type StepMatch struct {
	Step, Token     int32
	Phase           tables.Phase
	Batch           int32
	Reads           int
	Departure       int // index of Determinism.Departures; -1 if the step follows
	SkeletonFollows bool
}

// Determinism compares all steps that are not cut short. Sizes are how many tokens each step
// computes, by the steps table; it is used for what does not generate. Cancelled is asked now and
// then, and its error ends the work.
func (p *Pattern) Determinism(sizes map[int32]int32, cancelled func() error) (*Determinism, error) {
	type group struct {
		phase tables.Phase
		batch int32
	}
	of := map[group][]int{}
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.CutShort {
			continue
		}
		g := group{s.Phase, s.Batch}
		if s.Phase != tables.PhaseGeneration {
			g.batch = max(sizes[s.Number], 0)
		}
		of[g] = append(of[g], i)
	}
	order := make([]group, 0, len(of))
	for g := range of {
		order = append(order, g)
	}
	slices.SortFunc(order, func(a, b group) int {
		return cmp.Or(cmp.Compare(a.phase, b.phase),
			cmp.Compare(a.batch, b.batch))
	})
	d := &Determinism{Departures: []Departure{}}
	matches := make([]StepMatch, len(p.Steps))
	known := make([]bool, len(p.Steps))
	work := 1 << 27
	for _, g := range order {
		if err := cancelled(); err != nil {
			return nil, err
		}
		same := sameTensor
		if g.phase == tables.PhaseGeneration {
			same = sameRead
		}
		c := comparison{pattern: p, phase: g.phase, batch: g.batch, steps: of[g],
			differ: differ{same: same, work: work}}
		if err := c.run(d, matches, known, cancelled); err != nil {
			return nil, err
		}
		work = c.differ.work
	}
	d.sort(matches, known)
	return d, nil
}

// sort puts those departures first that most steps have.
func (d *Determinism) sort(matches []StepMatch, known []bool) {
	order := make([]int, len(d.Departures))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(len(d.Departures[b].Steps),
			len(d.Departures[a].Steps))
	})
	place := make([]int, len(order))
	sorted := make([]Departure, len(order))
	for to, from := range order {
		place[from], sorted[to] = to, d.Departures[from]
	}
	d.Departures = sorted
	for i := range matches {
		if !known[i] {
			continue
		}
		if m := &matches[i]; m.Departure >= 0 {
			m.Departure = place[m.Departure]
		}
		d.Steps = append(d.Steps, matches[i])
	}
}

// comparison is of one group.
type comparison struct {
	pattern *Pattern
	phase   tables.Phase
	batch   int32
	steps   []int
	differ  differ
	ref     reference
	routed  []Read // the skeleton of the canonical sequence
}

func (c *comparison) run(d *Determinism, matches []StepMatch, known []bool, cancelled func() error) error {
	p := c.pattern
	c.ref = p.canonical(c.steps, c.phase == tables.PhaseGeneration)
	c.routed = p.skeleton(c.ref.reads)
	g := Group{
		Phase: c.phase.String(), Batch: int(c.batch), Steps: len(c.steps), Tokens: int(c.batch) * len(c.steps),
		Reads: len(c.ref.reads), SkeletonReads: len(c.routed), Distinct: 1,
	}
	var bytes, skeleton []int64
	departures := map[int]int{} // by Pattern.sequences; -1 follows
	follows := map[int]bool{}   // the skeleton
	for _, i := range c.steps {
		s := &p.Steps[i]
		if err := cancelled(); err != nil {
			return err
		}
		at, met := departures[s.sequence]
		if !met {
			at = -1
			follows[s.sequence] = slices.EqualFunc(c.routed, p.skeleton(s.Reads), c.differ.same)
			if !slices.EqualFunc(c.ref.reads, s.Reads, c.differ.same) {
				at = c.same(d, s, departures)
			}
			if at < 0 && !slices.EqualFunc(c.ref.reads, s.Reads, c.differ.same) {
				at = len(d.Departures)
				dep := Departure{Phase: g.Phase, Batch: g.Batch, Skeleton: follows[s.sequence]}
				var shortest bool
				dep.Edits, shortest = c.differ.edits(c.ref.reads, s.Reads)
				dep.Rough = !shortest
				for e := range dep.Edits {
					dep.Edits[e].Name = p.Structure[dep.Edits[e].Tensor].Name
				}
				d.Departures = append(d.Departures, dep)
				g.Distinct++
			}
			departures[s.sequence] = at
		}
		if at < 0 {
			g.Following++
			bytes = append(bytes, s.Bytes)
			var sum int64
			for _, r := range p.skeleton(s.Reads) {
				sum += r.Bytes
			}
			skeleton = append(skeleton, sum)
		} else {
			dep := &d.Departures[at]
			dep.Steps = append(dep.Steps, s.Number)
			if s.Phase == tables.PhaseGeneration {
				dep.Tokens = append(dep.Tokens, s.Token)
			}
		}
		if follows[s.sequence] {
			g.SkeletonFollowing++
		}
		matches[i] = StepMatch{Step: s.Number, Token: s.Token, Phase: s.Phase, Batch: c.batch, Reads: len(s.Reads),
			Departure: at, SkeletonFollows: follows[s.sequence]}
		known[i] = true
	}
	for sequence, at := range departures {
		if at >= 0 {
			d.Departures[at].Cause = c.cause(&d.Departures[at], p.sequences[sequence])
		}
	}
	g.Bytes, g.SkeletonBytes = int64(stats.Median(bytes)), int64(stats.Median(skeleton))
	d.Groups = append(d.Groups, g)
	return nil
}

// same is the departure of an earlier sequence that is equal in this phase's sense, or -1.
func (c *comparison) same(d *Determinism, s *Step, departures map[int]int) int {
	for other, at := range departures {
		if at >= 0 && len(c.pattern.sequences[other]) == len(s.Reads) &&
			slices.EqualFunc(c.pattern.sequences[other], s.Reads, c.differ.same) {
			return at
		}
	}
	return -1
}

// cause is the first that what is known supports.
func (c *comparison) cause(d *Departure, reads []Read) Cause {
	p := c.pattern
	if c.phase == tables.PhaseGeneration {
		for batch, ref := range p.batches {
			if batch != c.batch && slices.EqualFunc(ref.reads, reads, sameTensor) &&
				!slices.EqualFunc(ref.reads, c.ref.reads, sameTensor) {
				return CauseBatch
			}
		}
	}
	warmup := p.reference[tables.PhaseWarmup].reads
	switch {
	case d.Skeleton:
		return CauseRouting
	case c.behindLayers(d):
		return CauseSampling
	case c.phase != tables.PhaseWarmup && slices.EqualFunc(warmup, reads, sameTensor) ||
		c.end(d, c.steps[:min(len(d.Steps), len(c.steps))]) && 2*len(d.Steps) < len(c.steps):
		return CauseWarmup
	case len(d.Steps) > 1 && c.end(d, c.steps[max(len(c.steps)-len(d.Steps), 0):]):
		return CauseContext
	}
	return CauseUnknown
}

// behindLayers reports whether all edits are of reads behind the last one of a layer, in the canonical
// sequence.
func (c *comparison) behindLayers(d *Departure) bool {
	last := -1
	for i, r := range c.ref.reads {
		if c.pattern.Structure[r.Tensor].Layer >= 0 {
			last = i
		}
	}
	for _, e := range d.Edits {
		if e.Position <= last || e.To <= last || c.pattern.Structure[e.Tensor].Layer >= 0 {
			return false
		}
	}
	return last >= 0
}

// end reports whether the departure's steps are these.
func (c *comparison) end(d *Departure, steps []int) bool {
	for i, at := range steps {
		if d.Steps[i] != c.pattern.Steps[at].Number {
			return false
		}
	}
	return true
}

// skeleton is reads without those of chosen experts.
func (p *Pattern) skeleton(reads []Read) []Read {
	routed := func(r Read) bool {
		gather, ok := gatherOf(r.Op)
		return ok && gather.Experts
	}
	if !slices.ContainsFunc(reads, routed) {
		return reads
	}
	return slices.DeleteFunc(slices.Clone(reads), routed)
}

// Document is the verdict in words and tables, with at most top departures.
func (d *Determinism) Document(top int) tabular.Document {
	var steps, following, skeleton int
	routed := false
	groups := &tabular.Table{Columns: slices.Concat(tabular.Left("phase"),
		tabular.Right("batch", "steps", "follow", "share", "sequences", "reads", "skeleton reads", "follow it"))}
	for _, g := range d.Groups {
		if g.Phase == tables.PhaseGeneration.String() {
			steps, following, skeleton = steps+g.Steps, following+g.Following, skeleton+g.SkeletonFollowing
		}
		routed = routed || g.SkeletonReads < g.Reads
		batch := "unknown"
		if g.Batch > 0 {
			batch = fmt.Sprint(g.Batch)
		}
		groups.Rows = append(groups.Rows, []string{
			g.Phase, batch, fmt.Sprint(g.Steps), fmt.Sprint(g.Following), percent(g.Following, g.Steps),
			fmt.Sprint(g.Distinct), fmt.Sprint(g.Reads), fmt.Sprint(g.SkeletonReads),
			fmt.Sprint(g.SkeletonFollowing),
		})
	}
	verdict := fmt.Sprintf("generation: %d of %d steps (%s) read exactly the canonical sequence of their batch size",
		following, steps, percent(following, steps))
	if routed {
		verdict += fmt.Sprintf("; apart from chosen experts %d do (%s)", skeleton, percent(skeleton, steps))
	}
	doc := tabular.Document{tabular.Lines{verdict}, groups}
	if len(d.Departures) == 0 {
		return doc
	}
	t := &tabular.Table{Title: "sequences that depart",
		Columns: slices.Concat(tabular.Left("phase"), tabular.Right("batch", "steps", "first step", "edits", "at"),
			tabular.Left("cause", "first edit"))}
	for _, dep := range d.Departures[:min(top, len(d.Departures))] {
		row := []string{dep.Phase, fmt.Sprint(dep.Batch), fmt.Sprint(len(dep.Steps)), fmt.Sprint(dep.Steps[0]),
			fmt.Sprint(len(dep.Edits)), "-", string(dep.Cause), "-"}
		if len(dep.Edits) > 0 {
			row[5], row[7] = fmt.Sprint(dep.Edits[0].Position), dep.Edits[0].String()
		}
		t.Rows = append(t.Rows, row)
	}
	return append(doc, t)
}

// percent never rounds what is not all to 100 %.
func percent(n, of int) string {
	if of == 0 {
		return "-"
	}
	share := 100 * float64(n) / float64(of)
	if n < of {
		share = min(share, 99.9)
	}
	return fmt.Sprintf("%.3g %%", share)
}

// String says what is done with which read.
func (e Edit) String() string {
	switch e.Kind {
	case KindMissing:
		return "without " + e.Name
	case KindExtra:
		return e.Name + " besides"
	case KindSize:
		return fmt.Sprintf("%d bytes of %s instead of %d", e.Got, e.Name, e.Expected)
	case KindOp:
		return fmt.Sprintf("%s by %s", e.Name, e.Op)
	}
	return fmt.Sprintf("%s at %d", e.Name, e.To)
}

// Columns is a table with a row for each step: departure is -1 where it follows, else the number of
// the departure, by which EditColumns has its edits.
func (d *Determinism) Columns() []tables.Column {
	n := len(d.Steps)
	step, token, batch, reads := make([]int32, n), make([]int32, n), make([]int32, n), make([]int32, n)
	departure, edits, exact, skeleton := make([]int32, n), make([]int32, n), make([]int32, n), make([]int32, n)
	phase, cause := make([]string, n), make([]string, n)
	for i, s := range d.Steps {
		step[i], token[i], phase[i], batch[i], reads[i], departure[i] = s.Step, s.Token, s.Phase.String(), s.Batch,
			int32(s.Reads), int32(s.Departure)
		if s.SkeletonFollows {
			skeleton[i] = 1
		}
		if s.Departure < 0 {
			exact[i] = 1
			continue
		}
		edits[i], cause[i] = int32(len(d.Departures[s.Departure].Edits)), string(d.Departures[s.Departure].Cause)
	}
	return []tables.Column{
		{Name: "step", Values: step}, {Name: "token", Values: token}, {Name: "phase", Values: phase},
		{Name: "batch_tokens", Values: batch}, {Name: "reads", Values: reads},
		{Name: "exact", Values: exact}, {Name: "skeleton_exact", Values: skeleton},
		{Name: "departure", Values: departure}, {Name: "edits", Values: edits}, {Name: "cause", Values: cause},
	}
}

// EditColumns is a table with a row for each edit of each departure.
func (d *Determinism) EditColumns() []tables.Column {
	var (
		departure, position, to []int32
		kind, tensor, op        []string
		expected, got           []int64
	)
	for i := range d.Departures {
		for _, e := range d.Departures[i].Edits {
			departure, position, to = append(departure, int32(i)), append(position, int32(e.Position)),
				append(to, int32(e.To))
			kind, tensor, op = append(kind, string(e.Kind)), append(tensor, e.Name), append(op, e.Op)
			expected, got = append(expected, e.Expected), append(got, e.Got)
		}
	}
	return []tables.Column{
		{Name: "departure", Values: departure}, {Name: "kind", Values: kind}, {Name: "position", Values: position},
		{Name: "to", Values: to}, {Name: "tensor_name", Values: tensor},
		{Name: "op", Values: op}, {Name: "expected_bytes", Values: expected}, {Name: "bytes_accessed", Values: got},
	}
}
