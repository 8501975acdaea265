package ebpf

// These tests check that a Tracer leaves nothing behind.

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tensorcast/event"
	"tensorcast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// descriptors is how many files this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// Loading, attaching, running and closing leaves no descriptor behind (goroutines: TestMain).
func TestNothingLeaks(t *testing.T) {
	testenv.NeedRoot(t)
	once := func() {
		tr, err := New(Options{PID: os.Getpid(), RingBytes: 4096})
		if err != nil {
			t.Fatal(err)
		}
		if err := tr.AttachMapped(); err != nil {
			t.Fatal(err)
		}
		if err := tr.Ready(); !errors.Is(err, event.ErrNoGGML) {
			t.Errorf("Ready of a process without ggml: %v, want %v", err, event.ErrNoGGML)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := tr.Run(ctx, func(e event.Event) error { t.Errorf("event %+v", e); return nil }); err != nil {
			t.Fatal(err)
		}
		if c, err := tr.Counters(); err != nil || c != (event.Counters{}) {
			t.Errorf("counters %+v, %v, want none", c, err)
		}
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
	}
	once() // opens what the runtime and the library keep
	before := descriptors(t)
	for range 3 {
		once()
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
