package gather

// This file tests the estimate of how long a step computes.

import (
	"math"
	"strings"
	"testing"
	"time"

	"tensorcast/trace/tables"
)

// computeStructure has three matrices of a kind, of which two are of a shape, two norms, and an op of two weights.
var computeStructure = []tables.StructureRow{
	{Name: "a", Size: 1 << 20, Type: "Q8_0"},
	{Name: "b", Size: 1 << 20, Type: "Q8_0"},
	{Name: "c", Size: 2 << 20, Type: "Q8_0"},
	{Name: "norm a", Size: 1 << 10, Type: "F32"},
	{Name: "norm b", Size: 1 << 10, Type: "F32"},
	{Name: "gate", Size: 1 << 20, Type: "Q4_K"},
	{Name: "up", Size: 1 << 20, Type: "Q4_K"},
}

// plannedOp is an op of a step: how long it took, and how long threads waited in it.
type plannedOp struct {
	name        string
	took, stall int64
	tensors     []int32
}

// computeSteps is how many steps collectOps has, beside one of two tokens, which does not count.
const computeSteps = 4

// collectOps collects steps of 200 ms and some, whose ops run one after the other, on two processors. The first 3 ms
// of each step are outside of ops.
func collectOps(t *testing.T, stalls bool, ops func(step int32) []plannedOp) *Collector {
	t.Helper()
	var rows []tables.StepRow
	for i := range int32(computeSteps + 1) {
		s := tables.StepRow{Step: i, Phase: tables.PhaseGeneration, Tokens: 1, Begin: int64(i) * 1e9}
		s.End = s.Begin + 200e6 + int64(i)*1e6
		if i == computeSteps {
			s.Tokens, s.End = 2, s.Begin+10
		}
		rows = append(rows, s)
	}
	c := New(computeStructure, 0, 0, rows)
	c.CPUs = 2
	for i := range int32(computeSteps + 1) {
		now := int64(i)*1e9 + 3e6
		for _, op := range ops(i) {
			for n, tensor := range op.tensors {
				a := tables.Access{
					Step: i, Tensor: tensor, Bytes: computeStructure[tensor].Size, Op: op.name, Timestamp: now,
					Duration: op.took, Stall: op.stall,
				}
				if n > 0 {
					a.Stall = 0 // it is in one of the op's rows only
				}
				if !stalls {
					a.Stall = tables.NotObserved
				}
				if err := c.Access(&a); err != nil {
					t.Fatal(err)
				}
			}
			now += op.took
		}
	}
	return c
}

// someWait are ops of which one matrix is in memory in one step; of the norms one always waits; the waiting of two
// threads has a sum that is longer than the op.
func someWait(step int32) []plannedOp {
	first := plannedOp{"MUL_MAT", 5e6, 8e6, []int32{0}}
	if step == 1 {
		first.took, first.stall = 1e6, 0
	}
	return []plannedOp{
		first,
		{"MUL_MAT", 7e6, 12e6, []int32{1}},
		{"MUL_MAT", 9e6, 14e6, []int32{2}},
		{"NORM", 2000, 0, []int32{3}},
		{"NORM", 10e6, 3e6, []int32{4}},
		{"GATE+UP", 4e6 + int64(step), int64(step), []int32{5, 6}},
	}
}

// near reports whether two times differ by little.
func near(got time.Duration, want float64) bool { return math.Abs(float64(got)-want) < 1000 }

// A step computes for the time that its ops take when they do not wait, and for the time outside of ops. An op that
// always waits takes as long as others of its shape, or, in proportion to its bytes, of its kind.
func TestCompute(t *testing.T) {
	// The time outside of ops is that of the second fastest step: 202 ms less the times of its ops.
	const besides = 202e6 - (5+7+9+10+4)*1e6 - 2002
	const want = besides + (1+1+2)*1e6 + 2*2000 + 4e6
	got := collectOps(t, true, someWait).Compute(0)
	if !near(got.Expected, want) || !near(got.Least, want) || !near(got.Most, want) || got.Told != 1 {
		t.Errorf("Compute = %+v, want %v, all told", got, time.Duration(want))
	}
	// A single run that was faster than memory delivers is not believed; four are.
	const rate = 0.5e9
	slower := besides + 4*(1<<20)/rate*1e9 + 2*2000 + 4e6 + 2
	if got := collectOps(t, true, someWait).Compute(rate); !near(got.Expected, slower) {
		t.Errorf("Compute with slow memory = %+v, want %v", got, time.Duration(slower))
	}
	// Where waiting was not observed, only the fastest runs tell how long ops compute.
	if got := collectOps(t, false, someWait).Compute(0); !near(got.Most, want) || got.Least != 0 || got.Told != 0 {
		t.Errorf("Compute without stalls = %+v, want %v at most, and nothing told", got, time.Duration(want))
	} else if text := got.Source(); !strings.Contains(text, "tracer --detail op+io") {
		t.Errorf("it is known as %q, want the flag that records waiting", text)
	}
	if got := New(computeStructure, 0, 0, make([]tables.StepRow, 1)).Compute(0); got != (Compute{}) {
		t.Errorf("Compute without accesses = %+v, want none", got)
	}
	c := New(computeStructure, 0, 0, make([]tables.StepRow, 1))
	if err := c.Access(&tables.Access{
		Bytes: 1 << 20, Duration: tables.NotObserved, Stall: tables.NotObserved,
	}); err != nil || c.Compute(0) != (Compute{}) {
		t.Errorf("Compute without times = %v, want none; error %v", c.Compute(0), err)
	}
}

