package prefetch

// This file tests what is remembered of speeds and of happenings.

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// A part of the time has the mean speed of the steps that lasted in it, and 0 if there were none.
func TestHistory(t *testing.T) {
	began := time.Date(2026, 11, 26, 14, 5, 20, 0, time.UTC)
	at := func(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }
	took := func(tokens int, seconds float64) step { return step{tokens, int64(seconds * 1e9)} }
	type ended struct {
		at float64
		step
	}
	for name, tc := range map[string]struct {
		steps []ended
		now   float64
		want  []float32
	}{
		"nothing":            {nil, 10, nil},
		"no time, no tokens": {[]ended{{1, step{1, 0}}, {1, step{0, 5}}}, 1, nil},
		"fast": {[]ended{{0.5, took(1, 0.5)}, {1, took(1, 0.5)}, {1.5, took(1, 0.5)}}, 1.9,
			[]float32{2}},
		"slower, then a rest": {[]ended{{1, took(1, 1)}, {2, took(1, 1)}, {4, took(1, 2)}}, 9,
			[]float32{1, 0.5, 0, 0, 0}},
		"longer than a part": {[]ended{{8, took(4, 8)}}, 7.9, []float32{0.5, 0.5, 0.5, 0.5}},
		"several slots":      {[]ended{{1, took(4, 1)}}, 1, []float32{4}},
	} {
		var h history
		for _, s := range tc.steps {
			h.add(at(s.at), s.step)
		}
		if got := h.speeds(at(tc.now)); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}

	var h history // for longer than what is remembered, at a speed that rises
	for i := range 1000 {
		h.add(at(float64(i+1)), took(i+1, 1))
	}
	speeds := h.speeds(at(999.5))
	if len(speeds) != historyBins || !slices.IsSorted(speeds) || math.Abs(float64(speeds[historyBins-1])-999.5) > 1 {
		t.Errorf("%d speeds %v, want %d that rise to about 999.5", len(speeds), speeds, historyBins)
	}
	h.add(at(5000), took(1, 3000)) // one that takes longer than what is remembered
	speeds = h.speeds(at(5000))
	if len(speeds) != historyBins || slices.ContainsFunc(speeds[:historyBins-1], func(v float32) bool {
		return math.Abs(float64(v)*3000-1) > 1e-3
	}) {
		t.Errorf("%v, want 1/3000 everywhere", speeds)
	}
	h.observe(at(5001), false)
	h.observe(at(5002), false)
	h.add(at(5003), took(1, 1))
	speeds = h.speeds(at(5011))
	if got, want := speeds[len(speeds)-5:], []float32{1, NotSeen, NotSeen, NotSeen, NotSeen}; !slices.Equal(got, want) {
		t.Errorf("while nothing is observed %v, want %v", got, want)
	}
	h.observe(at(5011), true)
	speeds = h.speeds(at(5015))
	if got, want := speeds[len(speeds)-7:], []float32{1, NotSeen, NotSeen, NotSeen, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("when it is observed again %v, want %v", got, want)
	}
	h.observe(at(5015), false)
	h.observe(at(9000), true)
	if speeds = h.speeds(at(9003)); speeds[0] != NotSeen || speeds[historyBins-1] != 0 {
		t.Errorf("after a long time without being observed %v, want %v first and 0 last", speeds, NotSeen)
	}
	if speeds = h.speeds(at(1e6)); slices.Max(speeds) != 0 {
		t.Errorf("after a long rest %v, want 0 everywhere", speeds)
	}
}

// The last happenings are remembered, in bounded space. What happens again and again takes one place.
func TestJournal(t *testing.T) {
	began := time.Date(2026, 11, 26, 14, 5, 20, 0, time.UTC)
	var j journal
	for i := range 50 {
		j.note(began.Add(time.Duration(i)*time.Second), "gave back", fmt.Sprint("gave back ", i))
	}
	if len(j.all) != 1 || j.all[0].What != "gave back 49" || !j.all[0].At.Equal(began.Add(49*time.Second)) {
		t.Errorf("%v, want only the last", j.all)
	}
	j.note(began.Add(2*time.Minute), "gave back", "gave back later")
	if len(j.all) != 2 {
		t.Errorf("%v, want one more after a while", j.all)
	}
	told := slices.Clone(j.all)
	for i := range 50 {
		j.note(began, fmt.Sprint("kind ", i), strings.Repeat("ü", 1000))
	}
	if len(j.all) != journalLength || len(j.all[0].What) > longestHappening+3 || !utf8.ValidString(j.all[0].What) {
		t.Errorf("%d happenings of %d bytes, want %d of at most %d that are UTF-8",
			len(j.all), len(j.all[0].What), journalLength, longestHappening+3)
	}
	if told[1].What != "gave back later" {
		t.Errorf("what was told before has changed: %v", told)
	}
}
