// Package gather sums up what a capture holds, and makes tables, figures and a [report.Report] of the
// sums. It reads each table once or twice, in memory that is bounded whatever the length of the capture.
package gather

// This file sums up the tables' rows per step, per tensor, per layer and per component.

import (
	"fmt"
	"math"
	"math/bits"
	"sort"
	"time"

	"tensorcast/event"
	"tensorcast/trace/tables"
)

const (
	// maxCells bounds each matrix of tensors and steps to 64 MiB. Beyond it, neighbouring steps share a
	// column.
	maxCells = 16 << 20
)

// gap is a class of distances: from the end of a read to the beginning of the next in the same file.
type gap int

// The classes of gaps. A read goes back if it begins before the end of the last one. A second read of the
// same tensor does.
const (
	gapSequential gap = iota // less than 128 KiB
	gapSmall                 // less than 1 MiB
	gapLarge
	gapBackClose // less than 128 KiB
	gapBackSmall // less than 1 MiB
	gapBackLarge
)

var gapNames = []string{
	"sequential: less than 128 KiB ahead", "ahead by less than 1 MiB", "ahead by more", "back by less than 128 KiB",
	"back by less than 1 MiB", "back by more",
}

// gapColors are the numbers of colours of the classes: what goes back is red and yellow, as it costs most.
var gapColors = [gapBackLarge + 1]int{0, 5, 2, 4, 1, 3}

func gapOf(from, to int64) gap {
	d, backward := to-from, gap(0)
	if d < 0 {
		d, backward = -d, gapBackClose
	}
	switch {
	case d < 128<<10:
		return backward + gapSequential
	case d < 1<<20:
		return backward + gapSmall
	}
	return backward + gapLarge
}

// Collector sums up the rows of one context and its model. It takes the steps first, then accesses in the order of
// the table, then page-ins. It is for one goroutine.
type Collector struct {
	// CPUs is how many processors the machine of the capture had, on which the target's threads ran at the
	// same time. 0 says that it is not known. See Compute.
	CPUs int
	// Helped predicts how long a step takes with prefetchd. It is given the bytes of memory for the model and
	// prefetchd, how long the step computes, and how many bytes per second the disk reads. It returns 0 if that
	// is not known. If Helped is nil, nothing is said of prefetchd.
	Helped func(memory int64, compute time.Duration, disk float64) time.Duration

	// Passes is how often a step goes through the model, if that is more than once. Only steps that generate nothing
	// do. See pattern.Pattern.Passes.
	Passes int

	structure      []tables.StructureRow
	context        int32
	model          int32
	steps          []stepSums    // of the context, in the order of time
	stepIndex      map[int32]int // of steps, by the step's number
	stepsPerColumn int           // of the matrices

	// Sums per tensor and column: nanoseconds and bytes.
	opNanos, fromDisk, reread, waiting, readBytes matrix
	perTensor                                     []total // by row of the structure table
	perCounted                                    []total // the same of the counted steps alone, which figures are of
	firstReads                                    []int32 // rows of the structure table, by their first access
	hasStall, hasTime, hasDisk                    bool    // that was observed
	loadDisk                                      int64   // bytes that came from disk before the first step

	places      *places
	gaps        [gapBackLarge + 1]total
	countedGaps [gapBackLarge + 1]total // the same of the counted steps alone
	lastEnd     map[string]int64        // where the last read of each file ended

	touchedExperts [3]map[int32]*bitset // by phase and tensor: the experts that were read

	phase tables.Phase // whose steps the figures are of
	// What Compute needs.
	usualBatch int32  // tokens of most steps of the phase
	ops        [][]op // by the first tensor that an op reads
	current    opRun
}

// stepSums is what a step read, and how long it waited and computed.
type stepSums struct {
	row                        tables.StepRow // without ids and sequences
	stall, disk, reread, bytes int64
	accesses                   int64
	hasStall                   bool
	isCounted                  bool  // its sums are those that figures are of; see shownSteps
	opNanos                    int64 // sum over the ops; see Compute
	lacksTimes                 bool  // the time of an op was not observed
}

// total is what was read of a tensor, a layer, or anything else, and how long that took.
type total struct {
	accesses, bytes, disk, reread, stall, nanos int64
	causes                                      [causeCount]int64 // bytes of reread, by event.Cause
}

// causeCount is the number of causes.
const causeCount = int(event.CauseOther) + 1

// matrix has a value per tensor and column. A row is made when it gets its first value.
type matrix struct {
	rows    map[int32][]float32
	columns int
}

func (m *matrix) add(tensor int32, column int, v float64) {
	row := m.rows[tensor]
	if row == nil {
		row = make([]float32, m.columns)
		m.rows[tensor] = row
	}
	row[column] += float32(v)
}

