package pattern

// This file finds out how deterministic a run is: for each phase and batch size, the canonical
// sequence, which steps follow it, and where and why the others depart.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
	"tensorcast/trace/tables"
)

// Cause is why a sequence departs from the canonical one. It is inferred from what else is known of
// the steps, see the constants.
type Cause string

// The causes, in the order in which they are tried.
const (
	CauseBatch   Cause = "batch"   // it is the canonical sequence of batches of another size
	CauseRouting Cause = "routing" // it is the canonical one, apart from reads of chosen experts
	// CauseSampling: only reads behind the last layer differ, because logits are computed for some
	// steps only.
	CauseSampling Cause = "sampling"
	CauseWarmup   Cause = "warm-up"        // it is the warm-up's sequence, or only the first steps have it
	CauseContext  Cause = "context length" // all steps from some step to the last have it
	CauseUnknown  Cause = "unknown"
)

// Determinism is the verdict on all whole steps.
type Determinism struct {
	Groups     []Group     `json:"groups"`
	Departures []Departure `json:"departures"` // most steps first
	Steps      []StepMatch `json:"-"`          // all, in the order of Pattern.Steps

	phase tables.Phase // the pattern's
}

// Phase is the phase that the verdict is of: generation, unless nothing was generated.
func (d *Determinism) Phase() tables.Phase { return d.phase }

// Group describes the steps of one phase and batch size. Sequences are compared by tensor and op,
// and in generation also by bytes. The skeleton is the reads that are not of chosen experts. In a
// dense model that is all reads.
type Group struct {
	Phase             string `json:"phase"`
	Batch             int    `json:"batch_tokens"` // of each step; 0: not known
	Steps             int    `json:"steps"`
	Tokens            int    `json:"tokens"`    // that the steps compute; 0 if Batch is 0
	Following         int    `json:"following"` // steps with exactly the canonical sequence
	Distinct          int    `json:"distinct"`  // sequences
	Reads             int    `json:"reads"`     // of the canonical sequence
	Bytes             int64  `json:"bytes"`     // median over the steps that follow
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
	// Rough means that a shorter script of edits may exist. There were too many edits to search for
	// it.
	Rough bool `json:"rough,omitempty"`
}

// StepMatch is how a step compares with its group's canonical sequence.
type StepMatch struct {
	Step, Token     int32
	Phase           tables.Phase
	Batch           int32
	Reads           int
	Departure       int // index of Determinism.Departures; -1 if the step follows
	SkeletonFollows bool
}

// Determinism compares all steps that are not cut short. sizes has how many tokens each step
// computes, from the steps table. It is used for steps that do not generate. cancelled is called
// now and then, and its error ends the work.
func (p *Pattern) Determinism(sizes map[int32]int32, cancelled func() error) (*Determinism, error) {
	groups := p.groupSteps(sizes)
	order := slices.SortedFunc(maps.Keys(groups), func(a, b groupKey) int {
		return cmp.Or(cmp.Compare(a.phase, b.phase), cmp.Compare(a.batch, b.batch))
	})
	d := &Determinism{Departures: []Departure{}, phase: p.Phase}
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
		c := comparison{
			pattern: p, groupKey: g, steps: groups[g], differ: differ{same: same, work: work},
			departures: map[int]int{}, follows: map[int]bool{},
		}
		if err := c.compareGroup(d, matches, known, cancelled); err != nil {
			return nil, err
		}
		work = c.differ.work
	}
	d.sort(matches, known)
	return d, nil
}

// groupKey identifies the steps of one phase and batch size; 0 if that is not known.
type groupKey struct {
	phase tables.Phase
	batch int32
}

// groupSteps groups the steps that are not cut short, as indices of Steps.
func (p *Pattern) groupSteps(sizes map[int32]int32) map[groupKey][]int {
	groups := map[groupKey][]int{}
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.CutShort {
			continue
		}
		g := groupKey{s.Phase, s.Batch}
		if s.Phase != tables.PhaseGeneration {
			g.batch = max(sizes[s.Number], 0)
		}
		groups[g] = append(groups[g], i)
	}
	return groups
}

