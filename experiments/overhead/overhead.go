// Package overhead measures what observing a llama.cpp costs it. "lab overhead" runs it.
//
// One target generates the same text from an empty memory again and again, and prints each token
// with its times (llamarun --stream). Observers are attached to it and detached from it. A segment
// is one complete generation, so all segments are the same work at the same positions in the
// context. Segments are ordered plain, observed, observed, plain: two pairs of neighbours, in which
// a drift of the machine affects both sides alike. Observers take turns. A generation during which
// an observer is being attached or detached is dropped. The target's code shows whether probes are
// set, because they are breakpoints in it. With Config.Whole, each segment has a target process of
// its own instead.
//
// The result is the ratio of tokens per second, estimated from the pairs with the Hodges-Lehmann
// estimator and its confidence interval. An observer that does nothing is the control: its interval
// shows how small an effect can be detected on the machine.
package overhead

// This file makes a series of measurements.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"tensorcast/internal/host"
	"tensorcast/internal/proc"
)

// Observer is a way to observe the target.
type Observer struct {
	Name string `json:"name"`
	// Command is a simple shell command that observes until SIGINT. In it, {pid} is replaced by the
	// target's process id, {ggml} by the file with the target's CPU code of ggml, and {out} by a
	// directory that exists while the observer runs. An empty command observes nothing.
	//
	// With Config.Whole it may contain {target} instead of {pid}: the command line with which the
	// observer starts the target.
	Command string `json:"command,omitempty"`
}

// Config says what to measure.
type Config struct {
	// Target is the command line. It must print what llamarun --stream does, for one sequence, and
	// generate until it is ended.
	Target    []string
	Observers []Observer
	Pairs     int           // pairs per observer, at least LeastPairs; an odd number is rounded up
	Settle    time.Duration // how long the number of probes must be unchanged until an observer counts as attached
	Whole     bool          // a new target process for each segment

	// Progress, if not nil, is called with what is being done: done of total segments are complete.
	// It is called from one goroutine.
	Progress func(done, total int, what string)

	probes func(pid int) (int, error) // replaced in tests
}

// LeastPairs is the least number of pairs for which a 95 % interval exists.
const LeastPairs = 6

func (c *Config) check() error {
	switch {
	case len(c.Target) == 0:
		return errors.New("no target command")
	case len(c.Observers) == 0:
		return errors.New("no observer")
	case c.Pairs < LeastPairs:
		return fmt.Errorf("%d pairs: it takes %d for an interval of 95 %%", c.Pairs, LeastPairs)
	case c.Settle < 0:
		return errors.New("a negative time to settle")
	}
	for i, o := range c.Observers {
		if o.Name == "" {
			return errors.New("an observer has no name")
		}
		if slices.ContainsFunc(c.Observers[:i], func(other Observer) bool { return other.Name == o.Name }) {
			return fmt.Errorf("two observers are named %s", o.Name)
		}
		if o.startsTarget() && !c.Whole {
			return fmt.Errorf("observer %s starts the target itself ({target}): that takes whole runs", o.Name)
		}
	}
	return nil
}

// pollInterval is how often state is polled. The target's tokens are polled, too, because waking up
// for each token would take time from the target.
const pollInterval = 50 * time.Millisecond

// series is the state of one Measure.
type series struct {
	cfg    Config
	report *Report
	done   int
	target *target // shared by the segments
	ids    []int32 // the tokens that every generation must have
}

// Measure runs a series. An observer that does not work gets a row that says why, and the others go
// on; a failing target is an error. When ctx ends, all processes that Measure started are ended. If
// ctx ends or the target fails, Measure returns the report of the pairs so far (nil if there are
// none) with the error. It stores two numbers per segment.
func Measure(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.probes == nil {
		cfg.probes = countProbes
	}
	s := &series{cfg: cfg, report: &Report{Started: time.Now(), Host: host.Read(), Target: cfg.Target,
		Whole: cfg.Whole}}
	for _, o := range cfg.Observers {
		s.report.Rows = append(s.report.Rows, Row{Observer: o, SameText: true})
	}
	err := s.measureAll(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if s.report.pairs() == 0 {
			return nil, err
		}
		s.report.Interrupted = true
	}
	s.report.summarise()
	return s.report, err
}

