package pattern

// This file turns the access table of a capture into steps with sequences, and finds each phase's
// reference sequence.

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"tensorcast/trace/tables"
)

// Read is one op reading one weight.
type Read struct {
	Tensor int32 // row of Pattern.Structure
	Op     string
	Bytes  int64 // distinct bytes of the tensor that were read
	// Varies means that Bytes depends on which tokens are generated together. Bytes is then not
	// part of the sequence.
	Varies bool
}

// identity returns the part of the read by which sequences are compared.
func (r Read) identity() Read {
	if r.Varies {
		r.Bytes = 0
	}
	return r
}

func sameRead(a, b Read) bool { return a.identity() == b.identity() }

// sameTensor ignores how much is read, because that may differ between batches of different sizes.
func sameTensor(a, b Read) bool { return a.Tensor == b.Tensor && a.Op == b.Op }

// Step is one llama_decode call that read at least one weight.
type Step struct {
	Number int32 // tables.Access.Step
	Token  int32 // tables.Access.Token
	Phase  tables.Phase
	Reads  []Read // shared by the steps with an equal sequence, so never changed
	Bytes  int64  // sum over Reads
	// Batch is how many tokens the step computes, if it is of the pattern's phase. In generation it
	// generates as many, of as many sequences. It is 0 in other phases, and where it is not known.
	Batch int32
	// CutShort means that the capture ended inside this step. Such a step counts only for total
	// bytes.
	CutShort bool

	sequence int   // index of Pattern.sequences, which holds Reads
	passes   int32 // through the model, if it is of a phase that generates nothing, and that of the pattern
	thread   int32
	context  int32
	model    int32     // the model of which the step read most bytes
	start    int64     // ns, the first read
	at       []float32 // for each read, when it began; 0 is start, 1 is the end of the step's last read
	experts  [][]int32 // for each read, the experts selected, ascending; nil if the step selects none
}

// Pattern is what one llama_context read of one model, step by step, and the sequence that its
// tokens share. Build makes it from a capture. It is not changed afterwards, so concurrent readers
// are safe.
type Pattern struct {
	Structure []tables.StructureRow // of all models
	Steps     []Step                // of the context, in the order of their first read
	Context   int32                 // tables.Access.Context
	Model     int32                 // tables.StructureRow.Model
	Contexts  []ContextReads        // all that the capture holds, this one among them
	// Phase is the phase whose steps are compared, and of which figures are. It is generation, if the
	// context generated anything. A context of a benchmark of prompts, of a perplexity or of
	// embeddings has only decodes of a prompt. These are then the steps that the figures are of.
	Phase tables.Phase

	sequences [][]Read
	// offsets has, for each of sequences and each of its reads, where in the file the read began
	// the first time.
	offsets   [][]int64
	compute   map[computeKey][]int64 // for each read, the shortest time that its op computed (ns), see CycleRead.Nanos
	reference [phases]reference      // indexed by tables.Phase; for Phase, that of the most frequent group
	groups    map[int32]reference    // of the steps of Phase, see groupOf
}

// phases is the number of phases.
const phases = 3

// computeKey identifies the steps over which the shortest compute times are kept: those of one
// context and phase that share a sequence.
type computeKey struct {
	sequence int // index of Pattern.sequences
	context  int32
	phase    tables.Phase
}

// reference is a phase's most common sequence. Its reads are nil if the phase was not observed.
type reference struct {
	sequence int // index of Pattern.sequences
	reads    []Read
	steps    []int // the steps that follow it, as indices of Pattern.Steps
}

// Errors of Build, for callers that explain them.
var (
	ErrNoAccesses = errors.New("the capture holds no accesses")
	ErrNoPhase    = errors.New("the capture holds no step of this phase")
	ErrNoContext  = errors.New("the capture holds no such context")
	// ErrTooMuch means that a capture holds more than any real one. The limits bound memory, and
	// sums do not overflow.
	ErrTooMuch = errors.New("the capture holds too much")
)

// These are limits of what a capture may hold. A large batch, which is cut in many graphs, has some
// 50,000 reads. 2^28 reads are a week of a large model's tokens.
const (
	maxStepReads    = 1 << 18
	maxCaptureReads = 1 << 28
	maxStepBytes    = 1 << 53 // up to here medians, which are floating-point numbers, are exact
	maxCaptureBytes = 1 << 62
)