// sort puts the departures that most steps have first.
func (d *Determinism) sort(matches []StepMatch, known []bool) {
	order := make([]int, len(d.Departures))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(len(d.Departures[b].Steps), len(d.Departures[a].Steps))
	})
	newIndex := make([]int, len(order))
	sorted := make([]Departure, len(order))
	for to, from := range order {
		newIndex[from], sorted[to] = to, d.Departures[from]
	}
	d.Departures = sorted
	for i := range matches {
		if !known[i] {
			continue
		}
		if m := &matches[i]; m.Departure >= 0 {
			m.Departure = newIndex[m.Departure]
		}
		d.Steps = append(d.Steps, matches[i])
	}
}

// comparison compares the steps of one group.
type comparison struct {
	groupKey
	pattern  *Pattern
	steps    []int // of the group, as indices of Pattern.Steps
	differ   differ
	ref      reference
	skeleton []Read // of the canonical sequence

	// By index of Pattern.sequences, for the sequences of the steps so far:

	departures map[int]int  // index of Determinism.Departures; -1 if the sequence is the canonical one
	follows    map[int]bool // whether the skeleton is the canonical one
}

// compareGroup adds the group and its departures to d. For each of the group's steps it fills in matches
// and sets known.
func (c *comparison) compareGroup(d *Determinism, matches []StepMatch, known []bool, cancelled func() error) error {
	p := c.pattern
	c.ref = p.canonicalSequence(c.steps, c.phase == tables.PhaseGeneration)
	c.skeleton = p.skeleton(c.ref.reads)
	g := Group{
		Phase: c.phase.String(), Batch: int(c.batch), Steps: len(c.steps), Tokens: int(c.batch) * len(c.steps),
		Reads: len(c.ref.reads), SkeletonReads: len(c.skeleton),
	}
	departuresBefore := len(d.Departures)
	var bytes, skeletonBytes []int64
	for _, i := range c.steps {
		s := &p.Steps[i]
		if err := cancelled(); err != nil {
			return err
		}
		departure := c.departureOf(d, s)
		if departure < 0 {
			g.Following++
			bytes = append(bytes, s.Bytes)
			skeletonBytes = append(skeletonBytes, sumBytes(p.skeleton(s.Reads)))
		} else {
			dep := &d.Departures[departure]
			dep.Steps = append(dep.Steps, s.Number)
			if s.Phase == tables.PhaseGeneration {
				dep.Tokens = append(dep.Tokens, s.Token)
			}
		}
		if c.follows[s.sequence] {
			g.SkeletonFollowing++
		}
		matches[i] = StepMatch{
			Step: s.Number, Token: s.Token, Phase: s.Phase, Batch: c.batch, Reads: len(s.Reads),
			Departure: departure, SkeletonFollows: c.follows[s.sequence],
		}
		known[i] = true
	}
	for sequence, departure := range c.departures {
		if departure >= 0 {
			d.Departures[departure].Cause = c.findCause(&d.Departures[departure], p.sequences[sequence])
		}
	}
	g.Distinct = 1 + len(d.Departures) - departuresBefore
	g.Bytes, g.SkeletonBytes = int64(stats.Median(bytes)), int64(stats.Median(skeletonBytes))
	d.Groups = append(d.Groups, g)
	return nil
}

func sumBytes(reads []Read) (sum int64) {
	for _, r := range reads {
		sum += r.Bytes
	}
	return sum
}

// departureOf returns the index in d of the departure of a step's sequence, or -1 if the step follows. It
// adds a departure for a new sequence.
func (c *comparison) departureOf(d *Determinism, s *Step) int {
	if departure, known := c.departures[s.sequence]; known {
		return departure
	}
	c.follows[s.sequence] = slices.EqualFunc(c.skeleton, c.pattern.skeleton(s.Reads), c.differ.same)
	departure := -1
	if !slices.EqualFunc(c.ref.reads, s.Reads, c.differ.same) {
		if departure = c.knownDeparture(s); departure < 0 {
			departure = len(d.Departures)
			d.Departures = append(d.Departures, c.describeDeparture(s))
		}
	}
	c.departures[s.sequence] = departure
	return departure
}

// describeDeparture returns the departure of a step's sequence, without the steps and the cause.
func (c *comparison) describeDeparture(s *Step) Departure {
	dep := Departure{Phase: c.phase.String(), Batch: int(c.batch), Skeleton: c.follows[s.sequence]}
	var shortest bool
	dep.Edits, shortest = c.differ.findScript(c.ref.reads, s.Reads)
	dep.Rough = !shortest
	for e := range dep.Edits {
		dep.Edits[e].Name = c.pattern.Structure[dep.Edits[e].Tensor].Name
	}
	return dep
}

