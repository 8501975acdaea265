package prefetch

// This file tests which cycles are refused.

import (
	"testing"

	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/plan"
)

// Sums of lengths must not overflow: a sparse file can be as large as a process can map.
func TestCycleOfTooManyBytes(t *testing.T) {
	const size = 1 << 47
	for reads, want := range map[int]bool{
		1: true, plan.MaxCycleBytes / size: true, plan.MaxCycleBytes/size + 1: false, 1 << 16: false, 1 << 17: false,
	} {
		opts := Options{}
		opts.setDefaults()
		s := newSession(nil, opts)
		s.files = []knownFile{{size: size}}
		cycle := &pattern.Cycle{Reads: make([]pattern.CycleRead, reads)}
		for i := range cycle.Reads {
			cycle.Reads[i] = pattern.CycleRead{Length: size}
		}
		if got := s.checkReads(cycle) != nil; got != want {
			t.Errorf("%d reads of %d bytes: accepted = %v, want %v", reads, int64(size), got, want)
		}
	}
	c := &pattern.Cycle{Reads: make([]pattern.CycleRead, plan.MaxCycleBytes/size)}
	for i := range c.Reads {
		c.Reads[i] = pattern.CycleRead{Length: size}
	}
	s := plan.NewSchedule(c, pages.MinBlock, 0)
	if len(s.Blocks) == 0 || len(s.Blocks) > plan.MaxBlocks || s.Bytes != size {
		t.Errorf("a schedule of %d blocks and %d bytes, want 1 to %d blocks, and %d bytes",
			len(s.Blocks), s.Bytes, plan.MaxBlocks, int64(size))
	}
}
