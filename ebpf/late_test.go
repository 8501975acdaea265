package ebpf

import (
	"testing"
	"time"
)

// A process that starts is looked at often, one that waits seldom; one that grows soon, unless it grows all the time.
func TestSearch(t *testing.T) {
	looks := func(from, to time.Duration, glance, took time.Duration, ready bool, size func(at time.Duration) string) (n, glances int) {
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
			if !s.due(now, ready, glance, asked) {
				continue
			}
			if at >= from {
				n++
			}
			s.done(now, now.Add(took), ready, size(at))
		}
		return n, glances
	}
	same := func(time.Duration) string { return "1" }
	if n, _ := looks(0, time.Second, patientInterval, 100*time.Microsecond, false, same); n < 300 {
		t.Errorf("in its first second %d looks", n)
	}
	if n, glances := looks(10*time.Second, 20*time.Second, patientInterval, 100*time.Microsecond, false, same); n > 6 || n < 4 || glances > 25 {
		t.Errorf("in ten seconds of waiting %d looks, %d glances", n, glances)
	}
	if n, _ := looks(10*time.Second, 20*time.Second, patientInterval, 100*time.Microsecond, true, same); n < 15 || n > 21 {
		t.Errorf("with ggml, in ten seconds without an op %d looks", n)
	}
	grown := func(at time.Duration) string {
		if at > 10500*time.Millisecond {
			return "2"
		}
		return "1"
	}
	if n, _ := looks(10500*time.Millisecond, 10530*time.Millisecond, glanceInterval, 100*time.Microsecond, false, grown); n != 1 {
		t.Errorf("%d looks shortly after it has grown", n)
	}
	always := func(at time.Duration) string { return at.String() }
	if n, _ := looks(10*time.Second, 20*time.Second, glanceInterval, 2*time.Millisecond, false, always); n > 15 {
		t.Errorf("%d slow looks in ten seconds at one that grows all the time", n)
	}
}
