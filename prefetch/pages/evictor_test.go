package pages

// This file tests the queue of ranges to be freed.

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"tensorcast/internal/testenv"
)

// gatedEvictor frees each range when the test lets it.
type gatedEvictor struct {
	*evictor
	gate chan error // what freeing the next range returns
	mu   sync.Mutex
	done []Range
	read []Range // again
	busy bool    // a range is being freed
}

func newGatedEvictor(log *slog.Logger) *gatedEvictor {
	g := &gatedEvictor{gate: make(chan error, maxEvictions)}
	g.evictor = newEvictor(func(e eviction) error {
		g.locked(func() { g.busy = true })
		err := <-g.gate
		g.locked(func() { g.busy, g.done = false, append(g.done, e.Range) })
		return err
	}, func(e eviction) error {
		g.locked(func() { g.read = append(g.read, e.Range) })
		return errors.New("the disk fails")
	}, log)
	return g
}

// locked does something that no other goroutine may see half done.
func (g *gatedEvictor) locked(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do()
}

func (g *gatedEvictor) waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	testenv.WaitFor(t, what, func() (ok bool) { g.locked(func() { ok = is() }); return ok })
}

// begin queues a range and waits until it is being freed.
func (g *gatedEvictor) begin(t *testing.T, r Range) {
	t.Helper()
	if !g.add(eviction{Range: r}) {
		t.Fatal("refused")
	}
	g.waitFor(t, "the range to be taken up", func() bool { return g.busy })
}

// Ranges are freed in the order in which they were queued, except those that are wanted again meanwhile.
func TestEvictor(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	g := newGatedEvictor(slog.New(slog.DiscardHandler))
	g.begin(t, Range{0, 0, 10})
	queue := []Range{{0, 50, 10}, {0, 20, 10}, {1, 20, 10}, {0, 30, 10}, {0, 10, 10}, {0, 25, 1}}
	for _, r := range queue {
		if !g.add(eviction{Range: r}) {
			t.Fatal("refused")
		}
	}
	g.cancel(Range{0, 20, 10})
	for range 5 {
		g.gate <- nil
	}
	g.waitFor(t, "the last range", func() bool { return len(g.done) == 5 })
	g.close()
	if want := []Range{{0, 0, 10}, {0, 50, 10}, {1, 20, 10}, {0, 30, 10}, {0, 10, 10}}; !slices.Equal(g.done, want) {
		t.Errorf("freed %v, want %v", g.done, want)
	}
}

// What comes to be wanted while it is being freed is read again after that, and nothing else is.
func TestEvictorReadsAgain(t *testing.T) {
	g := newGatedEvictor(slog.New(slog.DiscardHandler))
	g.begin(t, Range{1, 100, 100})
	for _, r := range []Range{{1, 50, 100}, {1, 180, 5}, {1, 200, 10}, {0, 100, 100}, {1, 0, 100}} {
		g.cancel(r)
	}
	g.gate <- nil
	g.waitFor(t, "ranges to be read again", func() bool { return len(g.read) >= 2 })
	g.cancel(Range{1, 100, 100})   // freeing it is over
	g.begin(t, Range{1, 300, 100}) // nobody wants it
	g.gate <- nil
	g.waitFor(t, "the second range", func() bool { return len(g.done) == 2 })
	g.begin(t, Range{1, 400, 100})
	g.cancel(Range{1, 400, 100})
	closed := make(chan struct{})
	go func() {
		g.close()
		close(closed)
	}()
	testenv.WaitFor(t, "close to be called", func() bool {
		g.evictor.mu.Lock()
		defer g.evictor.mu.Unlock()
		return g.closed
	})
	g.gate <- nil
	<-closed // after close nothing is read again
	if want := []Range{{1, 100, 50}, {1, 180, 5}}; !slices.Equal(g.read, want) {
		t.Errorf("read again %v, want %v", g.read, want)
	}
}

// Only maxEvictions ranges may wait. close waits for the range that is being freed, and for no others.
func TestEvictorFullAndClosed(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	g := newGatedEvictor(slog.New(slog.DiscardHandler))
	g.begin(t, Range{0, 0, 1})
	n := 0
	for n <= maxEvictions && g.add(eviction{Range: Range{0, int64(n + 1), 1}}) {
		n++
	}
	if n != maxEvictions {
		t.Errorf("%d ranges wait, want %d", n, maxEvictions)
	}
	closed := make(chan struct{})
	go func() {
		g.close()
		close(closed)
	}()
	testenv.WaitFor(t, "close to be called", func() bool {
		g.evictor.mu.Lock()
		defer g.evictor.mu.Unlock()
		return g.closed
	})
	select {
	case <-closed:
		t.Error("closed while a range is being freed")
	default:
	}
	close(g.gate)
	<-closed
	if len(g.done) != 1 {
		t.Errorf("%d ranges were freed after close, want 0", len(g.done)-1)
	}
}

// A failure to free is logged once, and the rest is freed.
func TestEvictorFails(t *testing.T) {
	var said strings.Builder
	g := newGatedEvictor(slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn})))
	for i := range int64(3) {
		g.begin(t, Range{0, i, 1})
		g.gate <- errors.New("no")
		g.waitFor(t, "a range", func() bool { return len(g.done) == int(i)+1 })
	}
	g.close()
	want := "error=\"free 1 bytes of the model: no\""
	if strings.Count(said.String(), "\n") != 1 || !strings.Contains(said.String(), want) {
		t.Errorf("logged %q, want one line with %s", said.String(), want)
	}
}
