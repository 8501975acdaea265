package trace

// This file tests how it is noticed what the disk delivers at least.

import "testing"

// The rate is the most of a window. A pause is no part of one, and a few bytes at once are no rate.
func TestReadRate(t *testing.T) {
	const ms = 1_000_000
	var r readRate
	at := int64(5 * ms)
	read := func(times int, bytes, each int64) {
		for range times {
			r.add(at, bytes)
			at += each
		}
	}
	read(1, 1<<30, 10_000*ms)
	if r.best != 0 {
		t.Errorf("one read, long ago: %g, want 0", r.best)
	}
	read(100, 1<<20, 10*ms) // 100 MiB/s
	if want := 100.0 * (1 << 20); r.best < 0.9*want || r.best > 1.1*want {
		t.Errorf("100 MiB in a second: %g bytes per second, want %g", r.best, want)
	}
	slow := r.best
	read(100, 1<<10, 10*ms)
	if r.best != slow {
		t.Errorf("the rate fell from %g to %g, want the most of all", slow, r.best)
	}
	at += 10_000 * ms
	read(60, 1<<21, 10*ms)
	if want := 200.0 * (1 << 20); r.best < 0.9*want || r.best > 1.1*want {
		t.Errorf("120 MiB in 0.6 seconds: %g bytes per second, want %g", r.best, want)
	}
}
