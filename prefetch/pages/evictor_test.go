package pages

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

// gated frees ranges one by one, when it is told to.
type gated struct {
	*evictor
	gate chan error
	mu   sync.Mutex
	done []Range
	read []Range // again
	busy bool
}

func newGated(log *slog.Logger) *gated {
	g := &gated{gate: make(chan error, maxEvictions)}
	g.evictor = newEvictor(func(e eviction) error {
		g.set(func() { g.busy = true })
		err := <-g.gate
		g.set(func() { g.busy, g.done = false, append(g.done, e.Range) })
		return err
	}, func(e eviction) error {
		g.set(func() { g.read = append(g.read, e.Range) })
		return errors.New("the disk fails")
	}, log)
	return g
}

func (g *gated) set(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do()
}

// begin queues a range and waits until it is being freed.
func (g *gated) begin(t *testing.T, r Range) {
	t.Helper()
	if !g.add(eviction{Range: r}) {
		t.Fatal("refused")
	}
	testenv.WaitFor(t, "the first range to be taken up", func() (is bool) { g.set(func() { is = g.busy }); return is })
}

// Ranges are freed in the order in which they were queued, but those that are wanted again meanwhile.
func TestEvictor(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	g := newGated(slog.New(slog.DiscardHandler))
	g.begin(t, Range{0, 0, 10})
	queue := []Range{{0, 50, 10}, {0, 20, 10}, {1, 20, 10}, {0, 30, 10}, {0, 10, 10}, {0, 25, 1}}
	for _, r := range queue {
		if !g.add(eviction{Range: r}) {
			t.Fatal("refused")
		}
	}
	g.spare(Range{0, 20, 10})
	for range 5 {
		g.gate <- nil
	}
	testenv.WaitFor(t, "the last range", func() (is bool) { g.set(func() { is = len(g.done) == 5 }); return is })
	g.close()
	if want := []Range{{0, 0, 10}, {0, 50, 10}, {1, 20, 10}, {0, 30, 10}, {0, 10, 10}}; !slices.Equal(g.done, want) {
		t.Errorf("freed %v, want %v", g.done, want)
	}
}

// What comes to be wanted while it is being freed is read again after that: that part of it, and nothing else.
func TestEvictorReadsAgain(t *testing.T) {
	g := newGated(slog.New(slog.DiscardHandler))
	g.begin(t, Range{1, 100, 100})
	for _, r := range []Range{{1, 50, 100}, {1, 180, 5}, {1, 200, 10}, {0, 100, 100}, {1, 0, 100}} {
		g.spare(r)
	}
	g.gate <- nil
	testenv.WaitFor(t, "ranges to be read again", func() (is bool) { g.set(func() { is = len(g.read) >= 2 }); return is })
	g.begin(t, Range{1, 300, 100}) // nobody wants it
	g.gate <- nil
	g.begin(t, Range{1, 400, 100})
	g.spare(Range{1, 400, 100})
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
	<-closed // who closes reads no more
	if want := []Range{{1, 100, 50}, {1, 180, 5}}; !slices.Equal(g.read, want) {
		t.Errorf("read again %v, want %v", g.read, want)
	}
}

// Only so many may wait. Who closes waits for what is being freed, and for no more.
func TestEvictorFullAndClosed(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	g := newGated(slog.New(slog.DiscardHandler))
	g.begin(t, Range{0, 0, 1})
	n := 0
	for n <= maxEvictions && g.add(eviction{Range: Range{0, int64(n + 1), 1}}) {
		n++
	}
	if n != maxEvictions {
		t.Errorf("%d ranges wait", n)
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
		t.Errorf("%d ranges were freed after close", len(g.done)-1)
	}
}

// What cannot be freed is told once, and the rest is freed.
func TestEvictorFails(t *testing.T) {
	var said strings.Builder
	g := newGated(slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn})))
	for i := range int64(3) {
		g.begin(t, Range{0, i, 1})
		g.gate <- errors.New("no")
		testenv.WaitFor(t, "a range", func() (is bool) { g.set(func() { is = len(g.done) == int(i)+1 }); return is })
	}
	g.close()
	if strings.Count(said.String(), "\n") != 1 || !strings.Contains(said.String(), "error=\"free 1 bytes of the model: no\"") {
		t.Errorf("said %q", said.String())
	}
}