// New returns a collector for one context and its model. Steps are those of the capture in the order of
// time. Those of other contexts are ignored. Figures are of the steps that generate. If there are none,
// they are of those of the prompts, and per decode.
func New(structure []tables.StructureRow, context, model int32, steps []tables.StepRow) *Collector {
	c := &Collector{
		structure: structure, context: context, model: model, stepIndex: map[int32]int{},
		perTensor: make([]total, len(structure)), perCounted: make([]total, len(structure)),
		lastEnd: map[string]int64{}, ops: make([][]op, len(structure)), current: opRun{step: -1},
	}
	for _, s := range steps {
		if s.Context != context {
			continue
		}
		s.TokenIDs, s.Sequences = nil, nil
		c.stepIndex[s.Step] = len(c.steps)
		c.steps = append(c.steps, stepSums{row: s})
		c.phase = max(c.phase, s.Phase)
	}
	c.ChoosePhase(c.phase)
	c.places = newPlaces(structure, model, len(c.steps))
	tensors := 0
	for i := range structure {
		if structure[i].Model == model {
			tensors++
		}
	}
	c.stepsPerColumn = max(1, (len(c.steps)*tensors+maxCells-1)/maxCells)
	for _, m := range []*matrix{&c.opNanos, &c.fromDisk, &c.reread, &c.waiting, &c.readBytes} {
		*m = matrix{map[int32][]float32{}, (len(c.steps) + c.stepsPerColumn - 1) / c.stepsPerColumn}
	}
	return c
}

// ChoosePhase makes figures of the steps of another phase. Call it before the first Access.
func (c *Collector) ChoosePhase(phase tables.Phase) {
	c.phase, c.usualBatch = phase, 0
	batches := map[int32]int{}
	for i := range c.steps {
		s := &c.steps[i].row
		if s.Phase != phase {
			continue
		}
		batches[s.Tokens]++
		isPreferred := s.Tokens < c.usualBatch // among equals: see pattern.Build
		if !c.Generates() {
			isPreferred = s.Tokens > c.usualBatch
		}
		if n := batches[s.Tokens]; n > batches[c.usualBatch] || n == batches[c.usualBatch] && isPreferred {
			c.usualBatch = s.Tokens
		}
	}
	for i := range c.steps {
		c.steps[i].isCounted = false
	}
	for _, s := range c.shownSteps() {
		s.isCounted = true
	}
}

// Generates reports whether the figures are of generated tokens. Else they are per decode.
func (c *Collector) Generates() bool { return c.phase == tables.PhaseGeneration }

// Access adds a row of the access table. It fails if the row contradicts the structure table.
func (c *Collector) Access(a *tables.Access) error {
	step, ok := c.stepIndex[a.Step]
	if !ok || a.Context != c.context {
		return nil
	}
	if a.Tensor < 0 || int(a.Tensor) >= len(c.structure) || a.Bytes < 0 || a.Offset < 0 ||
		a.Offset > math.MaxInt64-a.Bytes {
		return fmt.Errorf("an access to tensor %d of %d, of %d bytes at %d", a.Tensor, len(c.structure), a.Bytes,
			a.Offset)
	}
	s, sums, tensor := &c.steps[step], &c.perTensor[a.Tensor], &c.structure[a.Tensor]
	if sums.accesses == 0 {
		c.firstReads = append(c.firstReads, a.Tensor)
	}
	one := total{accesses: 1, bytes: a.Bytes}
	s.bytes += a.Bytes
	s.accesses++
	column := step / c.stepsPerColumn
	c.readBytes.add(a.Tensor, column, float64(a.Bytes))
	if a.Duration >= 0 {
		c.hasTime = true
		one.nanos = a.Duration
		c.opNanos.add(a.Tensor, column, float64(a.Duration))
	}
	if a.Stall >= 0 {
		c.hasStall, s.hasStall = true, true
		one.stall = a.Stall
		s.stall += a.Stall
		c.waiting.add(a.Tensor, column, float64(a.Stall))
	}
	sums.add(&one)
	if s.isCounted {
		c.perCounted[a.Tensor].add(&one)
	}
	c.addExperts(a, s.row.Phase)
	c.addToOp(a, step)
	c.addPlace(a, s, step, tensor)
	return nil
}

