package serve

// This file waits until there is something to win, and reads back a model that fits when others took parts of it.

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/prometheus/procfs"

	"tensorcast/capture"
	"tensorcast/ebpf"
	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/prefetch/lookup"
)

const (
	// sleepInterval is how often the controller is asked whether there is something to win by now.
	sleepInterval = time.Second
	// idleInterval is how often it is looked how long a target has computed. The kernel counts that in steps of 10
	// ms.
	idleInterval = 50 * time.Millisecond
	// maxIdleShare of a processor is what a server that waits for requests takes at most.
	maxIdleShare = 0.5
)

// sleep returns when there is something to win, or the target or ctx has ended.
func (s *server) sleep(ctx context.Context) (ended bool, err error) {
	if s.controller.ReadsRows() {
		ended, err := s.sleepReadingRows(ctx)
		if !errors.Is(err, errUnobserved) {
			return ended, err
		}
		s.opts.Log.Debug("rows of tables are left to the target", "error", err)
	}
	for {
		wait, cancel := context.WithTimeout(ctx, sleepInterval)
		err := s.process.Wait(wait)
		cancel()
		switch {
		case err == nil || ctx.Err() != nil:
			return true, nil
		case !errors.Is(err, context.DeadlineExceeded):
			return false, err
		}
		if again, err := s.look(ctx); again || err != nil {
			return false, err
		}
	}
}

// look says whether there is something to win by now. If not, it does what is due meanwhile.
func (s *server) look(ctx context.Context) (again bool, err error) {
	again, err = s.controller.Look()
	if errors.Is(err, proc.ErrNoProcess) || errors.Is(err, fs.ErrNotExist) {
		return false, nil // the target is ending
	}
	if again || err != nil {
		return again, err
	}
	s.reportStatus(false)
	if rested := s.rest.look(time.Now()); s.opts.WarmFor > 0 && rested > s.opts.WarmFor {
		return false, nil // others may have the memory, until the target computes again
	}
	idle := idleMeter{pid: s.opts.PID}
	return false, s.readBack(ctx, idle.isIdle)
}

var (
	errUnobserved = errors.New("the target cannot be observed")
	errAwake      = errors.New("there is something to win")
)

// sleepReadingRows is sleep for a target of which all fits but tables. It reads the rows that the target is about to
// look up. For that whole graphs are observed, which costs the target one probe for each. The error wraps errUnobserved
// if that cannot be done.
func (s *server) sleepReadingRows(ctx context.Context) (ended bool, err error) {
	target, err := capture.Attach(s.opts.PID, capture.Options{
		Detail: ebpf.DetailGraph, Lookups: lookup.LeastBytes, Small: true, AtOnce: true, Late: true,
		Interval: sleepInterval, Log: s.opts.Log,
		Tick: func() error {
			again, err := s.look(ctx)
			if s.opts.Join { // the target pays for its rows
				s.memory.Join(ctx)
			}
			if again && err == nil {
				err = errAwake
			}
			return err
		},
	})
	if err != nil {
		if errors.Is(err, proc.ErrNoProcess) {
			return true, nil
		}
		return false, errors.Join(errUnobserved, err)
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	defer s.memory.Leave()
	err = target.Run(ctx, func(e event.Event) error {
		if e, is := e.(event.Lookup); is {
			return s.controller.LookUp(e)
		}
		return nil
	})
	switch {
	case errors.Is(err, errAwake):
		return false, nil
	case errors.Is(err, proc.ErrNoProcess), errors.Is(err, fs.ErrNotExist):
		return true, nil
	}
	return err == nil, err
}

// readBack reads what others took of a model that fits, while the target is idle. It is charged to the target.
func (s *server) readBack(ctx context.Context, isIdle func() bool) error {
	if cold, err := s.controller.Cold(); !cold || err != nil || !isIdle() {
		return err
	}
	if err := s.pages.Wake(); err != nil {
		return err
	}
	s.memory.Join(ctx)
	err := s.controller.Warm(func() bool { return ctx.Err() == nil && isIdle() })
	s.memory.Leave()
	s.reportStatus(true)
	return errors.Join(err, s.pages.Rest())
}

// leastBusyShare of a processor, between two looks, says that a target computes something. A server that waits for
// requests takes less.
const leastBusyShare = 0.05

// restMeter tells for how long a target has computed nothing.
type restMeter struct {
	pid      int
	at       time.Time // of the last look; zero: there was none
	computed float64   // seconds of processor time, at the last look
	since    time.Time // when it computed last
}

// look says for how long the target has computed nothing, as far as is known. It is to be asked about once a second.
func (m *restMeter) look(now time.Time) (rested time.Duration) {
	computed, err := computedBy(m.pid)
	if err != nil {
		return 0
	}
	return m.note(now, computed)
}

// note takes notice of how many seconds of processor time the target has had by now.
func (m *restMeter) note(now time.Time, computed float64) (rested time.Duration) {
	if m.at.IsZero() || computed-m.computed > leastBusyShare*now.Sub(m.at).Seconds() {
		m.since = now
	}
	m.at, m.computed = now, computed
	return now.Sub(m.since)
}

// computedBy is how many seconds of processor time a process has had.
func computedBy(pid int) (seconds float64, err error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := p.Stat()
	return stat.CPUTime(), err
}

// idleMeter tells whether a process is idle.
type idleMeter struct {
	pid      int
	began    bool
	busy     bool      // it was found to compute, and counts as busy from then on
	at       time.Time // of the last look
	computed float64   // seconds of processor time, at the last look
}

// isIdle says whether the process has computed nothing since the first call, as far as is known. The first call
// takes idleInterval.
func (m *idleMeter) isIdle() bool {
	if !m.began {
		m.began = true
		m.wasIdle()
		time.Sleep(idleInterval)
	}
	if !m.busy && time.Since(m.at) >= idleInterval {
		m.busy = !m.wasIdle()
	}
	return !m.busy
}

// wasIdle says whether the process was idle since the last look, which the first look cannot tell. A process that
// has ended is not.
func (m *idleMeter) wasIdle() bool {
	computed, err := computedBy(m.pid)
	if err != nil {
		return false
	}
	now, took := time.Now(), computed-m.computed
	passed := now.Sub(m.at).Seconds()
	m.at, m.computed = now, computed
	return took < maxIdleShare*passed
}