// ContextReads is what one context read of one model.
type ContextReads struct {
	Context         int32 `json:"context"`
	Model           int32 `json:"model"` // index of tables.Meta.Models
	Steps           int   `json:"steps"`
	GenerationSteps int   `json:"generation_steps"`
	GenerationBytes int64 `json:"generation_bytes"`
	Bytes           int64 `json:"-"` // of all phases

	phaseBytes int64 // of the phase that the options name
}

// MostRead chooses the context and model of which most bytes were read in generation. If nothing was
// generated, it is that of which most bytes were read.
const MostRead = -1

// Options tell Build what to know about a capture.
type Options struct {
	// Context is the context of which a pattern is made, or MostRead. A context is known by its
	// address. That may be used again with another model after the first was freed. The model of
	// which most was read is then taken.
	Context  int
	Complete bool // the capture ended in order (tables.Meta.Complete): its last step is whole
	Headless bool // the oldest rows of the capture were deleted, so its first step may lack its beginning
	// Batches has how many tokens each step computes, or 0 where that is not known. A step that
	// generates one may be left out.
	Batches map[int32]int32
	// Phase is the phase that is analysed, if HasPhase. Else it is generation, or, in a context that
	// generated nothing, that of the prompts. If there were none, it is the warm-up.
	Phase    tables.Phase
	HasPhase bool
}

// OptionsOf returns the options for a capture from its description and its steps table. The context
// is MostRead.
func OptionsOf(meta *tables.Meta, steps iter.Seq2[*tables.StepRow, error]) (Options, error) {
	o := Options{
		Context: MostRead, Complete: meta.Complete, Headless: meta.Segments.Deleted > 0,
		Batches: map[int32]int32{},
	}
	for s, err := range steps {
		if err != nil {
			return o, err
		}
		if s.Tokens != 1 || s.Phase != tables.PhaseGeneration {
			o.Batches[s.Step] = max(s.Tokens, 0)
		}
	}
	return o, nil
}

// Build reads an access table. Its rows name tensors of structure.
//
// Steps that generate are compared with those that generate as many tokens, because batches of
// other sizes may be computed by other ops. If nothing was generated, steps of prompts are compared with
// those that go through the model as often. The reference sequence of such a group is the sequence
// that most of its steps share. Among equals it is the longest, then the first. The reference of
// the pattern's phase is that of the most frequent group. The batches of the other phases
// differ in size, so bytes are left out of the comparison there.
//
// The last step of each thread counts as cut short if it is of the pattern's phase with a shorter
// sequence than the reference, and one of two things holds: it begins like the reference, or the
// capture is not complete, so that the tracer was killed there. In a headless capture the first
// step counts as cut short if it ends like the reference. The longest step is never cut short, so
// a capture of one step keeps it.
//
// Build fails with ErrNoAccesses, ErrNoPhase or ErrNoContext when there is nothing to analyse, with
// ErrTooMuch, or with the error that accesses yields. The rows must be as package trace reads them.
// What that package checks is not checked again.
func Build(structure []tables.StructureRow, accesses iter.Seq2[*tables.Access, error], o Options) (*Pattern, error) {
	p := &Pattern{Structure: structure, compute: map[computeKey][]int64{}}
	b := collector{
		pattern: p, batches: o.Batches, open: map[int32]*openStep{}, ops: map[string]string{},
		known: map[string]int{},
	}
	for a, err := range accesses {
		if err != nil {
			return nil, err
		}
		if err := b.addRow(a); err != nil {
			return nil, err
		}
	}
	b.closeAll()
	if len(p.Steps) == 0 {
		return nil, ErrNoAccesses
	}
	if err := p.chooseContext(&o); err != nil {
		return nil, err
	}
	p.choosePhase(&o)
	for phase := range tables.Phase(phases) {
		if phase != p.Phase {
			p.reference[phase] = p.findReference(phase, 0)
		}
	}
	p.findGroups()
	if p.reference[p.Phase].reads == nil {
		return nil, fmt.Errorf("%w: %v", ErrNoPhase, p.Phase)
	}
	first, last := p.endSteps()
	for _, i := range last {
		if s, whole := p.shorterThanReference(i); s != nil {
			s.CutShort = !o.Complete || slices.EqualFunc(s.Reads, whole[:len(s.Reads)], sameTensor)
		}
	}
	for _, i := range first {
		if s, whole := p.shorterThanReference(i); s != nil && o.Headless {
			s.CutShort = s.CutShort || slices.EqualFunc(s.Reads, whole[len(whole)-len(s.Reads):], sameTensor)
		}
	}
	return p, nil
}

