package prefetch

import (
	"slices"
	"tensorcast/prefetch/pages"
	"testing"
	"time"
)

// slowCount are pages of which each count takes a while.
type slowCount struct {
	pages.Levers
	clock  time.Time
	takes  time.Duration
	counts int
	there  func(pages.Range) int64
}

func (p *slowCount) ResidentBytes(r pages.Range) (int64, error) {
	p.counts++
	p.clock = p.clock.Add(p.takes)
	return p.there(r), nil
}

// What is in memory of a large model is found out without a long pause: a file that is new at once, what changes later bit by bit.
func TestCensus(t *testing.T) {
	const mib = 1 << 20
	levers := &slowCount{clock: time.Unix(1e9, 0), takes: 70 * time.Microsecond, there: func(r pages.Range) int64 { return r.Length / 2 }}
	opts := Options{Now: func() time.Time { return levers.clock }}
	opts.setDefaults()
	s := newSession(levers, opts)
	c := &s.memory.census
	s.files = []knownFile{{size: 1000*mib + 5000}, {size: 3 * mib}}
	if err := c.count(s); err != nil {
		t.Fatal(err)
	}
	if want := int64(1003*mib+5000) / 2; c.total != want {
		t.Fatalf("total at first = %d, want %d", c.total, want)
	}
	// The second half of the first file comes, the second file goes.
	levers.there = func(r pages.Range) int64 {
		switch {
		case r.File == 1:
			return 0
		case r.Offset >= 504*mib:
			return r.Length
		}
		return r.Length / 2
	}
	want := int64(504*mib/2 + 1000*mib + 5000 - 504*mib)
	begun, busy := levers.clock, time.Duration(0)
	for range 100_000 {
		before := levers.clock
		if err := c.count(s); err != nil {
			t.Fatal(err)
		}
		took := levers.clock.Sub(before)
		if took > countSlice+levers.takes {
			t.Fatalf("counting took %v at once", took)
		}
		if busy += took; c.total == want {
			break
		}
		levers.clock = levers.clock.Add(time.Millisecond)
	}
	if c.total != want {
		t.Fatalf("%d bytes are in memory in the end, want %d", c.total, want)
	}
	if all := levers.clock.Sub(begun); busy > all/40 {
		t.Errorf("counting takes %v of %v", busy, all)
	}
	// What is paged out is known at once.
	c.noteFreed(pages.Range{File: 0, Offset: 990 * mib, Length: 2 * mib}, 2*mib)
	c.noteFreed(pages.Range{File: 1, Offset: 2 * mib, Length: mib}, mib) // nothing was known to be there
	if c.total != want-2*mib {
		t.Errorf("%d bytes are in memory, want %d", c.total, want-2*mib)
	}
}

func TestScatter(t *testing.T) {
	for n := range 70 {
		order := scatter(n)
		if sorted := slices.Sorted(slices.Values(order)); len(order) != n || n > 0 && (sorted[0] != 0 || sorted[n-1] != n-1) || len(slices.Compact(sorted)) != n {
			t.Errorf("%d: %v is no permutation", n, order)
		}
		for i := 1; i < len(order); i++ {
			if n > 8 && order[i] == order[i-1]+1 {
				t.Errorf("%d: %d and %d follow each other", n, order[i-1], order[i])
			}
		}
	}
}
