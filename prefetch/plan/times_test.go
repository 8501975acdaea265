package plan

// This file tests how the computing time of an op is estimated.

import (
	"math"
	"slices"
	"testing"

	"tensorcast/prefetch/pages"
)

// An op's time is computing and waiting. Both are told apart with the help of equal layers and of weights that are
// held.
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
	// Nothing is held. An op of a layer takes the time of the fastest op of its length. The large op's own time stays
	// as long as too few layers were seen.
	if got, want := reads(), []float64{400, 400, 400, 400, 300, 90000, 900, 900}; !slices.Equal(got, want) {
		t.Errorf("three of four layers were seen: %v, want %v", got, want)
	}
	seen.Least[3] = 410
	if got, want := reads(), []float64{400, 400, 400, 400, 300, 3200, 900, 900}; !slices.Equal(got, want) {
		t.Errorf("four layers were seen: %v, want %v", got, want)
	}
	hold(4) // 150 ns a mebibyte
	if got := reads()[5]; got != 32*150 {
		t.Errorf("at the speed of a read that waits for nothing, the large op takes %v, want %v", got, 32*150)
	}
	for i := range held {
		held[i] = true
	}
	if got := reads()[5]; got != 90000 {
		t.Errorf("the large op takes %v when it is held, want 90000", got)
	}
	seen.Least[4] = -1
	if got, want := reads()[4], 2.0*(4*400+90000+2*900)/(4*4+32+2*6); math.Abs(got-want) > 1 {
		t.Errorf("an op that was not seen takes %v, want %v", got, want)
	}
}