// knownDeparture returns the departure of an earlier sequence that counts as equal in this phase,
// or -1.
func (c *comparison) knownDeparture(s *Step) int {
	for other, at := range c.departures {
		if at >= 0 && len(c.pattern.sequences[other]) == len(s.Reads) &&
			slices.EqualFunc(c.pattern.sequences[other], s.Reads, c.differ.same) {
			return at
		}
	}
	return -1
}

// findCause returns the first cause that fits.
func (c *comparison) findCause(d *Departure, reads []Read) Cause {
	p := c.pattern
	if c.phase == tables.PhaseGeneration && p.Generates() {
		for batch, ref := range p.groups {
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
		c.coversSteps(d, c.steps[:min(len(d.Steps), len(c.steps))]) && 2*len(d.Steps) < len(c.steps):
		return CauseWarmup
	case len(d.Steps) > 1 && c.coversSteps(d, c.steps[max(len(c.steps)-len(d.Steps), 0):]):
		return CauseContext
	}
	return CauseUnknown
}

// behindLayers reports whether all edits are of reads behind the canonical sequence's last read of
// a layer.
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

// coversSteps reports whether the departure's steps begin with these.
func (c *comparison) coversSteps(d *Departure, steps []int) bool {
	for i, at := range steps {
		if d.Steps[i] != c.pattern.Steps[at].Number {
			return false
		}
	}
	return true
}

// skeleton returns the reads without those of chosen experts.
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

// Document returns the verdict in words and tables, with at most top departures.
func (d *Determinism) Document(top int) tabular.Document {
	var steps, following, skeleton int
	routed := false
	groups := &tabular.Table{
		Columns: slices.Concat(tabular.Left("phase"),
			tabular.Right("batch", "steps", "follow", "share", "sequences", "reads", "skeleton reads", "follow it")),
	}
	for _, g := range d.Groups {
		if g.Phase == d.phase.String() {
			steps, following, skeleton = steps+g.Steps, following+g.Following, skeleton+g.SkeletonFollowing
		}
		routed = routed || g.SkeletonReads < g.Reads
		batch := "unknown"
		if g.Batch > 0 {
			batch = fmt.Sprint(g.Batch)
		}
		groups.Rows = append(groups.Rows, []string{
			g.Phase, batch, fmt.Sprint(g.Steps), fmt.Sprint(g.Following), formatPercent(g.Following, g.Steps),
			fmt.Sprint(g.Distinct), fmt.Sprint(g.Reads), fmt.Sprint(g.SkeletonReads),
			fmt.Sprint(g.SkeletonFollowing),
		})
	}
	verdict := fmt.Sprintf("%v: %d of %d steps (%s) read exactly the canonical sequence of their batch size",
		d.phase, following, steps, formatPercent(following, steps))
	if routed {
		verdict += fmt.Sprintf("; apart from chosen experts %d do (%s)", skeleton, formatPercent(skeleton, steps))
	}
	doc := tabular.Document{tabular.Lines{verdict}, groups}
	if len(d.Departures) == 0 {
		return doc
	}
	t := &tabular.Table{
		Title: "sequences that depart",
		Columns: slices.Concat(tabular.Left("phase"), tabular.Right("batch", "steps", "first step", "edits", "at"),
			tabular.Left("cause", "first edit")),
	}
	for _, dep := range d.Departures[:min(top, len(d.Departures))] {
		row := []string{
			dep.Phase, fmt.Sprint(dep.Batch), fmt.Sprint(len(dep.Steps)), fmt.Sprint(dep.Steps[0]),
			fmt.Sprint(len(dep.Edits)), "-", string(dep.Cause), "-",
		}
		if len(dep.Edits) > 0 {
			row[5], row[7] = fmt.Sprint(dep.Edits[0].Position), dep.Edits[0].String()
		}
		t.Rows = append(t.Rows, row)
	}
	return append(doc, t)
}

// formatPercent formats a share. Less than all is never rounded to 100 %.
func formatPercent(n, of int) string {
	if of == 0 {
		return "-"
	}
	share := 100 * float64(n) / float64(of)
	if n < of {
		share = min(share, 99.9)
	}
	return fmt.Sprintf("%.3g %%", share)
}

// String describes the edit.
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

// Columns returns a table with a row for each step. departure is -1 if the step follows, else the
// number of the departure, under which EditColumns has its edits.
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

// EditColumns returns a table with a row for each edit of each departure.
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
