package handover

import (
	"testing"
	"time"
)

// TestBalance: a device gives way at once, and comes back when there was room for a while.
func TestBalance(t *testing.T) {
	const mib = 1 << 20
	b := NewBalance(Plan{Bytes: 400 * mib, Least: 400 * mib}, 600*mib)
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
		if got := b.Next(begin.Add(step.at), step.left, 0); got != step.want {
			t.Errorf("after %v with %d MiB left: %d MiB, want %d", step.at, step.left/mib, got/mib, step.want/mib)
		}
	}
}

// TestBalanceFiner: third planes go as soon as the rest of the model does not fit any more, tensors only when memory is
// short. Tensors come back first, then planes.
func TestBalanceFiner(t *testing.T) {
	const mib = 1 << 20
	b := NewBalance(Plan{Bytes: 500 * mib, Least: 350 * mib, Rest: 250 * mib, Finer: true}, 970*mib)
	begin := time.Now()
	for _, step := range []struct {
		at         time.Duration
		left, want int64
	}{
		{0, 350 * mib, 500 * mib},
		{1 * time.Second, 337 * mib, 500 * mib},  // it fits still
		{2 * time.Second, 286 * mib, 430 * mib},  // 70 MiB make it fit
		{3 * time.Second, 356 * mib, 430 * mib},  // as is planned
		{4 * time.Second, 200 * mib, 350 * mib},  // not even without third planes
		{5 * time.Second, 100 * mib, 350 * mib},  // it is streamed
		{6 * time.Second, 30 * mib, 284 * mib},   // memory is short
		{7 * time.Second, 400 * mib, 284 * mib},  // a neighbour has left
		{27 * time.Second, 400 * mib, 350 * mib}, // tensors come back
		{28 * time.Second, 480 * mib, 350 * mib}, // then planes: there is room for them, too
		{48 * time.Second, 480 * mib, 474 * mib},
		{70 * time.Second, 356 * mib, 474 * mib},
	} {
		if got := b.Next(begin.Add(step.at), step.left, 300*mib); got != step.want {
			t.Errorf("after %v with %d MiB left: %d MiB, want %d", step.at, step.left/mib, got/mib, step.want/mib)
		}
	}
}
