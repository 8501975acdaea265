package serve

// This file tests for how long a target counts as resting, and how much may be kept.

import (
	"testing"
	"time"
)

// A target rests from when it last computed more than a little. A server that looks at its socket now and then rests.
func TestRest(t *testing.T) {
	var m restMeter
	now, computed := time.Now(), 5.0
	for i, step := range []struct {
		passed time.Duration
		took   float64 // seconds of processor time
		want   time.Duration
	}{
		{0, 0, 0}, // what it did before is not known
		{time.Second, 0.01, time.Second},
		{time.Second, 0.01, 2 * time.Second},
		{time.Second, 0.5, 0},
		{time.Second, 0, time.Second},
		{time.Minute, 0.5, 61 * time.Second},
		{time.Second, 4, 0},
	} {
		now, computed = now.Add(step.passed), computed+step.took
		if got := m.note(now, computed); got != step.want {
			t.Errorf("step %d: it rests for %v, want %v", i, got, step.want)
		}
	}
	gone := restMeter{pid: 1 << 22}
	if got := gone.look(now); got != 0 {
		t.Errorf("a process that has ended rests for %v, want 0", got)
	}
}

// The lesser of the budget and the cap of the models counts, and either may be missing.
func TestShare(t *testing.T) {
	var caps map[string]int64
	s := newServer(Options{PID: 7, Cap: func(target int, models []string) int64 {
		if target != 7 {
			t.Errorf("the cap of process %d is asked, want 7", target)
		}
		if len(models) == 0 {
			return 0
		}
		return caps[models[0]]
	}})
	caps = map[string]int64{"a": 100, "b": 300}
	for _, tc := range []struct {
		budget int64
		models []string
		want   int64
	}{
		{0, nil, 0}, {200, nil, 200}, {200, []string{"a"}, 100}, {200, []string{"b"}, 200}, {0, []string{"b"}, 300},
		{200, []string{"c"}, 200},
	} {
		s.budget.Store(tc.budget)
		if s.setCap(tc.models); s.share() != tc.want {
			t.Errorf("budget %d, models %q: %d, want %d", tc.budget, tc.models, s.share(), tc.want)
		}
	}
}
