package prefetch

// This file is the phase that helps a target with a mixture of experts: what every token reads is held or
// streamed as of a dense model, and the experts that a router has chosen are read at once.

import (
	"time"

	"tensorcast/event"
)

// mixturePhase helps. The phases that follow it are those of streamPhase.
type mixturePhase struct{ streamPhase }

func (p *mixturePhase) name() Phase { return Mixture }

func (p *mixturePhase) handle(e event.Event) error {
	f := p.f
	switch e := e.(type) {
	case event.Selected:
		if f.Decode == 0 || f.Decode != e.Decode || f.TID != e.TID {
			return nil
		}
		d := f.contexts.OpenDecode(e.TID)
		f.mixture.SetWarmup(d != nil && d.Warmup)
		read, err := f.mixture.Select(e)
		f.streamed += read
		return err
	case event.RouterInput:
		if f.Decode != 0 && f.Decode == e.Decode && f.TID == e.TID {
			f.mixture.NoteInput(e)
		}
		return nil
	}
	return p.streamPhase.handle(e)
}

func (p *mixturePhase) tick() error {
	if err := p.streamPhase.tick(); err != nil {
		return err
	}
	f := p.f
	f.keepScores(false)
	if err := f.readHot(); err != nil {
		return err
	}
	begun := f.now()
	read, err := f.mixture.StreamAhead()
	f.streamed += read
	f.meter.add(read)
	if err != nil || f.Decode == 0 || f.Begun == 0 {
		f.work.staging += f.now().Sub(begun)
		return err
	}
	err = f.mixture.ReadPredicted(f.heldBytes >= f.schedule.Bytes)
	f.work.staging += f.now().Sub(begun)
	return err
}

func (p *mixturePhase) pause() time.Duration {
	f := p.f
	if pause := f.pauseForBlock(f.hasHot()); pause == restPause {
		return pause
	}
	until, waits := f.mixture.UntilIdle()
	switch {
	case f.mixture.IsStreaming():
		return max(expertPause, f.pauseInBatch())
	case waits:
		return min(max(until, leastExpertPause), expertPause)
	case f.heldBytes >= f.schedule.Bytes && !f.hasHot():
		return settledPause
	}
	return expertPause
}

func (p *mixturePhase) covers() bool { return p.f.begun && !p.f.isUnseen() }
