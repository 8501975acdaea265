package prefetch_test

import (
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/sim"
)

// The control loop hurries while the target decodes, and shortly after; it hardly looks while there is nothing to follow.
func TestPause(t *testing.T) {
	m := sim.New(sim.Config{Cycles: []*pattern.Cycle{model(0, 1)}, Limit: 1 << 30, Bandwidth: 1e9})
	pages := m.Pages()
	defer func() {
		if err := pages.Close(); err != nil {
			t.Error(err)
		}
	}()
	now := time.Unix(1000, 0)
	c := prefetch.New(pages, prefetch.Options{Memory: m.Memory(), Now: func() time.Time { return now }})
	expect := func(when string, least, most time.Duration) {
		t.Helper()
		if got := c.Pause(); got < least || got > most {
			t.Errorf("%s: %v, want %v to %v", when, got, least, most)
		}
	}
	handle := func(e event.Event) {
		t.Helper()
		if err := c.Handle(e); err != nil {
			t.Fatal(err)
		}
	}
	expect("nothing seen", 200*time.Millisecond, time.Second)
	for decode := range uint32(2) {
		handle(event.DecodeBegin{TID: 1, Decode: decode + 1, Context: 1, Tokens: 1})
		expect("a decode", 0, time.Millisecond)
		now = now.Add(500 * time.Millisecond)
		expect("a long op", 0, time.Millisecond)
		now = now.Add(time.Minute)
		expect("a target that was stopped in a decode", 10*time.Millisecond, time.Second)
		handle(event.DecodeEnd{TID: 1, Decode: decode + 1})
		if decode == 0 {
			expect("a decode that read no file", 200*time.Millisecond, time.Second)
			handle(event.FileSeen{File: event.FileID{Ino: 1}, Path: m.Path(0)})
			continue
		}
		handle(event.DecodeBegin{TID: 1, Decode: decode + 2, Context: 1, Tokens: 1})
		expect("the next decode", 0, time.Millisecond)
		handle(event.DecodeEnd{TID: 1, Decode: decode + 2})
		now = now.Add(100 * time.Millisecond)
		expect("between two tokens", 0, time.Millisecond)
		now = now.Add(2 * time.Second)
		expect("between two requests", 10*time.Millisecond, 100*time.Millisecond)
	}
}
