package prefetch

// This file dispatches events and ticks to the phase that the loop is in, and changes phases. It does nothing
// else.

import (
	"errors"
	"fmt"
	"time"

	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/room"
)

// Controller keeps the model of one target in memory as far as it fits. Feed it with the target's events, and
// call Tick as often as Pause says.
type Controller struct {
	s     *session
	phase phase
	since time.Time // when the phase began
}

// New makes a Controller that works with levers, which it does not close.
func New(levers pages.Levers, opts Options) *Controller {
	opts.setDefaults()
	s := newSession(levers, opts)
	return &Controller{s: s, phase: &learnPhase{s: s}, since: opts.Now()}
}

// Handle takes the target's next event. Its error is a *StandBack when there is nothing to win, ErrPlanned at
// the end of a dry run, and otherwise one of the levers.
func (c *Controller) Handle(e event.Event) error {
	c.s.heard = c.s.now()
	if paused, err := c.leaveAlone(); paused {
		return err
	}
	return c.settle(c.phase.handle(e))
}

// Tick does what is due. Its errors are those of Handle. It does not wait for the disk, save for blocks that
// are to be held.
func (c *Controller) Tick() error {
	if paused, err := c.leaveAlone(); paused {
		return err
	}
	return c.settle(c.phase.tick())
}

// leaveAlone stands back if somebody wants the target to be left alone. It says whether that is so.
func (c *Controller) leaveAlone() (paused bool, err error) {
	if !c.s.isPaused() {
		return false, nil
	}
	if p, is := c.phase.(*standBackPhase); is && p.stood.Reason == Paused {
		return true, nil
	}
	return true, c.settle(c.s.standBack(&StandBack{Reason: Paused}))
}

// Pause is how long Tick need not be called, unless events come. As long as there is nothing to follow, it is
// long: each call takes a core from the target. Ask after each Tick.
func (c *Controller) Pause() time.Duration { return c.phase.pause() }

// Covers says whether the target's own faults had better read little now, because what it reads next is read
// for it. Of a mixture of experts they had: most of what they read besides was asked for by nobody, with help
// or without. What they read of a dense model is needed next, so tokens without help would be slower, and a
// comparison with them unfair.
func (c *Controller) Covers() bool { return c.phase.covers() }

// KeepScores tells Experts.Keep how often the experts were chosen lately. Call it in the end.
func (c *Controller) KeepScores() {
	if f := c.s.f; f != nil {
		f.keepScores(true)
	}
}

// WantsInputs says whether an event.RouterInput is of use now.
func (c *Controller) WantsInputs() bool {
	p, is := c.phase.(*mixturePhase)
	return is && p.f.mixture.WantsInputs()
}

// settle makes the change of phase that an error asks for, and those that follow from it.
func (c *Controller) settle(err error) error {
	var to *change
	for errors.As(err, &to) {
		err = c.enter(to)
	}
	return err
}

// enter changes to another phase.
func (c *Controller) enter(to *change) error {
	from := c.phase.name()
	c.s.opts.Log.Info("phase", "from", from, "to", to.to.name(), "why", to.why)
	if !isListed(from, to.to.name()) {
		c.s.opts.Log.Error("this change of phase is in no table: please report it", "from", from, "to", to.to.name())
	}
	c.phase, c.since = to.to, c.s.now()
	c.s.history.observe(c.since, to.to.name() != StandingOff)
	err := c.phase.enter()
	why := to.why
	if p, is := to.to.(*standBackPhase); is {
		why = p.stood.Error() // with the room, which it knows by now
	}
	c.s.journal.note(c.since, "phase "+string(to.to.name()), fmt.Sprintf("%s: %s", to.to.name(), why))
	return err
}

// Early stands back before any event, because Options.IsAmple said so of so many bytes and this room, until
// Look says that they have no room any more, or that the target maps more.
func (c *Controller) Early(bytes int64, free room.Room) *StandBack {
	free.Bytes -= free.Margin()
	c.s.memory.room = free
	return c.standBackUnobserved(&StandBack{Reason: Fits, Bytes: bytes, Room: free, mapped: bytes, early: true})
}

