package prefetch

// This file is the phase in which there is nothing to win. Nothing is held, and it is looked now and then
// whether that has changed.

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/event"
	"tensorcast/prefetch/lookup"
	"tensorcast/prefetch/room"
)

// Reason is why a target is left alone.
type Reason string

// Reasons that a Controller finds out.
const (
	Fits    Reason = "fits"    // all that a token reads has room
	NoWin   Reason = "no win"  // tokens with help take as long as without
	Outside Reason = "outside" // the weights lie outside the mappings of their file
	Judged  Reason = "judged"  // Target.Judge said so
	Paused  Reason = "paused"  // Options.Paused said so
	Differs Reason = "differs" // the target does not read what the stored pattern says, and nothing else may be learned
)

// StandBack is the error of Handle and Tick that says that there is nothing to win: nothing is held any more.
// The Controller needs no events until Look says so. If it gets some nevertheless, it begins anew.
type StandBack struct {
	Reason        Reason
	With, Without time.Duration // NoWin: of a decode of Tokens
	Tokens        float64       // NoWin: on average
	Bytes         int64         // that a token reads; Fits: and the sizes of other models that the target maps
	Borrowed      int64         // bytes of the model's files in memory that another control group pays for
	Room          room.Room     // that there was
	Tables        int64         // Fits: bytes of tables that have no room; their rows are read when they are looked up
	Err           error         // Outside: which weights, and what to do; Judged and Differs: why
	Copied        int64         // Outside: bytes of them in their file that were paged out, because nobody reads them

	mapped int64 // bytes of all model files that the target mapped, or is about to map if it is early
	early  bool  // see Controller.Early
	at     time.Time
}

func (s *StandBack) Error() string {
	switch s.Reason {
	case Fits:
		besides := ""
		if s.Borrowed > 0 {
			besides = fmt.Sprintf(" besides %s that another control group keeps in memory",
				humanize.IBytes(uint64(s.Borrowed)))
		}
		line := fmt.Sprintf("everything fits: %s of weights%s, room for %s (%s)", humanize.IBytes(uint64(s.Bytes)),
			besides, humanize.IBytes(uint64(max(s.Room.Bytes, 0))), s.Room.Bound())
		if s.Tables > 0 {
			line += fmt.Sprintf("; of tables of %s rows are read when they are looked up",
				humanize.IBytes(uint64(s.Tables)))
		}
		return line
	case Paused:
		return "help is paused: the target is left alone until somebody resumes it"
	case NoWin:
		return fmt.Sprintf("no win: %.2f tok/s with help, %.2f without: all given back",
			perSecond(s.Tokens, s.With), perSecond(s.Tokens, s.Without))
	}
	if s.Copied > 0 {
		return fmt.Sprintf("%v; %s of them in memory that nobody read any more were freed",
			s.Err, humanize.IBytes(uint64(s.Copied)))
	}
	return s.Err.Error()
}

// Unwrap returns why, if that is an error.
func (s *StandBack) Unwrap() error { return s.Err }

const (
	// noWinTime is how long help that did not win is not tried again, unless the room changes by one part in
	// noWinShare of what a token reads.
	noWinTime  = 5 * time.Minute
	noWinShare = 16
	// judgeTime is how often it is judged whether a target can be helped that could not be. It takes no more
	// than one part in judgeShare of the time.
	judgeTime  = 2 * time.Second
	judgeShare = 500
)

// standBackPhase holds nothing. If the target's events come nevertheless, it learns from them as learnPhase
// does. The next phase is learn, when findChange finds that something may be won.
type standBackPhase struct {
	learnPhase
	stood   *StandBack
	warm    *warmth         // Fits, with Options.KeepWarm
	tables  *lookup.Tables  // Fits, but for these: their rows are read when they are looked up
	before  *lookup.Summary // of what was done for tables before
	judgeAt time.Time       // when Target.Judge is to be asked again
}

func (p *standBackPhase) name() Phase { return StandingOff }