// Where every op waits in every step, how long it computes is a range: from the time in which memory delivers its
// bytes to that of its faster runs, less what they waited at least. No op computes in no time, even if threads
// are said to have waited for longer than the op took.
func TestComputeOfWaiting(t *testing.T) {
	collect := func() *Collector {
		return collectOps(t, true, func(step int32) []plannedOp {
			return []plannedOp{
				{"MUL_MAT", 5e6, 8e6, []int32{0}},                // 1 ms
				{"MUL_MAT", 7e6, 15e6 - int64(step), []int32{1}}, // nothing is left
				{"MUL_MAT", 9e6, 6e6, []int32{2}},                // 6 ms
			}
		})
	}
	const rate = 4e9
	const besides = 201e6 - 21e6
	const byMemory = (4 << 20) / rate * 1e9
	got := collect().Compute(rate)
	const most = besides + 2*(1<<20)/rate*1e9 + 6e6 // a quarter of the runs of the shape of a and b left nothing
	if !near(got.Least, besides+byMemory) || !near(got.Most, most) || got.Told != 0 ||
		!near(got.Expected, besides+2*(1<<20)/rate*1e9+2*(1<<20)/rate*1e9/usualShare) {
		t.Errorf("Compute = %+v, want %v to %v, and nothing told", got, time.Duration(besides+byMemory),
			time.Duration(most))
	}
	if got := collect().Compute(0); got.Least != 0 || got.Told != 0 {
		t.Errorf("Compute = %+v, want no lower bound, as it is not known how fast memory is", got)
	}
	wide := got
	wide.Least /= 2
	if strings.Contains(got.Source(), "came from") || !strings.Contains(wide.Source(), "from 90.5 ms, in") {
		t.Errorf("sources %q and %q, want that only the second is a range", got.Source(), wide.Source())
	}
}

// An op that did not wait because its weight was read ahead is no measure of how long it computes.
func TestComputeOfReadAhead(t *testing.T) {
	collect := func() *Collector {
		return collectOps(t, true, func(step int32) []plannedOp {
			return []plannedOp{{"MUL_MAT", 5e6 - int64(step)*1e6, 0, []int32{0}}, {"MUL_MAT", 6e6, 0, []int32{1}}}
		})
	}
	c := collect()
	c.ObservePageIns()
	for step := range int32(computeSteps) {
		c.PageIn(&tables.PageInRow{Step: step, Tensor: 1, Bytes: 1 << 20})
		if step > 0 {
			c.PageIn(&tables.PageInRow{Step: step, Tensor: 0, Bytes: 4096})
		}
	}
	// Both take as long as the first did in step 0.
	if got := c.Compute(0); !near(got.Expected, 191e6+2*5e6) || got.Told != 1 {
		t.Errorf("Compute = %+v, want 201 ms, all told", got)
	}
	c = collect()
	c.ObservePageIns()
	for step := range int32(computeSteps) {
		for tensor := range int32(2) {
			c.PageIn(&tables.PageInRow{Step: step, Tensor: tensor, Bytes: 1 << 20})
		}
	}
	if got := c.Compute(1e9); got.Told != 0 || !near(got.Least, 191e6+2*(1<<20)) || !near(got.Most, 191e6+2*4e6) {
		t.Errorf("Compute = %+v, want 193 to 199 ms, and nothing told", got)
	}
}

// Of many runs so many are kept that they are spread over all of them.
func TestRunSample(t *testing.T) {
	var s runSample
	const runs = 1000
	for i := range int64(runs) {
		s.add(run{nanos: i})
	}
	if len(s.kept) < 16 || len(s.kept) > 64 {
		t.Fatalf("%d runs are kept, want 16 to 64", len(s.kept))
	}
	for i, r := range s.kept {
		if r.nanos != int64(i*s.every) {
			t.Fatalf("run %d is %d, want every %d", i, r.nanos, s.every)
		}
	}
}

// Several sequences share what a step reads. What is missing is missing once for all of them.
func TestOutlookOfBatches(t *testing.T) {
	c := planted(t, 6, true)
	c.usualBatch = 2
	for i := range c.steps {
		c.steps[i].row.Tokens = 2
		c.steps[i].disk, c.steps[i].reread = 2<<20, 1<<20
	}
	meta := &tables.Meta{
		Memory: &tables.Memory{LimitBytes: 1 << 20, Of: "/a memory.max"},
		Disk:   &tables.Disk{BytesPerSecond: 100 << 20},
	}
	o := c.Outlook(meta, Computing(50*time.Millisecond))
	if o.Missing != 3<<19 || o.Fits != 40 || o.TokensPerSecond != 20 || math.Abs(o.Read-1.25*(1<<20)) > 1 {
		t.Errorf("outlook %+v, want Missing %d, Fits 40, TokensPerSecond 20, Read %g", o, 3<<19, 1.25*(1<<20))
	}
}
