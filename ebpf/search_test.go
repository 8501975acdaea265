package ebpf

// These tests check how often a target's memory map is read.

import (
	"testing"
	"time"
)

// A process that starts is looked at often, and one that waits seldom. One that grows is looked at
// soon, unless it grows all the time.
func TestSearch(t *testing.T) {
	looks := func(from, to time.Duration, glance, took time.Duration, ready bool,
		size func(at time.Duration) string) (n, glances int) {
		var s search
		begin := time.Unix(1000, 0)
		for now := begin; now.Before(begin.Add(to)); now = now.Add(time.Millisecond) {
			at := now.Sub(begin)
			asked := func() string {
				if at >= from {
					glances++
				}
				return size(at)
			}
			if !s.isDue(now, ready, glance, asked) {
				continue
			}
			if at >= from {
				n++
			}
			s.noteLook(now, now.Add(took), ready, size(at))
		}
		return n, glances
	}
	same := func(time.Duration) string { return "1" }
	if n, _ := looks(0, time.Second, patientInterval, 100*time.Microsecond, false, same); n < 300 {
		t.Errorf("%d looks in the first second, want at least 300", n)
	}
	if n, glances := looks(10*time.Second, 20*time.Second, patientInterval, 100*time.Microsecond, false,
		same); n > 6 || n < 4 || glances > 25 {
		t.Errorf("%d looks and %d glances in ten seconds of waiting, want 4 to 6 and at most 25", n, glances)
	}
	if n, _ := looks(10*time.Second, 20*time.Second, patientInterval, 100*time.Microsecond, true, same); n < 15 ||
		n > 21 {
		t.Errorf("%d looks at a process with ggml in ten seconds without an op, want 15 to 21", n)
	}
	grown := func(at time.Duration) string {
		if at > 10500*time.Millisecond {
			return "2"
		}
		return "1"
	}
	if n, _ := looks(10500*time.Millisecond, 10530*time.Millisecond, glanceInterval, 100*time.Microsecond, false,
		grown); n != 1 {
		t.Errorf("%d looks shortly after the process has grown, want 1", n)
	}
	always := func(at time.Duration) string { return at.String() }
	if n, _ := looks(10*time.Second, 20*time.Second, glanceInterval, 2*time.Millisecond, false, always); n > 15 {
		t.Errorf("%d slow looks in ten seconds at a process that grows all the time, want at most 15", n)
	}
}
