package pattern

// These tests sum up captures of which some steps have no times, or in which others read from disk.

import (
	"testing"

	"tensorcast/trace/tables"
)

// tallyOf returns the tally of n generated tokens. The first ones begin and end at these times (ns). Those of the
// others are not known.
func tallyOf(t *testing.T, n int, times ...[2]int64) *Tally {
	t.Helper()
	p, meta := mustBuild(t, run(t, n, nil).build)
	sum := NewTally(p, meta, true)
	for i := range p.comparedSteps() {
		s := &p.Steps[i]
		row := tables.StepRow{Step: s.Number, Phase: s.Phase, Tokens: 1, Token: s.Token, End: tables.NotObserved}
		if int(s.Token) < len(times) {
			row.Begin, row.End = times[s.Token][0], times[s.Token][1]
		}
		if err := sum.Step(&row); err != nil {
			t.Fatal(err)
		}
	}
	return sum
}

// Steps without times do not count for the tokens per second.
func TestRateWithoutAllTimes(t *testing.T) {
	sum := tallyOf(t, 6, [2]int64{0, 1e6}, [2]int64{5e6, 8e6})
	side := Compare(sum, sum).Sides[0]
	if side.Tokens != 6 || side.TokS == nil || *side.TokS != 500 || *side.MedianNS != 2e6 {
		t.Errorf("%s tokens per second and %s of %d tokens; want 500 and 2 ms of 6: 2 have times, 4 ms together",
			rateText(&side), formatMillis(side.MedianNS), side.Tokens)
	}
}

// What others read from disk counts from the begin of the first counted step to the end of the last one.
func TestPageInsOfOthers(t *testing.T) {
	for at, want := range map[int64]int64{999: 0, 1000: 150, 2500: 150, 4000: 150, 4001: 0} {
		sum := tallyOf(t, 2, [2]int64{1000, 2000}, [2]int64{3000, 4000})
		if err := sum.PageIn(&tables.PageInRow{Timestamp: at, Step: -1, Bytes: 300, Tensor: 1}); err != nil {
			t.Fatal(err)
		}
		if got := Compare(sum, sum).Sides[0].DiskBytes; got == nil || *got != want {
			t.Errorf("at %d ns: %d bytes per token, want %d", at, valueOrZero(got), want)
		}
	}
}
