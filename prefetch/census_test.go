package prefetch

// This file tests the count of what is in memory of the model files.

import (
	"slices"
	"testing"
	"time"

	"tensorcast/prefetch/pages"
)

// slowPages are pages whose count of resident bytes takes a while.
type slowPages struct {
	pages.Levers
	clock  time.Time
	takes  time.Duration
	counts int
	there  func(pages.Range) int64
}

func (p *slowPages) ResidentBytes(r pages.Range) (int64, error) {
	p.counts++
	p.clock = p.clock.Add(p.takes)
	return p.there(r), nil
}

// What is in memory of a large model is counted without a long pause: a new file at once, later changes bit by bit.
func TestCensus(t *testing.T) {
	const mib = 1 << 20
	levers := &slowPages{
		clock: time.Unix(1e9, 0), takes: 70 * time.Microsecond,
		there: func(r pages.Range) int64 { return r.Length / 2 },
	}
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
			t.Fatalf("one count took %v, want at most %v", took, countSlice+levers.takes)
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
		t.Errorf("counting took %v, want at most a fortieth of %v", busy, all)
	}
	// What is paged out is subtracted at once.
	c.noteFreed(pages.Range{File: 0, Offset: 990 * mib, Length: 2 * mib}, 2*mib)
	c.noteFreed(pages.Range{File: 1, Offset: 2 * mib, Length: mib}, mib) // none of it was counted
	if c.total != want-2*mib {
		t.Errorf("total after paging out = %d, want %d", c.total, want-2*mib)
	}
}

// scatter returns a permutation of which no two neighbours follow each other.
func TestScatter(t *testing.T) {
	for n := range 70 {
		order := scatter(n)
		sorted := slices.Sorted(slices.Values(order))
		if len(order) != n || n > 0 && (sorted[0] != 0 || sorted[n-1] != n-1) || len(slices.Compact(sorted)) != n {
			t.Errorf("scatter(%d) = %v, want a permutation", n, order)
		}
		for i := 1; i < len(order); i++ {
			if n > 8 && order[i] == order[i-1]+1 {
				t.Errorf("scatter(%d): %d and %d are neighbours, want no two that follow each other",
					n, order[i-1], order[i])
			}
		}
	}
}
