package handover

import (
	"testing"

	"tensorcast/gguf"
	"tensorcast/pattern"
	"tensorcast/prefetch/plan"
)

// TestRest: prefetchd's own planner keeps as much of what a device does not hold as the joint plan does. A
// token reads each byte of that once, so all sets of as many bytes save the same time. prefetchd keeps bytes
// that are spread over the model, which is best for reading ahead.
func TestRest(t *testing.T) {
	units, bytes := dense(48, 16, gguf.Q4_K)
	more, bytes6 := dense(16, 16, gguf.Q6_K)
	units = append(units, more...)
	at := Target{Model: bytes + bytes6, Room: (bytes + bytes6) / 2, LeftOver: 64 * mib, Disk: 1e9, CPUs: 2}
	p := NewPlan(units, form(t, "fast", ""), at)
	held := map[int]bool{}
	for _, i := range p.Units {
		held[i] = true
	}
	c := &pattern.Cycle{Files: []pattern.CycleFile{{Name: "m.gguf", Size: at.Model}}}
	var rest [][]choice
	var offset, size, largest int64
	for i := range units {
		n := units[i].fileBytes()
		if !held[i] {
			c.Reads = append(c.Reads, pattern.CycleRead{File: 0, Tensor: units[i].Name, Offset: offset,
				Length: n, Nanos: -1})
			rest = append(rest, at.cpuChoices(n, 1, false))
			size, largest = size+n, max(largest, n)
		}
		offset += n
	}
	if p.Bytes == 0 || size < 64*mib {
		t.Fatalf("%d MiB are not held: %+v", size/mib, p)
	}
	f := plan.Foresee(c, plan.Auto{}, size*3/4, 0, at.Disk)
	var kept int64
	for _, r := range f.Held {
		kept += r.Length
	}
	// The joint plan for as much memory keeps whole tensors.
	_, of := shareMemory(rest, kept)
	joint := int64(of.read * at.Disk)
	if kept == 0 || f.Missed != size-kept || f.Missed > joint || joint-f.Missed > largest {
		t.Errorf("of %d MiB prefetchd keeps %d and reads %d for a token, the joint plan keeps %d and reads %d",
			size/mib, kept/mib, f.Missed/mib, of.memory/mib, joint/mib)
	}
}
