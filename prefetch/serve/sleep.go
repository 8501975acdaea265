package serve

// This file waits until there is something to win, and reads back a model that fits when others took parts of it.

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/prometheus/procfs"

	"tensorcast/internal/proc"
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
		again, err := s.controller.Look()
		if errors.Is(err, proc.ErrNoProcess) || errors.Is(err, fs.ErrNotExist) {
			continue // the target is ending
		}
		if again || err != nil {
			return false, err
		}
		s.reportStatus(false)
		idle := idleMeter{pid: s.opts.PID}
		if err := s.readBack(ctx, idle.isIdle); err != nil {
			return false, err
		}
	}
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
	p, err := procfs.NewProc(m.pid)
	if err != nil {
		return false
	}
	stat, err := p.Stat()
	if err != nil {
		return false
	}
	now, took := time.Now(), stat.CPUTime()-m.computed
	passed := now.Sub(m.at).Seconds()
	m.at, m.computed = now, stat.CPUTime()
	return took < maxIdleShare*passed
}
