package handover

import (
	"testing"
	"time"
)

// TestBalance: a device gives way at once, and comes back when there was room for a while.
func TestBalance(t *testing.T) {
	const mib = 1 << 20
	b := NewBalance(400*mib, 600*mib)
	begin := time.Now()
	for _, step := range []struct {
		at         time.Duration
		left, want int64
	}{
		{0, 100 * mib, 400 * mib},
		{1 * time.Second, 39 * mib, 343 * mib},   // 57 MiB more than it had left
		{2 * time.Second, 96 * mib, 343 * mib},   // enough, for now
		{3 * time.Second, -500 * mib, 0},         // there is no less than nothing
		{4 * time.Second, 300 * mib, 0},          // a neighbour has left
		{23 * time.Second, 300 * mib, 0},         // not for long enough
		{24 * time.Second, 300 * mib, 204 * mib}, // all but what is to be left
		{25 * time.Second, 170 * mib, 204 * mib},
		{30 * time.Second, 150 * mib, 204 * mib}, // this begins the wait anew
		{46 * time.Second, 600 * mib, 204 * mib},
		{66 * time.Second, 600 * mib, 400 * mib}, // no more than it began with
		{90 * time.Second, 600 * mib, 400 * mib},
	} {
		if got := b.Next(begin.Add(step.at), step.left); got != step.want {
			t.Errorf("after %v with %d MiB left: %d MiB, want %d", step.at, step.left/mib, got/mib, step.want/mib)
		}
	}
}