// shorterThanReference returns a step and its reference if the step is of the pattern's phase and has
// fewer reads than the reference, else nil. The reference is that of its group, or that of the phase if no
// other step is in its group.
func (p *Pattern) shorterThanReference(step int) (*Step, []Read) {
	s := &p.Steps[step]
	if s.Phase != p.Phase {
		return nil, nil
	}
	whole := p.groups[p.groupOf(s)]
	if len(whole.steps) == 1 {
		whole = p.reference[p.Phase]
	}
	if len(s.Reads) >= len(whole.reads) {
		return nil, nil
	}
	return s, whole.reads
}

// groupOf returns the group of a step. Its sequence is compared with those of the same group: of as many
// generated tokens, or, if the pattern's phase generates nothing, of as many passes through the model. It
// is 0 in other phases.
func (p *Pattern) groupOf(s *Step) int32 {
	switch {
	case s.Phase != p.Phase:
		return 0
	case p.Generates():
		return s.Batch
	}
	return s.passes
}

// findGroups finds the reference of each group. The one of the most frequent group becomes the
// reference of the pattern's phase. Among equals the smallest number wins.
func (p *Pattern) findGroups() {
	p.groups = map[int32]reference{}
	count := map[int32]int{}
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Phase == p.Phase {
			count[p.groupOf(s)]++
		}
	}
	most := int32(0)
	for _, group := range slices.Sorted(maps.Keys(count)) {
		p.groups[group] = p.findReference(p.Phase, group)
		if count[group] > count[most] {
			most = group
		}
	}
	p.reference[p.Phase] = p.groups[most]
}

// Generates reports whether the steps of the pattern generate tokens. If not, figures are per decode.
func (p *Pattern) Generates() bool { return p.Phase == tables.PhaseGeneration }

// choosePhase chooses the phase that is analysed. In other phases than generation it notes how many
// tokens each step computes, and how often it goes through the model. What a step gathers depends on the
// tokens.
func (p *Pattern) choosePhase(o *Options) {
	p.Phase = o.Phase
	if !o.HasPhase {
		p.Phase = LatestPhase(func(yield func(tables.Phase) bool) {
			for i := range p.Steps {
				if !yield(p.Steps[i].Phase) {
					return
				}
			}
		})
	}
	if p.Generates() {
		return
	}
	passesOfSequence := map[int]int32{}
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Phase != p.Phase {
			continue
		}
		s.Batch = o.Batches[s.Number]
		passes, known := passesOfSequence[s.sequence]
		if !known {
			passes = int32(len(passesOf(s.Reads)))
			passesOfSequence[s.sequence] = passes
		}
		s.passes = passes
		for at := range s.Reads {
			_, gathers := gatherOf(s.Reads[at].Op)
			s.Reads[at].Varies = gathers || s.expertsAt(at) != nil
		}
	}
}

// LatestPhase returns generation, if it is one of the phases. Else it returns that of prompts, and if
// that is none of them, the warm-up.
func LatestPhase(phases iter.Seq[tables.Phase]) tables.Phase {
	latest := tables.PhaseWarmup
	for phase := range phases {
		latest = max(latest, phase)
	}
	return latest
}

