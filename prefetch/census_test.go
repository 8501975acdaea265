package prefetch

import (
	"slices"
	"testing"
	"time"
)

// slowCount are pages of which each count takes a while.
type slowCount struct {
	Pages
	clock  time.Time
	takes  time.Duration
	counts int
	there  func(Range) int64
}

func (p *slowCount) Resident(r Range) (int64, error) {
	p.counts++
	p.clock = p.clock.Add(p.takes)
	return p.there(r), nil
}

// What is in memory of a large model is found out without a long pause: a file that is new at once, what changes later bit by bit.
func TestCensus(t *testing.T) {
	const mib = 1 << 20
	pages := &slowCount{clock: time.Unix(1e9, 0), takes: 70 * time.Microsecond, there: func(r Range) int64 { return r.Length / 2 }}
	c := New(pages, Options{Now: func() time.Time { return pages.clock }})
	c.known = []knownFile{{size: 1000*mib + 5000}, {size: 3 * mib}}
	if err := c.count(); err != nil {
		t.Fatal(err)
	}
	if want := int64(1003*mib+5000) / 2; c.census.total != want {
		t.Fatalf("%d bytes are in memory at first, want %d", c.census.total, want)
	}
	// The second half of the first file comes, the second file goes.
	pages.there = func(r Range) int64 {
		switch {
		case r.File == 1:
			return 0
		case r.Offset >= 504*mib:
			return r.Length
		}
		return r.Length / 2
	}
	want := int64(504*mib/2 + 1000*mib + 5000 - 504*mib)
	begun, busy := pages.clock, time.Duration(0)
	for range 100_000 {
		before := pages.clock
		if err := c.count(); err != nil {
			t.Fatal(err)
		}
		took := pages.clock.Sub(before)
		if took > countSlice+pages.takes {
			t.Fatalf("counting took %v at once", took)
		}
		if busy += took; c.census.total == want {
			break
		}
		pages.clock = pages.clock.Add(time.Millisecond)
	}
	if c.census.total != want {
		t.Fatalf("%d bytes are in memory in the end, want %d", c.census.total, want)
	}
	if all := pages.clock.Sub(begun); busy > all/40 {
		t.Errorf("counting takes %v of %v", busy, all)
	}
	// What is paged out is known at once.
	c.census.freed(Range{0, 990 * mib, 2 * mib}, 2*mib)
	c.census.freed(Range{1, 2 * mib, mib}, mib) // nothing was known to be there
	if c.census.total != want-2*mib {
		t.Errorf("%d bytes are in memory, want %d", c.census.total, want-2*mib)
	}
}

func TestScattered(t *testing.T) {
	for n := range 70 {
		order := scattered(n)
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
