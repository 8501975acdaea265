package follow

// This file tests what a cursor observes of the times of ops, and of the gaps between them.

import (
	"slices"
	"testing"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/plan"
)

const mib = 1 << 20

// newSchedule is a schedule of reads that follow each other in one file. lengths are in bytes.
func newSchedule(lengths ...int64) *plan.Schedule {
	c := &pattern.Cycle{}
	at := int64(4096)
	for _, n := range lengths {
		c.Reads = append(c.Reads, pattern.CycleRead{Offset: at, Length: n, Nanos: -1})
		at += n
	}
	return plan.NewSchedule(c, pages.MinBlock, 0)
}

// Reading slows computing. It is measured by how much longer the ops of layers take lately, in the layer that was
// slowed least. Prompts are left out.
func TestTimesLately(t *testing.T) {
	const m = mib
	s := newSchedule(4*m, 4*m, 4*m, 4*m, 2*m, 4096)
	c, held := NewCursor(s), make([]bool, len(s.Blocks))
	var number uint32
	decode := func(begun int64, nanos ...int64) {
		number++
		c.BeginDecode(1, number, begun, true)
		for i, n := range nanos {
			c.NoteRead(0, s.Reads[i].Offset, &event.Op{Time: begun, Duration: n}, n)
		}
		c.EndDecode(begun)
	}
	expectTimes := func(when string, want ...float64) {
		t.Helper()
		if got := s.TimesBesideReads(held, 32*m, &c.Seen).Reads; !slices.Equal(got, want) {
			t.Errorf("%s: times beside reads are %v, want %v", when, got, want)
		}
	}
	decode(0, 9000, 9000, 9000, 9000, 9000, 9000)
	expectTimes("a prompt", 9000, 9000, 9000, 9000, 9000, 9000)
	decode(1000, 400, 400, 400, 400, 200, 10)
	expectTimes("nothing was slowed", 400, 400, 400, 400, 200, 10)
	// The mean of the second layer moves least: by an eighth of what it took longer.
	decode(2000, 4000, 1200, 8000, 4000, 9000, 400)
	expectTimes("all layers were slowed by a quarter or more", 500, 500, 500, 500, 250, 12.5)
	got, want := s.Times(held, 32*m, &c.Seen).Reads, []float64{400, 400, 400, 400, 200, 10}
	if !slices.Equal(got, want) {
		t.Errorf("without reads the times are %v, want %v", got, want)
	}
	c.Seen.Lately[0] = -1
	expectTimes("a layer was not seen", 400, 400, 400, 400, 200, 10)
}

// Gaps between ops are averaged over the last decodes. A prompt does not count, nor the gap where a read was missed.
func TestGaps(t *testing.T) {
	s := newSchedule(mib, mib, mib, 4096)
	c := NewCursor(s)
	var number uint32
	decode := func(begun int64, gap int64, reads ...int) {
		number++
		c.BeginDecode(1, number, begun, true)
		now := begun
		for _, i := range reads {
			now += gap
			c.NoteRead(0, s.Reads[i].Offset, &event.Op{Time: now, Duration: 100}, 100)
			if i == 2 { // another weight of the same op
				c.NoteRead(0, s.Reads[3].Offset, &event.Op{Time: now, Duration: 100}, 0)
			}
			now += 100
		}
		c.EndDecode(now + 2*gap)
	}
	decode(1000, 80, 0, 1, 2)
	if want := []int64{80, 80, 80, -1, 160}; !slices.Equal(c.Seen.Gaps, want) {
		t.Errorf("the first decode: gaps %v, want %v", c.Seen.Gaps, want)
	}
	decode(2000, 160, 0, 2)
	if want := []int64{90, 80, 80, -1, 180}; !slices.Equal(c.Seen.Gaps, want) {
		t.Errorf("a read was missed: gaps %v, want %v", c.Seen.Gaps, want)
	}
	decode(0, 1000, 0, 1, 2)
	if want := []int64{90, 80, 80, -1, 180}; !slices.Equal(c.Seen.Gaps, want) {
		t.Errorf("after a prompt: gaps %v, want %v as before", c.Seen.Gaps, want)
	}
}
