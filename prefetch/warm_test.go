package prefetch_test

import (
	"errors"
	"testing"
	"time"

	"tensorcast/prefetch"
)

// fitting is a rig whose helper has found that everything fits, and rests.
func fitting(t *testing.T, opts prefetch.Options) *rig {
	t.Helper()
	r := newRig(t, 1.5, opts, nil)
	var stood *prefetch.StandBack
	if _, err := r.Run(1, r.cycle, 5); !errors.As(err, &stood) || stood.Reason != prefetch.Fits {
		t.Fatal(err)
	}
	r.Rest(time.Second)
	return r
}

// looks is what who keeps it warm does once a second, for a time. It returns how often something was read back.
func (r *rig) looks(d time.Duration, idle bool) (times int) {
	r.t.Helper()
	for end := r.Now().Add(d); r.Now().Before(end); r.Rest(time.Second) {
		if again, err := r.Look(); again || err != nil {
			r.t.Fatalf("it helps again: %t, %v", again, err)
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

// What others took of a model that fits is read back while the target rests, and only then.
func TestKeepWarm(t *testing.T) {
	r := fitting(t, prefetch.Options{KeepWarm: true})
	if times := r.looks(time.Minute, true); times != 0 || r.Status().Warmed != 0 {
		t.Errorf("all is there, and %d bytes were read, %d times", r.Status().Warmed, times)
	}
	const taken = 60 * mib
	r.Take(taken)
	if r.looks(time.Minute, false); r.Status().Warmed != 0 {
		t.Errorf("%d bytes were read beside a target that computes", r.Status().Warmed)
	}
	calls := r.pages.Calls
	if times := r.looks(10*time.Second, true); times != 1 {
		t.Errorf("read back %d times", times)
	}
	if s := r.Status(); s.Warmed < taken*9/10 || s.Warmed > taken*11/10 || s.Activity != prefetch.Idle { // others' pages may have been among them
		t.Errorf("%d bytes were read back of %d: %v", s.Warmed, taken, s)
	}
	if r.pages.Calls.PageOut != calls.PageOut {
		t.Error("it paged out something")
	}
	r.Attach(nil)
	if token := r.run(1); token.TargetBytes != 0 {
		t.Errorf("the next request reads %d bytes", token.TargetBytes)
	}

	r = fitting(t, prefetch.Options{})
	r.Take(taken)
	if times := r.looks(time.Minute, true); times != 0 {
		t.Errorf("read back %d times, though nobody asked for that", times)
	}
}

// Of a memory that others take again and again less and less is read back, and soon again when they are done.
func TestKeepWarmAgainstOthers(t *testing.T) {
	r := fitting(t, prefetch.Options{KeepWarm: true})
	times := 0
	for range 1800 {
		r.Take(60 * mib)
		times += r.looks(time.Second, true)
	}
	if times < 7 || times > 25 { // 2 s doubled up to 5 minutes: 8 times in 510 s, 4 or 5 times in the other 1290 s
		t.Errorf("read back %d times in half an hour", times)
	}
	if times := r.looks(10*time.Minute, true); times != 1 {
		t.Errorf("when the others are done it is read back %d times", times)
	}
	r.looks(20*time.Minute, true)
	r.Take(60 * mib)
	if times := r.looks(5*time.Second, true); times != 1 {
		t.Errorf("after a quiet time it is read back %d times", times)
	}
}

// As soon as the target computes, or memory gets short, no more is read.
func TestKeepWarmEnds(t *testing.T) {
	r := fitting(t, prefetch.Options{KeepWarm: true})
	r.Take(100 * mib)
	r.Rest(3 * time.Second)
	if cold, err := r.Cold(); !cold || err != nil {
		t.Fatal(cold, err)
	}
	asked := 0
	if err := r.Warm(func() bool { asked++; return asked <= 3 }); err != nil {
		t.Fatal(err)
	}
	if s := r.Status(); s.Warmed == 0 || s.Warmed > 50*mib {
		t.Errorf("%d bytes were read back until the target computed", s.Warmed)
	}
}
