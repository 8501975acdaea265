package prefetch_test

// This file tests how long the loop pauses.

import (
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/sim"
)

// The loop ticks often while the target decodes, and shortly after. It ticks rarely while there is nothing to follow.
func TestPause(t *testing.T) {
	m := sim.New(sim.Config{Cycles: []*pattern.Cycle{model(0, 1)}, Limit: 1 << 30, Bandwidth: 1e9})
	pages := m.Pages()
	defer func() {
		if err := pages.Close(); err != nil {
			t.Error(err)
		}
	}()
	now := time.Unix(1000, 0)
	c := prefetch.New(pages, prefetch.Options{
		Memory: m.Memory(), Now: func() time.Time { return now }, Log: newFailingLog(t),
	})
	expectPause := func(when string, least, most time.Duration) {
		t.Helper()
		if got := c.Pause(); got < least || got > most {
			t.Errorf("%s: a pause of %v, want %v to %v", when, got, least, most)
		}
	}
	handle := func(e event.Event) {
		t.Helper()
		if err := c.Handle(e); err != nil {
			t.Fatal(err)
		}
	}
	expectPause("nothing seen", 200*time.Millisecond, time.Second)
	for decode := range uint32(2) {
		handle(event.DecodeBegin{TID: 1, Decode: decode + 1, Context: 1, Tokens: 1})
		expectPause("a decode", 0, time.Millisecond)
		now = now.Add(500 * time.Millisecond)
		expectPause("a long op", 0, time.Millisecond)
		now = now.Add(time.Minute)
		expectPause("a target that stopped in a decode", 10*time.Millisecond, time.Second)
		handle(event.DecodeEnd{TID: 1, Decode: decode + 1})
		if decode == 0 {
			expectPause("a decode that read no file", 200*time.Millisecond, time.Second)
			handle(event.FileSeen{File: event.FileID{Ino: 1}, Path: m.Path(0)})
			continue
		}
		handle(event.DecodeBegin{TID: 1, Decode: decode + 2, Context: 1, Tokens: 1})
		expectPause("the next decode", 0, time.Millisecond)
		handle(event.DecodeEnd{TID: 1, Decode: decode + 2})
		now = now.Add(100 * time.Millisecond)
		expectPause("between two tokens", 0, time.Millisecond)
		now = now.Add(2 * time.Second)
		expectPause("between two requests", 10*time.Millisecond, 100*time.Millisecond)
	}
}
