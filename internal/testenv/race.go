package testenv

// This file keeps tests that only compute away from the race detector.

import "testing"

// SkipWithRace skips a test of arithmetic, parsing or drawing in one goroutine when the race detector is built in. It
// makes such a test about ten times as slow, and has nothing to find there. `make test` runs without the detector, and
// `make race` with it.
func SkipWithRace(t testing.TB) {
	t.Helper()
	if raceDetector {
		t.Skip("it computes in one goroutine: it runs without the race detector")
	}
}
