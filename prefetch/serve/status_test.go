package serve

// This file tests when a target is called idle.

import (
	"testing"
	"time"

	"tensorcast/event"
)

// A target is idle some seconds after its last decode, and not while it computes, however slowly.
func TestIdleSince(t *testing.T) {
	begin, op, end := event.DecodeBegin{}, &event.Op{}, event.DecodeEnd{}
	for name, tc := range map[string]struct {
		events []event.Event
		passed time.Duration
		idle   bool
	}{
		"just observed":           {nil, idleAfter / 2, false},
		"never seen to compute":   {[]event.Event{event.FileSeen{}}, idleAfter, true},
		"between two tokens":      {[]event.Event{begin, op, end}, idleAfter / 2, false},
		"after the last token":    {[]event.Event{begin, op, end}, idleAfter, true},
		"another one computes":    {[]event.Event{begin, begin, end, op}, 2 * idleAfter, false},
		"a slow op":               {[]event.Event{begin, op}, stoppedAfter - time.Second, false},
		"stopped within a decode": {[]event.Event{begin, op}, stoppedAfter, true},
	} {
		var r statusReporter
		if since := r.idleSince(time.Now().Add(time.Hour)); !since.IsZero() {
			t.Errorf("%s: idle since %v, though it is not observed yet", name, since)
		}
		r.beginObserving()
		for _, ev := range tc.events {
			r.note(ev)
		}
		since := r.idleSince(time.Now().Add(tc.passed))
		if since.IsZero() == tc.idle || tc.idle && !since.Equal(r.heard) {
			t.Errorf("%s: idle since %v after %v, want idle: %t", name, since, tc.passed, tc.idle)
		}
		r.forgetTarget()
		if since := r.idleSince(time.Now().Add(time.Hour)); !since.IsZero() {
			t.Errorf("%s: idle since %v, though it is not observed", name, since)
		}
	}
}
