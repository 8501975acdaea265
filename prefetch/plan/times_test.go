package plan

import (
	"math"
	"slices"
	"testing"

	"tensorcast/prefetch/pages"
)

// What an op was seen to take is told from what it waited, as far as layers and held weights tell it.
func TestTimes(t *testing.T) {
	const m = mib
	s := NewSchedule(sequence(4*m, 4*m, 4*m, 4*m, 2*m, 32*m, 6*m, 6*m), pages.MinBlock, 0)
	held, seen := make([]bool, len(s.Blocks)), NewObserved(s)
	seen.Least = []int64{500, 400, 430, -1, 300, 90000, 900, 1000}
	reads := func() []float64 { return s.Times(held, 8*m, &seen).Reads }
	hold := func(read int) {
		for _, v := range s.Visits {
			if v.From <= read && read <= v.To {
				held[v.Block] = true
			}
		}
	}
	// Nothing is held: the large op is as slow as one of the layers, the others of their length as the fastest of them.
	if got, want := reads(), []float64{400, 400, 400, 400, 300, 90000, 900, 900}; !slices.Equal(got, want) {
		t.Errorf("three of four layers were seen: %v, want %v", got, want)
	}
	seen.Least[3] = 410
	if got, want := reads(), []float64{400, 400, 400, 400, 300, 3200, 900, 900}; !slices.Equal(got, want) {
		t.Errorf("four layers were seen: %v, want %v", got, want)
	}
	hold(4) // 150 ns a mebibyte
	if got := reads()[5]; got != 32*150 {
		t.Errorf("by a read that waits for nothing the large op takes %v", got)
	}
	for i := range held {
		held[i] = true
	}
	if got := reads()[5]; got != 90000 {
		t.Errorf("it is held, and takes %v", got)
	}
	seen.Least[4] = -1
	if got, want := reads()[4], 2.0*(4*400+90000+2*900)/(4*4+32+2*6); math.Abs(got-want) > 1 {
		t.Errorf("an op that was not seen takes %v, want %v", got, want)
	}
}
