package prefetch_test

// This file tests in virtual time how a model that fits is read back while its target rests (Options.KeepWarm).

import (
	"errors"
	"testing"
	"time"

	"tensorcast/prefetch"
)

// newFittingRig is a rig whose Controller has found that everything fits, and stands back.
func newFittingRig(t *testing.T, opts prefetch.Options) *rig {
	t.Helper()
	r := newRig(t, 1.5, opts, nil)
	var stood *prefetch.StandBack
	if _, err := r.Run(1, r.cycle, 5); !errors.As(err, &stood) || stood.Reason != prefetch.Fits {
		t.Fatal(err)
	}
	r.Rest(time.Second)
	return r
}

// keepWarm does once a second, for a time, what a caller does to keep the model warm. idle says whether the target
// computes nothing. It returns how many times something was read back.
func (r *rig) keepWarm(d time.Duration, idle bool) (times int) {
	r.t.Helper()
	for end := r.Now().Add(d); r.Now().Before(end); r.Rest(time.Second) {
		if again, err := r.Look(); again || err != nil {
			r.t.Fatalf("Look = %t, %v, want false", again, err)
		}
		cold, err := r.Cold()
		if err != nil {
			r.t.Fatal(err)
		}
		if !cold || !idle {
			continue
		}
		if err := r.Warm(func() bool { return idle }); err != nil {
			r.t.Fatal(err)
		}
		times++
	}
	return times
}

// When others have taken memory from a model that fits, it is read back while the target rests, and only then.
func TestKeepWarm(t *testing.T) {
	r := newFittingRig(t, prefetch.Options{KeepWarm: true})
	if times := r.keepWarm(time.Minute, true); times != 0 || r.Status().Warmed != 0 {
		t.Errorf("everything is in memory: read back %d times, %d bytes, want none", times, r.Status().Warmed)
	}
	const taken = 60 * mib
	r.Take(taken)
	if r.keepWarm(time.Minute, false); r.Status().Warmed != 0 {
		t.Errorf("%d bytes were read back while the target computes, want 0", r.Status().Warmed)
	}
	calls := r.pages.Calls
	if times := r.keepWarm(10*time.Second, true); times != 1 {
		t.Errorf("read back %d times, want once", times)
	}
	// Pages of others may have been among those that were taken.
	if s := r.Status(); s.Warmed < taken*9/10 || s.Warmed > taken*11/10 || s.Activity != prefetch.Idle {
		t.Errorf("%d bytes were read back, want about %d; status %q, want %s", s.Warmed, taken, s, prefetch.Idle)
	}
	if r.pages.Calls.PageOut != calls.PageOut {
		t.Errorf("%d calls paged something out, want none", r.pages.Calls.PageOut-calls.PageOut)
	}
	r.Attach(nil)
	if token := r.run(1); token.TargetBytes != 0 {
		t.Errorf("the next request reads %d bytes, want 0", token.TargetBytes)
	}

	r = newFittingRig(t, prefetch.Options{})
	r.Take(taken)
	if times := r.keepWarm(time.Minute, true); times != 0 {
		t.Errorf("without KeepWarm: read back %d times, want 0", times)
	}
}

// If others take memory again and again, it is read back more and more rarely, and soon again once they are done.
func TestKeepWarmAgainstOthers(t *testing.T) {
	r := newFittingRig(t, prefetch.Options{KeepWarm: true})
	times := 0
	for range 1800 {
		r.Take(60 * mib)
		times += r.keepWarm(time.Second, true)
	}
	// The pause doubles from 2 s up to 5 minutes: 8 times in 510 s, and 4 or 5 times in the other 1290 s.
	if times < 7 || times > 25 {
		t.Errorf("read back %d times in half an hour, want 7 to 25", times)
	}
	if times := r.keepWarm(10*time.Minute, true); times != 1 {
		t.Errorf("once the others are done: read back %d times, want once", times)
	}
	r.keepWarm(20*time.Minute, true)
	r.Take(60 * mib)
	if times := r.keepWarm(5*time.Second, true); times != 1 {
		t.Errorf("after a quiet time: read back %d times, want once", times)
	}
}

// As soon as the target computes, no more is read back.
func TestKeepWarmEnds(t *testing.T) {
	r := newFittingRig(t, prefetch.Options{KeepWarm: true})
	r.Take(100 * mib)
	r.Rest(3 * time.Second)
	if cold, err := r.Cold(); !cold || err != nil {
		t.Fatalf("Cold = %v, %v, want true", cold, err)
	}
	asked := 0
	idle := func() bool {
		asked++
		return asked <= 3
	}
	if err := r.Warm(idle); err != nil {
		t.Fatal(err)
	}
	if s := r.Status(); s.Warmed == 0 || s.Warmed > 50*mib {
		t.Errorf("%d bytes were read back until the target computed, want some, at most %d", s.Warmed, 50*mib)
	}
}
