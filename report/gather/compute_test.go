package gather

// This file tests the estimate of how long a step computes.

import (
	"math"
	"testing"
	"time"

	"tensorcast/trace/tables"
)

// A step computes for the time that its ops take when they do not wait, and for the time outside of ops.
// Planted are three matrices, of which one is in memory in one step; two norms, of which one always
// waits; an op on two weights; waiting of two threads whose sum is longer than the op; and a step of two
// tokens, which does not count.
func TestCompute(t *testing.T) {
	structure := []tables.StructureRow{
		{Name: "a", Size: 1 << 20, Type: "Q8_0"},
		{Name: "b", Size: 1 << 20, Type: "Q8_0"},
		{Name: "c", Size: 2 << 20, Type: "Q8_0"},
		{Name: "norm a", Size: 1 << 10, Type: "F32"},
		{Name: "norm b", Size: 1 << 10, Type: "F32"},
		{Name: "gate", Size: 1 << 20, Type: "Q4_K"},
		{Name: "up", Size: 1 << 20, Type: "Q4_K"},
	}
	const steps = 4
	var rows []tables.StepRow
	for i := range int32(steps + 1) {
		s := tables.StepRow{Step: i, Phase: tables.PhaseGeneration, Tokens: 1, Begin: int64(i) * 1e9}
		s.End = s.Begin + 200e6 + int64(i)*1e6
		if i == steps {
			s.Tokens, s.End = 2, s.Begin+10
		}
		rows = append(rows, s)
	}
	// collect runs each step's ops one after the other. The first 3 ms of each step are outside of ops.
	collect := func(stalls bool) *Collector {
		c := New(structure, 0, 0, rows)
		c.CPUs = 2
		for i := range int32(steps + 1) {
			now := int64(i)*1e9 + 3e6
			op := func(name string, took, stall int64, tensors ...int32) {
				if !stalls {
					stall = tables.NotObserved
				}
				for n, tensor := range tensors {
					a := tables.Access{
						Step: i, Tensor: tensor, Bytes: structure[tensor].Size, Op: name, Timestamp: now,
						Duration: took, Stall: stall,
					}
					if n > 0 && stalls {
						a.Stall = 0 // it is in one of the op's rows only
					}
					if err := c.Access(&a); err != nil {
						t.Fatal(err)
					}
				}
				now += took
			}
			took, stall := int64(5e6), int64(8e6)
			if i == 1 {
				took, stall = 1e6, 0
			}
			op("MUL_MAT", took, stall, 0)
			op("MUL_MAT", 7e6, 12e6, 1)
			op("MUL_MAT", 9e6, 14e6, 2)
			op("NORM", 2000, 0, 3)
			op("NORM", 10e6, 3e6, 4)
			op("GATE+UP", 4e6+int64(i), int64(i), 5, 6)
			rows[i].End = max(rows[i].End, now)
		}
		return c
	}
	// The least time outside of ops is that of the first step or the second: 203 ms less the times of
	// their ops.
	besides := math.Min(200e6-(5+7+9+10+4)*1e6-2000, 201e6-(1+7+9+10+4)*1e6-2001)
	want := besides + (1+1+2)*1e6 + 2*2000 + 4e6
	if got := collect(true).Compute(); math.Abs(float64(got)-want) > 1000 {
		t.Errorf("Compute = %v, want %v", got, time.Duration(want))
	}
	// Where waiting was not observed, only the fastest runs tell how long ops compute.
	if got := collect(false).Compute(); math.Abs(float64(got)-want) > 1000 {
		t.Errorf("Compute without stalls = %v, want %v", got, time.Duration(want))
	}
	if got := New(structure, 0, 0, rows).Compute(); got != 0 {
		t.Errorf("Compute without accesses = %v, want 0", got)
	}
	c := New(structure, 0, 0, rows)
	if err := c.Access(&tables.Access{
		Bytes: 1 << 20, Duration: tables.NotObserved, Stall: tables.NotObserved,
	}); err != nil || c.Compute() != 0 {
		t.Errorf("Compute without times = %v, want 0; error %v", c.Compute(), err)
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
	o := c.Outlook(meta, 50*time.Millisecond)
	if o.Missing != 3<<19 || o.Fits != 40 || o.TokensPerSecond != 20 || math.Abs(o.Read-1.25*(1<<20)) > 1 {
		t.Errorf("outlook %+v, want Missing %d, Fits 40, TokensPerSecond 20, Read %g", o, 3<<19, 1.25*(1<<20))
	}
}