func (s *series) measureAll(ctx context.Context) error {
	if !s.cfg.Whole {
		s.progress("loading the model")
		var err error
		if s.target, err = startTarget(ctx, s.cfg.Target); err != nil {
			return err
		}
		defer s.target.stop()
		s.report.Run = s.target.stream.Run
	}
	for round := range (s.cfg.Pairs + 1) / 2 {
		for i := range s.report.Rows {
			if round%2 == 1 { // in reverse order, against drifts within a round
				i = len(s.report.Rows) - 1 - i
			}
			if row := &s.report.Rows[i]; row.Error == "" {
				if err := s.measurePairs(ctx, row); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// measurePairs measures two pairs for one observer.
func (s *series) measurePairs(ctx context.Context, row *Row) error {
	var got [4]Segment
	var err error
	if s.cfg.Whole {
		err = s.measureProcesses(ctx, row, &got)
	} else {
		err = s.measureAttached(ctx, row, &got)
	}
	var failed *observerError
	if errors.As(err, &failed) {
		row.Error = failed.Error()
		s.done += 2 * (s.cfg.Pairs + 1)
		return nil
	}
	if err != nil {
		return err
	}
	row.Pairs = append(row.Pairs, Pair{Plain: got[0], Observed: got[1]}, Pair{Plain: got[3], Observed: got[2]})
	return nil
}

// measureAttached measures four segments on the running target.
func (s *series) measureAttached(ctx context.Context, row *Row, got *[4]Segment) error {
	var err error
	if got[0], err = s.measureSegment(ctx, row, s.target, "plain"); err != nil {
		return err
	}
	o, err := s.attach(ctx, row, s.target)
	if err != nil {
		return err
	}
	defer o.kill()
	for _, i := range []int{1, 2} {
		if got[i], err = s.measureSegment(ctx, row, s.target, "observed"); err != nil {
			return err
		}
	}
	if err := s.detach(ctx, o, s.target); err != nil {
		return err
	}
	got[3], err = s.measureSegment(ctx, row, s.target, "plain")
	return err
}

// measureProcesses measures four segments with a target process for each.
func (s *series) measureProcesses(ctx context.Context, row *Row, got *[4]Segment) error {
	for i := range got {
		if err := s.measureProcess(ctx, row, i == 1 || i == 2, &got[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *series) measureProcess(ctx context.Context, row *Row, observed bool, into *Segment) error {
	command, wrapped := s.cfg.Target, observed && row.startsTarget()
	if wrapped {
		out, err := os.MkdirTemp("", "overhead")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(out) }() // a directory left behind does not affect the results
		command = row.shell(strings.NewReplacer("{out}", proc.Quote(out), "{target}", proc.Quote(s.cfg.Target...)))
	}
	t, err := startTarget(ctx, command)
	if err != nil {
		if wrapped && ctx.Err() == nil {
			return &observerError{err.Error()}
		}
		return err
	}
	defer t.stop()
	if s.report.Run.PID == 0 {
		s.report.Run = t.stream.Run
	}
	if wrapped {
		if row.Probes, err = s.cfg.probes(t.stream.Run.PID); err != nil {
			return err
		}
	}
	var o *observer
	what := "plain"
	if observed {
		what = "observed"
		if !wrapped {
			if o, err = s.attach(ctx, row, t); err != nil {
				return err
			}
			defer o.kill()
		}
	}
	if *into, err = s.measureSegment(ctx, row, t, what); err != nil {
		return err
	}
	return s.detach(ctx, o, t)
}

// measureSegment measures the next complete generation.
func (s *series) measureSegment(ctx context.Context, row *Row, t *target, what string) (Segment, error) {
	s.progress(row.Name + ": " + what)
	g, err := t.nextGeneration(ctx)
	if err != nil {
		return Segment{}, err
	}
	if s.ids == nil {
		s.ids = g.ids
	}
	row.SameText = row.SameText && slices.Equal(g.ids, s.ids)
	s.done++
	return g.segment(), nil
}

// attach starts an observer and waits until all of its probes are set. For the empty observer it returns nil.
func (s *series) attach(ctx context.Context, row *Row, t *target) (*observer, error) {
	if row.Command == "" {
		return nil, nil
	}
	s.progress(row.Name + ": attaching")
	o, err := startObserver(ctx, row.Observer, t.stream.Run.PID)
	if err != nil {
		return nil, err
	}
	probes, err := s.awaitProbes(ctx, t, func(probes int) error {
		switch {
		case o.Ended():
			return &observerError{"it ended: " + o.LastLine()}
		case probes == 0:
			return errNotYet
		}
		return nil
	})
	if errors.Is(err, errNotYet) {
		err = &observerError{"it set no probe within a minute: " + o.LastLine()}
	}
	if err != nil {
		o.kill()
		return nil, err
	}
	row.Probes = probes
	return o, nil
}

// detach ends an observer and waits until all of its probes are gone. It is an error if the
// observer has ended before, because then it did not observe.
func (s *series) detach(ctx context.Context, o *observer, t *target) error {
	if o == nil {
		return nil
	}
	if o.Ended() {
		return &observerError{"it ended before it was told to: " + o.LastLine()}
	}
	if err := o.stop(); err != nil {
		return err
	}
	_, err := s.awaitProbes(ctx, t, func(probes int) error {
		if probes > 0 {
			return errNotYet
		}
		return nil
	})
	if errors.Is(err, errNotYet) {
		return &observerError{"a minute after its end its probes are still there"}
	}
	return err
}

// errNotYet says that a condition is not met yet.
var errNotYet = errors.New("not yet")

// attachTimeout is the longest time for attaching or detaching an observer.
const attachTimeout = time.Minute

// awaitProbes waits until accept returns nil for the number of probes, and that number has been
// stable for cfg.Settle. It returns the number. An error of accept other than errNotYet ends the
// waiting.
func (s *series) awaitProbes(ctx context.Context, t *target, accept func(probes int) error) (int, error) {
	last, since, deadline := -1, time.Now(), time.Now().Add(attachTimeout)
	for {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(pollInterval):
		}
		n, err := s.cfg.probes(t.stream.Run.PID)
		if err != nil {
			return 0, errors.Join(t.failure(), err)
		}
		if n != last {
			last, since = n, time.Now()
		}
		err = accept(n)
		switch {
		case err != nil && (!errors.Is(err, errNotYet) || time.Now().After(deadline)):
			return 0, err
		case err == nil && time.Since(since) >= s.cfg.Settle:
			t.dropCurrent()
			return n, nil
		}
	}
}

func (s *series) progress(what string) {
	if s.cfg.Progress != nil {
		total := 4 * ((s.cfg.Pairs + 1) / 2) * len(s.cfg.Observers)
		s.cfg.Progress(min(s.done, total), total, what)
	}
}
