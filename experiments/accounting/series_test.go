package accounting

// This file tests which results of a series are faulty, and how they are reported.

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"tensorcast/event"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
)

func TestReport(t *testing.T) {
	a := &Account{Count: Count{Ops: 1000, Threads: 2}, Counters: event.Counters{Hits: 2000}}
	r := Report{Runs: []Run{{Name: "a", Account: a}}}
	var out bytes.Buffer
	if err := errors.Join(r.WriteText(&out), r.Err()); err != nil || !strings.Contains(out.String(), "2,000") ||
		strings.Contains(out.String(), "NO") || strings.Contains(out.String(), "INTERRUPTED") {
		t.Errorf("%v: %s", err, out.String())
	}
	r.Runs, r.Interrupted = append(r.Runs, Run{Name: "b", Account: a, Wrong: "hits"}), true
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "1 of 2 runs do not hold; b: hits") {
		t.Errorf("%v, want that 1 of 2 runs does not hold", err)
	}
	if err := r.WriteText(&out); err != nil || !strings.Contains(out.String(), "NO") ||
		!strings.Contains(out.String(), "INTERRUPTED") {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestLoss(t *testing.T) {
	c := Config{Rate: 1000}
	account := func(lost uint64, rate float64) *Account {
		return &Account{Count: Count{Rate: rate}, Counters: event.Counters{OpsLost: lost}}
	}
	for _, test := range []struct {
		lost       uint64
		rate       float64
		none, loss string
	}{{0, 999, "", "nothing was lost"}, {3, 999, "3 events", ""}, {0, 500, "only 500", "nothing was lost"}} {
		a := account(test.lost, test.rate)
		if got := c.checkNothingLost(a); (got == "") != (test.none == "") || !strings.Contains(got, test.none) {
			t.Errorf("%+v: %q, want %q", test, got, test.none)
		}
		if got := checkSomethingLost(a); (got == "") != (test.loss == "") || !strings.Contains(got, test.loss) {
			t.Errorf("%+v: %q, want %q", test, got, test.loss)
		}
	}
}

// A series that is cut short reports the runs so far. Without any there is no report.
func TestInterrupted(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	stop := errors.New("enough")
	for last, want := range []int{0, 1, 2} {
		ctx, cancel := context.WithCancelCause(t.Context())
		r, err := Measure(ctx, in,
			Config{Ops: 20_000, Rate: 20_000, Tracer: tracerBinary, Progress: func(done, _ int, _ string) {
				if done == last {
					cancel(stop)
				}
			}})
		cancel(nil)
		if !errors.Is(err, stop) || (r == nil) != (want == 0) {
			t.Fatalf("%v, %+v", err, r)
		}
		if r != nil && (len(r.Runs) != want || !r.Interrupted) {
			t.Errorf("%+v, want %d runs", r, want)
		}
	}
}