// standBackUnobserved stands back from a target of which no event came.
func (c *Controller) standBackUnobserved(stood *StandBack) *StandBack {
	stood.at = c.s.now()
	c.s.memory.wanted = stood.Bytes
	c.phase, c.since = &standBackPhase{learnPhase: learnPhase{s: c.s}, stood: stood}, stood.at
	return stood
}

// Spare stands back before any event from a target that runs already, if other control groups pay for its models in
// memory, but for a rest that has room. Then there is nothing to win, and the target need not be observed. Otherwise,
// and where something was asked for that takes observing, the result is nil.
func (c *Controller) Spare() (*StandBack, error) {
	s := c.s
	if s.opts.Always || s.opts.Stored != nil || s.opts.Dry != nil || s.opts.KeepWarm {
		return nil, nil
	}
	m, err := s.models()
	if err != nil || len(m.Mapped) == 0 {
		return nil, err
	}
	for i := range m.Mapped {
		if _, err := s.openFile(m.Mapped[i].Path, m.Mapped[i].ID); err != nil {
			return nil, err
		}
	}
	if err := s.memory.findBorrowed(); err != nil {
		return nil, err
	}
	own, borrowed := s.memory.census.countOwn(), s.memory.census.borrowedBytes
	if borrowed == 0 || own > (own+borrowed)/leastBorrowed || own > s.memory.room.Bytes {
		return nil, nil
	}
	return c.standBackUnobserved(&StandBack{
		Reason: Fits, Bytes: own, Borrowed: borrowed, Room: s.memory.room, mapped: m.Size(),
	}), nil
}

// Look says, after a StandBack, whether there is something to win by now. Then the target's events are needed
// again. It costs little, and should be asked once a second. The error is proc.ErrNoProcess if the target has ended.
func (c *Controller) Look() (again bool, err error) {
	p, is := c.phase.(*standBackPhase)
	if !is {
		return true, nil
	}
	why, err := p.findChange()
	if err != nil || why == "" {
		return false, err
	}
	// A target that ends frees its memory and unmaps its models before it is gone. That is what has changed then.
	m, err := c.s.models()
	if errors.Is(err, proc.ErrNoProcess) {
		return false, err
	}
	next := &learnPhase{s: c.s}
	if err == nil && m.Size() == 0 && p.stood.mapped > 0 && !p.stood.early {
		why, next.before = "the target has unmapped its models", p.stood
	}
	return true, c.settle(&change{next, why})
}

// ReadsRows says, after a StandBack because everything fits, whether the target has tables that have no room. Then
// LookUp is to be called with each event.Lookup, though no other events are needed.
func (c *Controller) ReadsRows() bool {
	p, is := c.phase.(*standBackPhase)
	return is && p.tables != nil
}

// LookUp reads the rows of a table that the target is about to look up, if ReadsRows. It does not wait for the disk.
func (c *Controller) LookUp(e event.Lookup) error {
	if p, is := c.phase.(*standBackPhase); is {
		return p.lookUp(e)
	}
	return nil
}

// Cold says, after a StandBack because everything fits, whether some of that is to be read back with Warm if
// the target computes nothing. Ask it after Look. It is never so without Options.KeepWarm.
func (c *Controller) Cold() (bool, error) {
	if p, is := c.phase.(*standBackPhase); is && p.warm != nil {
		return p.warm.isCold()
	}
	return false, nil
}

// Warm reads back what Cold found to be missing, as long as idle says that the target computes nothing and
// memory is not short.
func (c *Controller) Warm(idle func() bool) error {
	if p, is := c.phase.(*standBackPhase); is && p.warm != nil {
		return p.warm.readBack(idle)
	}
	return nil
}

// Status says what the controller is doing.
func (c *Controller) Status() Status {
	status := c.s.status(c.phase)
	status.LoopPhase, status.Since = c.phase.name(), c.since
	return status
}

// Summary describes the work so far.
func (c *Controller) Summary() Summary { return c.s.summary(c.phase) }

// Parts says what is held of that which each token reads, and what is streamed, in the order of the files. It
// is empty while nothing is followed.
func (c *Controller) Parts() []Part {
	if c.s.f == nil {
		return nil
	}
	return c.s.f.parts()
}