// addPlace adds where an access read. Of a mixture of experts, the slice of each chosen expert is a read, one after the
// other.
func (c *Collector) addPlace(a *tables.Access, s *stepSums, step int, tensor *tables.StructureRow) {
	from, to := 0.0, 0.0 // in parts of the step
	if s.row.End > s.row.Begin {
		passed := func(at int64) float64 { return float64(at-s.row.Begin) / float64(s.row.End-s.row.Begin) }
		from, to = passed(a.Timestamp), passed(a.Timestamp+max(a.Duration, 0))
	}
	if n := int64(len(a.Experts)); n > 0 && tensor.ExpertStride > 0 && tensor.Experts > 0 {
		each, took := min(a.Bytes/n, tensor.ExpertStride), (to-from)/float64(n)
		for i, e := range a.Experts {
			if e >= 0 && e < tensor.Experts && int64(e) <= (math.MaxInt64-each-tensor.Offset)/tensor.ExpertStride {
				begin := from + float64(i)*took
				c.addRead(tensor.File, tensor.Offset+int64(e)*tensor.ExpertStride, each, step, begin, begin+took)
			}
		}
		return
	}
	c.addRead(tensor.File, a.Offset, a.Bytes, step, from, to)
}

// addRead counts the gap before a read of so many bytes, and adds the read to the places. from and to are when it began
// and ended, in parts of the step.
func (c *Collector) addRead(file string, offset, bytes int64, step int, from, to float64) {
	end, before := c.lastEnd[file]
	class := gapOf(end, offset)
	c.lastEnd[file] = offset + bytes
	if before {
		one := total{accesses: 1, bytes: bytes}
		c.gaps[class].add(&one)
		if c.steps[step].isCounted {
			c.countedGaps[class].add(&one)
		}
	}
	c.places.add(file, offset, bytes, step, from, to, class)
}

// Order has the tensors that were read, as rows of the structure table, in the order of their first
// reads. Do not write to it.
func (c *Collector) Order() []int32 { return c.firstReads }

// Steps has the steps of the context in the order of time, without ids and sequences.
func (c *Collector) Steps() []tables.StepRow {
	all := make([]tables.StepRow, len(c.steps))
	for i := range c.steps {
		all[i] = c.steps[i].row
	}
	return all
}

// ObservePageIns says that page-ins were observed, even if none follow.
func (c *Collector) ObservePageIns() { c.hasDisk = true }

// PageIn adds a row of the pagein table.
func (c *Collector) PageIn(r *tables.PageInRow) {
	if r.Model != c.model || r.Bytes < 0 {
		return
	}
	step, ok := c.stepIndex[r.Step]
	if r.Step < 0 && len(c.steps) > 0 && r.Timestamp < c.steps[0].row.Begin && c.loadDisk < math.MaxInt64-r.Bytes {
		c.loadDisk += r.Bytes
	}
	if !ok && r.Step < 0 { // another process read it, ahead of the target perhaps
		step, ok = c.stepAt(r.Timestamp)
	}
	if ok {
		c.steps[step].disk += r.Bytes
		if r.Rereads > 0 {
			c.steps[step].reread += r.Bytes
		}
	}
	if r.Tensor < 0 || int(r.Tensor) >= len(c.structure) {
		return
	}
	one := total{disk: r.Bytes}
	if ok {
		c.fromDisk.add(r.Tensor, step/c.stepsPerColumn, float64(r.Bytes))
	}
	if r.Rereads > 0 {
		one.reread = r.Bytes
		one.causes[min(int(r.Cause), causeCount-1)] = r.Bytes
		if ok {
			c.reread.add(r.Tensor, step/c.stepsPerColumn, float64(r.Bytes))
		}
	}
	c.perTensor[r.Tensor].add(&one)
	if ok && c.steps[step].isCounted {
		c.perCounted[r.Tensor].add(&one)
	}
}

// stepAt finds the step that was under way at a time.
func (c *Collector) stepAt(at int64) (index int, ok bool) {
	i := sort.Search(len(c.steps), func(i int) bool { return c.steps[i].row.Begin > at }) - 1
	return i, i >= 0 && at <= c.steps[i].row.End
}

// bitset is a set of small numbers.
type bitset []uint64

func (b *bitset) add(n int32) {
	for int(n/64) >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[n/64] |= 1 << (n % 64)
}

func (b bitset) count() (n int64) {
	for _, w := range b {
		n += int64(bits.OnesCount64(w))
	}
	return n
}

// addExperts notes which experts an access reads.
func (c *Collector) addExperts(a *tables.Access, phase tables.Phase) {
	const most = 1 << 14 // experts of a tensor
	if len(a.Experts) == 0 || int(phase) >= len(c.touchedExperts) || c.structure[a.Tensor].Experts > most {
		return
	}
	if c.touchedExperts[phase] == nil {
		c.touchedExperts[phase] = map[int32]*bitset{}
	}
	touched := c.touchedExperts[phase][a.Tensor]
	if touched == nil {
		touched = &bitset{}
		c.touchedExperts[phase][a.Tensor] = touched
	}
	for _, e := range a.Experts {
		if e >= 0 && e < c.structure[a.Tensor].Experts {
			touched.add(e)
		}
	}
}