// chooseContext keeps the steps of one context and one model.
func (p *Pattern) chooseContext(o *Options) error {
	index := map[[2]int32]int{}
	generated := false // by any context
	for i := range p.Steps {
		s := &p.Steps[i]
		key := [2]int32{s.context, s.model}
		at, ok := index[key]
		if !ok {
			at = len(p.Contexts)
			index[key] = at
			p.Contexts = append(p.Contexts, ContextReads{Context: s.context, Model: s.model})
		}
		c := &p.Contexts[at]
		c.Steps++
		c.Bytes += s.Bytes
		if s.Phase == o.Phase {
			c.phaseBytes += s.Bytes
		}
		if s.Phase == tables.PhaseGeneration {
			generated = true
			c.GenerationSteps++
			c.GenerationBytes += s.Bytes
		}
	}
	slices.SortStableFunc(p.Contexts, func(a, b ContextReads) int {
		return cmp.Or(cmp.Compare(a.Context, b.Context), cmp.Compare(a.Model, b.Model))
	})
	worth := func(c *ContextReads) int64 {
		switch {
		case o.HasPhase:
			return c.phaseBytes
		case generated:
			return c.GenerationBytes
		}
		return c.Bytes
	}
	best := -1
	for i := range p.Contexts {
		if c := &p.Contexts[i]; (o.Context < 0 || int(c.Context) == o.Context) &&
			(best < 0 || worth(c) > worth(&p.Contexts[best])) {
			best = i
		}
	}
	if best < 0 {
		return fmt.Errorf("%w: %d is not one of %s", ErrNoContext, o.Context, p.contextList())
	}
	p.Context, p.Model = p.Contexts[best].Context, p.Contexts[best].Model
	p.Steps = slices.DeleteFunc(p.Steps, func(s Step) bool { return s.context != p.Context || s.model != p.Model })
	return nil
}

// contextList formats the contexts, for example as "0, 1, 4".
func (p *Pattern) contextList() string {
	const named = 16
	var names []string
	for i, c := range p.Contexts {
		if i == 0 || c.Context != p.Contexts[i-1].Context {
			if len(names) == named {
				return strings.Join(names, ", ") + ", ..."
			}
			names = append(names, fmt.Sprint(c.Context))
		}
	}
	return strings.Join(names, ", ")
}

// AddBytes adds the bytes that the step reads of each tensor to sum, which has one element per row
// of Structure.
func (s *Step) AddBytes(sum []int64) {
	for _, r := range s.Reads {
		sum[r.Tensor] += r.Bytes
	}
}

// Deviates reports whether s is a whole step of the pattern's phase, and its sequence is not the
// reference of its group.
func (p *Pattern) Deviates(s *Step) bool {
	return s.Phase == p.Phase && !s.CutShort &&
		!slices.EqualFunc(s.Reads, p.groups[p.groupOf(s)].reads, sameRead)
}

// AccessOrder returns the rows of Structure that are of the model, each once. First come those of
// the reference sequence of the pattern's phase in the order of their first read, then those read
// elsewhere in the same order, then those never read, as in Structure.
func (p *Pattern) AccessOrder() []int {
	order := make([]int, 0, len(p.Structure))
	seen := make([]bool, len(p.Structure))
	add := func(tensor int) {
		if !seen[tensor] && p.Structure[tensor].Model == p.Model {
			seen[tensor] = true
			order = append(order, tensor)
		}
	}
	for _, r := range p.reference[p.Phase].reads {
		add(int(r.Tensor))
	}
	for _, reads := range p.sequences {
		for _, r := range reads {
			add(int(r.Tensor))
		}
	}
	for tensor := range p.Structure {
		add(tensor)
	}
	return order
}

// comparedSteps yields the whole steps of the pattern's phase, as indices of Steps.
func (p *Pattern) comparedSteps() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range p.Steps {
			if s := &p.Steps[i]; s.Phase == p.Phase && !s.CutShort && !yield(i) {
				return
			}
		}
	}
}

// endSteps returns the first and the last step of each thread, as indices of Steps.
func (p *Pattern) endSteps() (first, last []int) {
	ends := map[int32][2]int{}
	for i := range p.Steps {
		e, ok := ends[p.Steps[i].thread]
		if !ok {
			e[0] = i
		}
		e[1] = i
		ends[p.Steps[i].thread] = e
	}
	for _, e := range ends {
		first, last = append(first, e[0]), append(last, e[1])
	}
	return first, last
}

