package prefetch_test

// This file walks a Controller through all phases of its loop in virtual time.

import (
	"slices"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/prefetch"
)

// phaseWatcher is a Controller whose phase is looked at before and after each call.
type phaseWatcher struct {
	*prefetch.Controller
	t    *testing.T
	now  func() time.Time
	seen []prefetch.Phase
}

// watchPhases puts a watcher between a rig's machine and its Controller.
func watchPhases(r *rig) *phaseWatcher {
	w := &phaseWatcher{Controller: r.Controller, t: r.t, now: r.Now}
	w.seen = append(w.seen, w.Status().LoopPhase)
	r.Attach(w)
	return w
}

func (w *phaseWatcher) Handle(e event.Event) error {
	return w.watch(func() error { return w.Controller.Handle(e) })
}

func (w *phaseWatcher) Tick() error { return w.watch(w.Controller.Tick) }

// Look is watched, too. The machine does not call it.
func (w *phaseWatcher) Look() (again bool, err error) {
	err = w.watch(func() error {
		again, err = w.Controller.Look()
		return err
	})
	return again, err
}

// watch notes the phase after a call, if the call changed it. Since must then lie within the call. Otherwise it must
// stay.
func (w *phaseWatcher) watch(call func() error) error {
	w.t.Helper()
	before, begun := w.Status(), w.now()
	err := call()
	after, ended := w.Status(), w.now()
	switch {
	case !after.Since.Equal(before.Since) || after.LoopPhase != before.LoopPhase:
		w.seen = append(w.seen, after.LoopPhase)
		if after.Since.Before(begun) || after.Since.After(ended) {
			w.t.Errorf("phase %s is said to have begun at %v, want %v to %v",
				after.LoopPhase, after.Since, begun, ended)
		}
	case after.Since.After(begun):
		w.t.Errorf("phase %s is said to have begun at %v, want no later than %v", after.LoopPhase, after.Since, begun)
	}
	return err
}

// standBack computes with a limit that has room for everything, until there is nothing to win any more.
func (w *phaseWatcher) standBack(r *rig, limit int64) {
	w.t.Helper()
	r.SetLimit(limit)
	if _, err := r.Run(1, r.cycle, 30); !standsBack(err, prefetch.Fits) {
		w.t.Fatalf("with room for everything: %v, want it to stand back", err)
	}
}

// expectPhases compares the phases that were seen.
func (w *phaseWatcher) expectPhases(want ...prefetch.Phase) {
	w.t.Helper()
	if !slices.Equal(w.seen, want) {
		w.t.Errorf("phases %q, want %q", w.seen, want)
	}
}

// The loop goes through each of its phases, and Status says which one it is in and since when.
func TestEachPhase(t *testing.T) {
	t.Run("dense", func(t *testing.T) {
		r := newRig(t, 0.85, prefetch.Options{}, nil)
		w := watchPhases(r)
		full := r.Limit()
		r.run(20)
		w.expectPhases(prefetch.Learn, prefetch.Compare, prefetch.Stream)
		w.standBack(r, 2*full)
		w.expectPhases(prefetch.Learn, prefetch.Compare, prefetch.Stream, prefetch.StandingOff)
		r.SetLimit(full)
		if again, err := w.Look(); !again || err != nil {
			t.Fatalf("Look with the limit of before = %v, %v, want true", again, err)
		}
		w.expectPhases(prefetch.Learn, prefetch.Compare, prefetch.Stream, prefetch.StandingOff, prefetch.Learn)
	})
	t.Run("mixture", func(t *testing.T) {
		r := newMixtureRig(t, 200*mib, skewed, prefetch.Options{}, nil)
		w := watchPhases(r)
		r.run(40)
		w.expectPhases(prefetch.Learn, prefetch.Compare, prefetch.Mixture)
		w.standBack(r, 2*(mixShared+mixRouted))
		w.expectPhases(prefetch.Learn, prefetch.Compare, prefetch.Mixture, prefetch.StandingOff)
	})
	t.Run("loading", func(t *testing.T) {
		l := newLoader(t, 0.85, prefetch.Options{}, nil, nil)
		w := &phaseWatcher{Controller: l.Controller, t: t, now: l.Now, seen: []prefetch.Phase{l.Status().LoopPhase}}
		l.watcher = w
		l.load(true)
		w.expectPhases(prefetch.Learn, prefetch.Load)
		if err := l.Sleep(time.Second); err != nil {
			t.Fatal(err)
		}
		l.compute()
		l.run(3)
		w.expectPhases(prefetch.Learn, prefetch.Load, prefetch.Stream)
	})
}
