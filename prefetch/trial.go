package prefetch

// This file decides by the time that tokens take whether experts are read before they are chosen. How often guesses are right does not tell: reads for them take the disk, the
// processors and the memory of what is needed.

import (
	"math"
	"slices"

	"tensorcast/internal/stats"
)

// Speculation says whether experts are read before their router has chosen them.
type Speculation string

const (
	SpeculateAuto Speculation = "auto" // where tokens turn out to be faster for it; so does the zero value
	SpeculateOff  Speculation = "off"
	SpeculateOn   Speculation = "on"
)

// SpeculationNames are the names of all, the default first.
func SpeculationNames() []string {
	return []string{string(SpeculateAuto), string(SpeculateOff), string(SpeculateOn)}
}

// trial compares tokens with and without reads for guesses, in turns. Before, the guesser only learns, which also shows whether it would read enough to win anything. Most of the
// time it rests, with what the last trial has shown to be better: then, if that is without, the guesser is not even told what was chosen, and costs nothing.
type trial struct {
	mode  Speculation // empty: it has not begun
	phase trialPhase
	left  int // tokens until the phase, or the epoch of a trial, is over
	rest  int // tokens of the next rest
	wins  bool
	idle  bool // there was too little to read to try it

	epoch int       // of the trial, from 0
	nanos []int64   // tokens of this epoch
	half  int64     // what a token of the pair's first epoch took
	pairs []float64 // of the trial: logarithms of how many times faster tokens were with reads for guesses

	count int     // trials that were over
	gain  float64 // how many times faster tokens were with them in the last one; 0 before
}

type trialPhase uint8

const (
	resting trialPhase = iota
	learning
	trying
)

const (
	// restTokens pass before the first trial, and after one, twice as many each time that it shows the same again, up to mostRest.
	firstRest, restTokens, mostRest = 32, 512, 8192
	// learnTokens are what a guesser learns from before it is tried.
	learnTokens = 64
	// A trial has epochs of epochTokens, of which the first epochSkip do not count: they still have what the epoch before has read. Of two epochs, one is with reads for
	// guesses, by turns the first and the second.
	epochTokens, epochSkip = 4, 1
	// mostPairs of epochs are compared.
	mostPairs = 24
	// After farPairs of which each was slower by a factor of farLoss or more, or clearPairs by clearLoss, no more are compared.
	farPairs, clearPairs = 2, 4
	farLoss, clearLoss   = 1.2, 1.05
)

func newTrial(mode Speculation) trial {
	if mode == "" {
		mode = SpeculateAuto
	}
	return trial{mode: mode, left: firstRest, rest: restTokens}
}

// active says whether guesses are read now.
func (t *trial) active() bool {
	switch {
	case t.mode != SpeculateAuto:
		return t.mode == SpeculateOn
	case t.phase == trying:
		return t.with()
	}
	return t.phase == resting && t.wins
}

// watches says whether the guesser is told what is chosen.
func (t *trial) watches() bool {
	return t.active() || t.mode == SpeculateAuto && t.phase == learning
}

// with says whether guesses are read in this epoch. What is alike in two epochs after each other, as when a context grows, so shows in both signs.
func (t *trial) with() bool { return t.epoch%4 == 1 || t.epoch%4 == 2 }

// token notes that a token took nanos. worth says, when the guesser has learned, whether there is enough to be read for its guesses to win anything. over says that a trial has ended.
func (t *trial) token(nanos int64, worth func() bool) (over bool) {
	if t.mode != SpeculateAuto {
		return false
	}
	t.left--
	if t.phase == trying && t.left < epochTokens-epochSkip {
		t.nanos = append(t.nanos, nanos)
	}
	if t.left > 0 {
		return false
	}
	switch t.phase {
	case resting:
		t.idle = false
		if t.wins { // the guesser has learned all the time
			t.begin()
			break
		}
		t.phase, t.left = learning, learnTokens
	case learning:
		if t.idle = !worth(); t.idle {
			t.pause(false)
			break
		}
		t.begin()
	case trying:
		return t.next()
	}
	return false
}

// begin begins a trial.
func (t *trial) begin() {
	t.phase, t.epoch, t.pairs = trying, 0, nil
	t.again()
}

// again begins an epoch.
func (t *trial) again() { t.left, t.nanos = epochTokens, nil }

// pause rests after a trial that shows wins.
func (t *trial) pause(wins bool) {
	if wins != t.wins {
		t.rest = restTokens
	}
	t.phase, t.wins, t.left = resting, wins, t.rest
	t.rest = min(2*t.rest, mostRest)
}

// next begins the next epoch, unless the trial is over.
func (t *trial) next() (over bool) {
	took, with := median(t.nanos), t.with()
	t.epoch++
	t.again()
	if t.epoch%2 == 1 {
		t.half = took
		return false
	}
	without := t.half
	if !with {
		without, took = took, without
	}
	if without <= 0 || took <= 0 {
		return false
	}
	t.pairs = append(t.pairs, math.Log(float64(without)/float64(took)))
	wins, over := t.decide()
	if over {
		t.count++
		t.pause(wins)
	}
	return over
}

// decide says what the pairs show, if that is enough: reads for guesses begin if tokens are surely faster with them, and by leastGain as far as can be told; they end if tokens are
// surely not faster. Between the two it stays as it is.
func (t *trial) decide() (wins, over bool) {
	n := len(t.pairs)
	seen := stats.HodgesLehmann(t.pairs)
	t.gain = math.Exp(seen.Estimate)
	worst, least := slices.Max(t.pairs), math.Log(leastGain)
	switch {
	case n >= farPairs && worst < -math.Log(farLoss), n >= clearPairs && worst < -math.Log(clearLoss):
		return false, true
	case !seen.Holds():
		return false, false
	case seen.Low > 0 && (t.wins || seen.Estimate >= least):
		return true, true
	case seen.High < 0, !t.wins && seen.High < least:
		return false, true
	case n >= mostPairs:
		return t.wins && seen.Estimate >= 0, true
	}
	return false, false
}

// interrupt leaves out what is being measured: something else changes what tokens take.
func (t *trial) interrupt() {
	if t.phase == trying {
		t.epoch -= t.epoch % 2
		t.again()
		t.left += settleTokens
	}
}

// soon has the next trial begin soon, as what the last one has shown may be so no more.
func (t *trial) soon() {
	if t.phase == resting {
		t.left, t.rest = min(t.left, firstRest), restTokens
	}
}

// state is for people.
func (t *trial) state() string {
	switch {
	case t.mode != SpeculateAuto:
		return string(t.mode)
	case t.phase == learning:
		return "learning"
	case t.phase == trying:
		return "trying"
	case t.wins:
		return "won"
	case t.idle:
		return "too little to win"
	case t.count > 0:
		return "no win"
	}
	return "not tried yet"
}
