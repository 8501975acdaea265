package prefetch

// This file is the phase that helps a target with a dense model: a share of the blocks is held, the others
// stream.

import (
	"fmt"
	"time"

	"tensorcast/event"
)

// streamPhase helps. The next phase is compare when tokens take as long as they did without help, learn when
// the target does something else than was learned, and stand back when there is nothing to win any more.
type streamPhase struct{ f *followed }

func (p *streamPhase) name() Phase { return Stream }

func (p *streamPhase) enter() error { return nil }

func (p *streamPhase) handle(e event.Event) error {
	if p.f.tables != nil {
		if err := p.f.noteLookup(e); err != nil {
			return err
		}
	}
	s, err := p.f.observe(e)
	if err != nil || s.tokens == 0 {
		return err
	}
	return p.f.endStep(s)
}

func (p *streamPhase) tick() error {
	if err := p.f.upkeep(); err != nil {
		return err
	}
	return p.f.moveWindow()
}

func (p *streamPhase) pause() time.Duration { return p.f.pauseForBlock(false) }

func (p *streamPhase) covers() bool {
	f := p.f
	return f.begun && !f.isUnseen() && f.opts.Strategy.Traits().Streams && !f.glance.isLeft(f.Now, f.Reads)
}

// noteLookup reads the rows that the target is about to look up, and notes that it has looked them up.
func (f *followed) noteLookup(e event.Event) error {
	switch e := e.(type) {
	case event.Lookup:
		file, known := f.numbers[e.Table.File]
		if !known || f.Decode == 0 || f.Decode != e.Decode || f.TID != e.TID {
			return nil
		}
		begun := f.now()
		_, err := f.tables.LookUp(file, e)
		f.work.staging += f.now().Sub(begun)
		return err
	case *event.Op:
		f.tables.NoteOp(e)
	}
	return nil
}

// isUnseen says whether the cycle came from a file, and no decode of it was seen yet. The target may still
// load the model, for which it has advice of its own.
func (f *followed) isUnseen() bool { return f.Decode == 0 && f.contexts.Main == nil }

// moveWindow keeps what is held and the window in step with the target.
func (f *followed) moveWindow() error {
	if err := f.holdWhileResting(); err != nil {
		return err
	}
	if err := f.sweepStray(); err != nil {
		return err
	}
	if f.tables != nil && !f.mayFit() {
		if err := f.tables.Sweep(); err != nil {
			return err
		}
	}
	begun := f.now()
	if err := f.clearPassed(); err != nil {
		return err
	}
	if err := f.evictTrail(); err != nil {
		return err
	}
	evicted, before := f.now(), f.streamed
	err := f.fillWindow()
	f.meter.add(f.streamed - before)
	f.work.evicting += evicted.Sub(begun)
	f.work.staging += f.now().Sub(evicted)
	return err
}

// endStep notes a step with help. It may be time to compare it with steps without.
func (f *followed) endStep(s step) error {
	w := &f.compared
	f.work.count(s)
	f.session.token = f.usage()
	if f.mixture != nil {
		f.mixture.EndToken()
	}
	glanced := w.steps >= settleTokens && f.glance.token != noToken
	w.add(s, f.streamed, !glanced)
	if glanced { // the token was left to itself in a part
		f.glance.token = noToken
	}
	if f.opts.Always || !w.isDue(f.mixture != nil, f.mayFitAlone()) {
		return nil
	}
	class := w.usualClass()
	with, _ := w.takes(class)
	if f.glanceWins(class, with) {
		return nil
	}
	return &change{&comparePhase{f: f}, fmt.Sprintf("%s takes %s with help, %s without it",
		describeClass(class), describeTime(with), describeTime(w.plain[class].nanos))}
}

// describeTime says how long a step takes, of so many ns; 0 is not known.
func describeTime(nanos int64) string {
	if nanos == 0 {
		return "an unknown time"
	}
	return fmt.Sprint(time.Duration(nanos).Round(time.Microsecond))
}