// findReference finds the sequence that most steps of a phase and group share.
func (p *Pattern) findReference(phase tables.Phase, group int32) reference {
	var steps []int
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Phase == phase && p.groupOf(s) == group {
			steps = append(steps, i)
		}
	}
	return p.canonicalSequence(steps, phase == p.Phase)
}

// canonicalSequence returns the sequence that most of the steps share. withBytes means that the
// bytes of the reads are compared, too.
func (p *Pattern) canonicalSequence(steps []int, withBytes bool) reference {
	// Distinct sequences that are equal in this sense share a group, named by the first of them.
	group := map[int]int{}
	known := map[string]int{}
	members := map[int][]int{}
	best := -1
	for _, i := range steps {
		sequence := p.Steps[i].sequence
		g, ok := group[sequence]
		if !ok {
			key := sequenceKey(p.sequences[sequence], withBytes)
			if g, ok = known[key]; !ok {
				g = sequence
				known[key] = g
			}
			group[sequence] = g
		}
		members[g] = append(members[g], i)
	}
	for g, steps := range members {
		if best < 0 || isBetter(len(steps), len(p.sequences[g]), steps[0], len(members[best]), len(p.sequences[best]),
			members[best][0]) {
			best = g
		}
	}
	if best < 0 {
		return reference{}
	}
	return reference{sequence: best, reads: p.sequences[best], steps: members[best]}
}

// isBetter orders candidates by their number of steps, then of reads, then by which came first.
func isBetter(steps, reads, first, oldSteps, oldReads, oldFirst int) bool {
	switch {
	case steps != oldSteps:
		return steps > oldSteps
	case reads != oldReads:
		return reads > oldReads
	}
	return first < oldFirst
}

// sequenceKey returns a string that is equal for equal sequences.
func sequenceKey(reads []Read, withBytes bool) string {
	var key []byte
	for _, r := range reads {
		key = binary.AppendUvarint(key, uint64(r.Tensor))
		key = binary.AppendUvarint(key, uint64(len(r.Op)))
		key = append(key, r.Op...)
		if withBytes {
			key = binary.AppendVarint(key, r.identity().Bytes)
		}
	}
	return string(key)
}

// appendBytes extends a key by the bytes of reads, which sequences may leave out.
func appendBytes(key []byte, reads []Read) []byte {
	for _, r := range reads {
		key = binary.AppendVarint(key, r.Bytes)
		if r.Varies {
			key = append(key, 1)
		}
	}
	return key
}

// collector gathers rows into steps. Steps of several threads (contexts) may interleave. A step
// ends when its thread goes on to another, so no more than one step per thread is held in full.
type collector struct {
	pattern *Pattern
	batches map[int32]int32     // Options.Batches
	open    map[int32]*openStep // by thread
	// one copy of each op's name, because the strings of a row are valid only until the next one
	ops   map[string]string
	known map[string]int // key of a sequence, with all bytes -> index of Pattern.sequences
	reads int            // of all steps
	bytes int64          // that all steps read: if this does not overflow, no partial sum does
}

type openStep struct {
	index   int // of Pattern.Steps
	reads   []Read
	bytes   int64 // sum over reads
	offsets []int64
	begin   []int64
	compute []int64
	first   int   // the read that is the first of its op
	end     int64 // of the last op
	experts [][]int32
	selects bool
}

