package prefetch

import (
	"math/rand/v2"
	"testing"
)

// tokens has a trial see tokens of which those with reads for guesses are faster by gain, whose times are spread by noise. It returns how many tokens were with them.
func tokens(t *trial, n int, gain, noise float64, seed uint64) (with int) {
	r := rand.New(rand.NewPCG(seed, 0))
	for range n {
		nanos := 1e8 * (1 + noise*r.NormFloat64())
		if t.active() {
			with++
			nanos /= gain
		}
		t.token(int64(max(nanos, 1e6)), func() bool { return true })
	}
	return with
}

// decided runs a trial until the first one is over.
func decided(gain, noise float64, seed uint64) (t trial, all, with int) {
	t = newTrial("")
	for t.count == 0 {
		all++
		with += tokens(&t, 1, gain, noise, seed+uint64(all)*1000)
	}
	return t, all, with
}

// Reads for guesses stay where they make tokens faster, and nowhere else, whatever tokens are like otherwise.
func TestTrial(t *testing.T) {
	const runs = 100
	for _, tc := range []struct {
		gain, noise   float64
		least, most   int // of the runs, that are won
		tokens, spent int // most that the trial takes on average, and of these with reads for guesses
	}{
		{1.3, 0.1, 97, runs, 170, 40},
		{1.1, 0.03, 97, runs, 170, 40},
		{1.1, 0.1, 60, runs, 290, 100},
		{1.0, 0.03, 0, 5, 240, 80}, // no difference is no win
		{1.0, 0.15, 0, 15, 290, 100},
		{1.01, 0.005, 0, 3, 200, 60}, // less than what counts
		{0.9, 0.1, 0, 2, 220, 60},
		{0.7, 0.1, 0, 0, 120, 12}, // what is far worse ends soon
		{0.3, 0.05, 0, 0, 113, 8},
	} {
		wins, all, with := 0, 0, 0
		for seed := range uint64(runs) {
			one, n, w := decided(tc.gain, tc.noise, seed)
			all, with = all+n, with+w
			if one.wins {
				wins++
			}
			if one.active() != one.wins || one.watches() != one.wins || one.left < restTokens {
				t.Fatalf("after a trial: %+v", one)
			}
		}
		if wins < tc.least || wins > tc.most || all > tc.tokens*runs || with > tc.spent*runs {
			t.Errorf("faster by %v, spread by %v: %d of %d are won, after %d tokens, %d of them with reads", tc.gain, tc.noise, wins, runs, all/runs, with/runs)
		}
	}
}

// What is won is looked at again rarely, and given up where tokens are not faster any more; what is not won is tried again.
func TestTrialAgain(t *testing.T) {
	one := newTrial(SpeculateAuto)
	if with := tokens(&one, 2000, 1.3, 0.05, 1); !one.wins || with < 1800 || one.count != 3 {
		t.Fatalf("%d of 2000 tokens with reads, %d trials: %s", with, one.count, one.state())
	}
	if with := tokens(&one, 4000, 0.8, 0.05, 2); one.wins || with > 2600 {
		t.Errorf("after %d tokens with reads that make them slower: %s", with, one.state())
	}
	rest := one.left
	with := tokens(&one, 20000, 0.8, 0.05, 3)
	if one.wins || with > 20000/200 || one.count < 4 {
		t.Errorf("%d of 20000 tokens with reads that make them slower, in %d trials: %s", with, one.count, one.state())
	}
	one.soon()
	if one.left > firstRest || rest < firstRest {
		t.Errorf("%d tokens until a new trial", one.left)
	}
	tokens(&one, 300, 1.3, 0.05, 4)
	if !one.wins {
		t.Errorf("tokens are faster again: %s", one.state())
	}
	// A win that would not be enough to begin with is enough to go on.
	tokens(&one, 3000, 1.012, 0.02, 5)
	if !one.wins {
		t.Errorf("what was won and is not lost: %s", one.state())
	}
}

// Without anything to read nothing is tried. An interruption leaves out the pair that is under way.
func TestTrialLeavesOut(t *testing.T) {
	one := newTrial(SpeculateAuto)
	for range firstRest + learnTokens {
		if one.active() {
			t.Fatal("guesses are read")
		}
		one.token(1e8, func() bool { return false })
	}
	if one.phase != resting || one.state() != "too little to win" || one.watches() {
		t.Fatalf("%+v", one)
	}
	one = newTrial(SpeculateAuto)
	tokens(&one, firstRest+learnTokens, 1, 0, 0)
	if one.phase != trying || one.active() || one.watches() {
		t.Fatalf("%+v", one)
	}
	for i := range 3 {
		tokens(&one, epochTokens+i, 1, 0, 0)
		one.interrupt()
		if one.epoch != 0 || len(one.pairs) != 0 || one.active() {
			t.Fatalf("after an interruption: %+v", one)
		}
	}
	tokens(&one, settleTokens+epochTokens, 1, 0, 0)
	if !one.active() {
		t.Errorf("%+v", one)
	}
	tokens(&one, epochTokens, 1, 0, 0)
	if len(one.pairs) != 1 {
		t.Errorf("%+v", one)
	}
}

// Who says on or off gets it.
func TestTrialFixed(t *testing.T) {
	for mode, active := range map[Speculation]bool{SpeculateOn: true, SpeculateOff: false} {
		one := newTrial(mode)
		if with := tokens(&one, 1000, 0.5, 0.1, 1); with != map[bool]int{true: 1000}[active] || one.watches() != active || one.state() != string(mode) || one.count != 0 {
			t.Errorf("%s: %d tokens with reads: %+v", mode, with, one)
		}
	}
}
