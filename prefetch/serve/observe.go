package serve

// This file observes the target and feeds its events to the controller, until there is nothing to win any more.

import (
	"context"
	"errors"
	"time"

	"tensorcast/capture"
	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/prefetch"
	"tensorcast/prefetch/lookup"
	"tensorcast/prefetch/room"
)

// tickInterval is how often the control loop looks while it is busy.
const tickInterval = time.Millisecond

// probes are what observes the target.
type probes struct {
	capture *capture.Capture // nil before the target was observed
	inputs  bool             // it reports what routers and attention read
	settled bool             // this process was prepared to help, see room.Settle
}

// captureOptions say how the target is observed.
func (s *server) captureOptions() capture.Options {
	inputs, lookups := 1, int64(lookup.LeastBytes)
	if s.opts.Dry {
		lookups = 0
	}
	if s.opts.Dry || !s.opts.Prefetch.Experts.Speculate.Speculates() {
		inputs = 0
	}
	return capture.Options{
		Interval: tickInterval, Tick: s.tick, Pause: s.pause,
		Late: s.opts.Late, Small: true, AtOnce: true,
		Selected: true, Lookups: lookups, Inputs: inputs, InputRows: 1,
		Log: s.opts.Log,
	}
}

// help observes the target, or lets a command that was started observed run, and helps until the target or ctx
// ends. It returns earlier where there is nothing to win: stood says why.
func (s *server) help(ctx context.Context) (stood *prefetch.StandBack, err error) {
	target := s.command.pending
	started := target != nil
	if !started {
		if target, err = capture.Attach(s.opts.PID, s.captureOptions()); err != nil {
			// A target that was helped before, or needed no help, may have ended meanwhile.
			if (s.probes.settled || s.command.isUnobserved()) && errors.Is(err, proc.ErrNoProcess) {
				err = nil
			}
			return nil, err
		}
		defer func() { err = errors.Join(err, target.Close()) }()
	}
	if !s.probes.settled {
		if err := room.Settle(s.opts.Log, s.opts.Elsewhere != nil); err != nil {
			return nil, err
		}
		s.probes.settled = true
	}
	if started {
		// The command maps no model yet. The controller looks now, so that it knows what is mapped later to be new.
		if err := s.tick(); err != nil {
			return nil, err
		}
		s.awaitWatch()
		s.command.pending = nil
	}
	s.probes.capture, s.probes.inputs = target, true
	s.status.beginObserving()
	defer s.status.forgetTarget()
	err = target.Run(ctx, s.handleEvent)
	switch {
	case errors.As(err, &stood):
		if started { // the command's capture is closed when the command has ended
			s.command.unprobed = true
			return stood, target.Unload()
		}
		return stood, nil
	case errors.Is(err, prefetch.ErrPlanned):
		return nil, nil
	case err != nil && !errors.Is(err, proc.ErrNoProcess): // that it has ended is no error
		return nil, err
	case !started && !s.hasSeenTarget() && ctx.Err() == nil:
		return nil, target.Explain()
	}
	return nil, nil
}

// hasSeenTarget says whether the target was seen to compute. A guessed cycle is followed without that.
func (s *server) hasSeenTarget() bool {
	sum := s.controller.Summary()
	return sum.PerToken > 0 && (sum.Decodes > 0 || !sum.Guessed)
}

// handleEvent takes the target's next event. Between a token with help and one without, its faults change at once.
func (s *server) handleEvent(ev event.Event) error {
	s.status.note(ev)
	if err := s.controller.Handle(ev); err != nil {
		return err
	}
	return s.adjustFaults()
}

// pause is how long tick need not be called.
func (s *server) pause() time.Duration { return s.controller.Pause() }

// tick does what is due.
func (s *server) tick() error {
	err := s.controller.Tick()
	if err == nil {
		err = s.adjustFaults()
	}
	s.reportStatus(false)
	s.runtime.collect()
	if wants := s.controller.WantsInputs(); err == nil && s.probes.capture != nil && wants != s.probes.inputs {
		s.probes.inputs = wants
		err = s.probes.capture.WantInputs(wants)
	}
	return err
}
