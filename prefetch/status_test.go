package prefetch_test

// This file tests the words for what is done.

import (
	"testing"
	"time"

	"tensorcast/prefetch"
)

// Speeds have three digits at most. A target that generates no tokens, but reads prompts, is told as such.
func TestSpeed(t *testing.T) {
	for want, s := range map[string]prefetch.Status{
		"":                               {Before: 2},
		"5.20 tok/s":                     {Now: 5.2, Tokens: 3, Decodes: 4},
		"12.3 tok/s, 0.68 before":        {Now: 12.345, Before: 0.678, Tokens: 3, Decodes: 4},
		"235 prompt tok/s, 104 before":   {Now: 234.6, Before: 104.2, Decodes: 4},
		"8.00 prompt tok/s":              {Now: 8, Tokens: 2, Decodes: 12},
		"9.99 tok/s, 10.0 before":        {Now: 9.994, Before: 9.996, Tokens: 1},
		"1234 prompt tok/s, 99.9 before": {Now: 1234.4, Before: 99.94, Decodes: 1},
		"0.00 tok/s, 100 before":         {Now: 0.001, Before: 99.96},
	} {
		if got := s.Speed(); got != want {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}

// That memory is short is told when much of what is held was given back a moment ago, and not when the room shrinks by
// a few MiB, as it does all the time.
func TestGivingBack(t *testing.T) {
	for cut, want := range map[int64]prefetch.Activity{
		9 * mib: prefetch.Helping, 60 * mib: prefetch.Giving,
	} {
		r := newRigOf(t, model(0, 20), 0.9, prefetch.Options{}, nil)
		r.run(16)
		begun, held := r.Now().Sub(r.Began()), r.Summary().Pinned
		var soon prefetch.Status
		r.At(begun+3*time.Millisecond, func() { r.SetLimit(r.Limit() - cut) })
		r.At(begun+50*time.Millisecond, func() { soon = r.Status() })
		r.run(20)
		if soon.Activity != want || (soon.Why == "") != (want == prefetch.Helping) {
			t.Errorf("the limit is %d bytes lower: %s (%q), want %s", cut, soon.Activity, soon.Why, want)
		}
		if s := r.Summary(); s.Shrunk == 0 || s.Pinned >= held {
			t.Errorf("the limit is %d bytes lower: %d bytes of %d are held, want fewer: nothing was given back",
				cut, s.Pinned, held)
		}
	}
}