// enter gives everything back. It returns the *StandBack.
func (p *standBackPhase) enter() error {
	s, stood := p.s, p.stood
	m, err := s.models()
	if err != nil {
		return err
	}
	stood.Room, stood.at, stood.mapped = s.memory.room, s.now(), m.Size()
	stood.Borrowed = s.memory.census.borrowedBytes
	if f := s.f; f != nil {
		stood.Bytes = max(stood.Bytes, f.schedule.Bytes)
		if stood.Reason == Fits && s.opts.KeepWarm {
			p.warm = newWarmth(f)
		}
		if stood.Reason == NoWin {
			f.forgetScores()
		}
		if stood.Reason == Fits && f.tables != nil && f.tables.Size() > stood.Room.Bytes-stood.Bytes {
			stood.Tables = f.tables.Size()
			p.tables = lookup.New(f.cycle, lookup.Options{Levers: s.levers, Refuse: s.refuse, Now: s.now})
			p.tables.LeaveRest()
			p.tables.SetRoom(stood.Room.Bytes)
		}
	}
	if s.memory.wanted = 0; stood.Reason == Fits || stood.Reason == NoWin {
		s.memory.wanted = stood.Bytes
	}
	if err := s.drop(); err != nil {
		return err
	}
	p.before = s.work.tables
	s.contexts.Reset()
	s.begun = false
	return stood
}

func (p *standBackPhase) covers() bool { return false }

// lookUp reads the rows of a table that the target is about to look up.
func (p *standBackPhase) lookUp(e event.Lookup) error {
	file, known := p.s.numbers[e.Table.File]
	if p.tables == nil || !known {
		return nil
	}
	_, err := p.tables.LookUp(file, e)
	p.s.work.tables = p.tables.Summary(p.before)
	return err
}

// findChange says why something may be won by now; "" if nothing is.
func (p *standBackPhase) findChange() (why string, err error) {
	s, stood := p.s, p.stood
	s.opts.Memory.PollChange() // the room is looked at anyway
	if err := s.memory.check(); err != nil {
		return "", err
	}
	switch paused := s.isPaused(); {
	case stood.Reason != Paused && paused:
		return "help is paused", nil // nothing is done then for tables and for what others take, either
	case stood.Reason == Paused && !paused:
		return "help is resumed", nil
	}
	switch stood.Reason {
	case Fits, Outside, Differs:
		return p.lookAtMaps()
	case Judged:
		now := s.now()
		if now.Before(p.judgeAt) {
			return "", nil
		}
		err := s.opts.Target.Judge()
		p.judgeAt = now.Add(max(judgeTime, judgeShare*s.now().Sub(now)))
		if err == nil {
			return "the target can be helped now", nil
		}
	case NoWin:
		change := s.memory.room.Bytes - stood.Room.Bytes
		switch {
		case max(change, -change) > stood.Bytes/noWinShare:
			return "the room has changed", nil
		case s.now().Sub(stood.at) > noWinTime:
			return "help that did not win is tried again", nil
		case s.readsOther():
			return "other weights are computed elsewhere", nil
		}
	}
	return "", nil
}

// lookAtMaps says whether the target maps other models, or has less room for them.
func (p *standBackPhase) lookAtMaps() (why string, err error) {
	s, stood := p.s, p.stood
	m, err := s.models()
	if err != nil {
		return "", err
	}
	if why := s.memory.findChangeOfPayers(); why != "" {
		return why, nil
	}
	switch mapped := m.Size(); {
	case mapped > stood.mapped, mapped < stood.mapped && !stood.early:
		return "the target maps other models", nil
	case stood.Reason == Fits && s.memory.room.Bytes < stood.Bytes:
		return "what fitted has no room any more", nil
	case s.readsOther():
		return "other weights are computed elsewhere", nil
	}
	return "", nil
}

// ampleBytes, or one part in ampleShare of the models' size, is room for what a target takes besides: its
// context and its buffers.
const (
	ampleBytes = 512 << 20
	ampleShare = 4
)