func (b *collector) addRow(a *tables.Access) error {
	if a.Tensor < 0 || int(a.Tensor) >= len(b.pattern.Structure) {
		return fmt.Errorf("a row names tensor %d of %d", a.Tensor, len(b.pattern.Structure))
	}
	if int(a.Phase) >= len(b.pattern.reference) {
		return fmt.Errorf("a row has %v", a.Phase)
	}
	if b.reads++; b.reads > maxCaptureReads {
		return fmt.Errorf("%w: more than %d reads", ErrTooMuch, maxCaptureReads)
	}
	o := b.open[a.Thread]
	if o == nil || b.pattern.Steps[o.index].Number != a.Step {
		if o != nil {
			b.closeStep(o)
		}
		o = &openStep{index: len(b.pattern.Steps)}
		b.open[a.Thread] = o
		b.pattern.Steps = append(b.pattern.Steps,
			Step{
				Number: a.Step, Token: a.Token, Phase: a.Phase, Batch: b.batchSize(a),
				thread: a.Thread, context: a.Context,
			})
	}
	if len(o.reads) == maxStepReads || a.Bytes > maxStepBytes-o.bytes || a.Bytes > maxCaptureBytes-b.bytes {
		return fmt.Errorf("%w: step %d has %d reads of %d bytes, and one of %d, after %d bytes in all", ErrTooMuch,
			a.Step, len(o.reads), o.bytes, a.Bytes, b.bytes)
	}
	o.bytes += a.Bytes
	b.bytes += a.Bytes
	op, ok := b.ops[a.Op]
	if !ok {
		op = strings.Clone(a.Op)
		b.ops[op] = op
	}
	var experts []int32
	if a.Experts != nil {
		experts = slices.Clone(a.Experts)
		slices.Sort(experts)
		o.selects = true
	}
	_, gathers := gatherOf(op)
	gathers = gathers || a.Experts != nil
	o.noteTime(a, op)
	varies := gathers && b.batchSize(a) > 1
	o.reads = append(o.reads, Read{Tensor: a.Tensor, Op: op, Bytes: a.Bytes, Varies: varies})
	o.offsets = append(o.offsets, a.Offset)
	o.begin = append(o.begin, a.Timestamp)
	o.end = max(o.end, a.Timestamp+max(a.Duration, 0))
	o.experts = append(o.experts, experts)
	return nil
}

// batchSize returns how many tokens the step of a row generates.
func (b *collector) batchSize(a *tables.Access) int32 {
	if a.Phase != tables.PhaseGeneration {
		return 0
	}
	return max(b.batches[a.Step], 1)
}

// noteTime notes how long the op of a row computed. The op's first read gets the time, less the
// stall, which may be in any of the op's rows.
func (o *openStep) noteTime(a *tables.Access, op string) {
	if n := len(o.reads); n > 0 && o.begin[n-1] == a.Timestamp && o.reads[n-1].Op == op && a.Duration >= 0 {
		o.compute = append(o.compute, 0)
	} else {
		o.first = n
		o.compute = append(o.compute, max(a.Duration, tables.NotObserved))
	}
	if t := &o.compute[o.first]; *t > 0 {
		*t = max(*t-max(a.Stall, 0), 0)
	}
}

func (b *collector) closeStep(o *openStep) {
	p := b.pattern
	s := &p.Steps[o.index]
	key := string(appendBytes([]byte(sequenceKey(o.reads, false)), o.reads))
	index, ok := b.known[key]
	if !ok {
		index = len(p.sequences)
		b.known[key] = index
		p.sequences = append(p.sequences, o.reads)
		p.offsets = append(p.offsets, o.offsets)
	}
	s.sequence, s.Reads = index, p.sequences[index]
	of := computeKey{index, s.context, s.Phase}
	if least := p.compute[of]; least != nil {
		keepLeast(least, o.compute)
	} else {
		p.compute[of] = o.compute
	}
	var most int64 = -1
	byModel := map[int32]int64{}
	for _, r := range s.Reads {
		s.Bytes += r.Bytes
		model := p.Structure[r.Tensor].Model
		byModel[model] += r.Bytes
		if byModel[model] > most {
			s.model, most = model, byModel[model]
		}
	}
	s.start = slices.Min(o.begin)
	s.at = make([]float32, len(o.begin))
	if span := o.end - s.start; span > 0 {
		for i, t := range o.begin {
			s.at[i] = float32(float64(t-s.start) / float64(span))
		}
	}
	if o.selects {
		s.experts = o.experts
	}
}

func (b *collector) closeAll() {
	// They are closed in the order of the steps, so that the order of the distinct sequences is
	// determined.
	rest := make([]*openStep, 0, len(b.open))
	for _, o := range b.open {
		rest = append(rest, o)
	}
	slices.SortFunc(rest, func(x, y *openStep) int { return x.index - y.index })
	for _, o := range rest {
		b.closeStep(o)
	}
}

// keepLeast lowers each time of least to that of times, if that was observed and is shorter.
func keepLeast(least, times []int64) {
	for i, t := range times {
		if t >= 0 && (least[i] < 0 || t < least[i]) {
			least[i] = t
		}
	}
}
