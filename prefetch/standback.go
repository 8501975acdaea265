package prefetch

// This file says when there is nothing to win, and when to look again.

import (
	"fmt"
	"slices"
	"time"

	"tensorcast/prefetch/room"

	"tensorcast/prefetch/pages"

	"github.com/dustin/go-humanize"
)

// Reason is why a target is left alone.
type Reason string

// Reasons that a Controller finds out.
const (
	Fits    Reason = "fits"    // all that a token reads has room
	NoWin   Reason = "no win"  // tokens with help take as long as without
	Outside Reason = "outside" // the weights lie outside the mappings of their file
	Judged  Reason = "judged"  // Options.Judge said so
	Differs Reason = "differs" // the target does not read what the stored pattern says, and nothing else is to be learned
)

// StandBack is the error of Handle and Tick that says that there is nothing to win: nothing is held any more. The controller needs no events until Look says so; if it gets some
// nevertheless, it begins anew.
type StandBack struct {
	Reason        Reason
	With, Without time.Duration // NoWin: a token's
	Bytes         int64         // that a token reads; Fits: and the sizes of other models that the target maps
	Room          room.Room     // that there was
	Err           error         // Outside: which weights, and what to do; Judged and Differs: why
	mapped        int64         // bytes of all model files that the target mapped, or is about to map, if it is early
	early         bool          // see Early
	at            time.Time
	warm          *warmth // Fits, with Options.KeepWarm
}

func (s *StandBack) Error() string {
	switch s.Reason {
	case Fits:
		return fmt.Sprintf("everything fits: %s of weights, room for %s (%s)", humanize.IBytes(uint64(s.Bytes)), humanize.IBytes(uint64(max(s.Room.Bytes, 0))), s.Room.Level)
	case NoWin:
		return fmt.Sprintf("no win: %.2f tok/s with help, %.2f without: all given back", perSecond(s.With), perSecond(s.Without))
	}
	return s.Err.Error()
}

func (s *StandBack) Unwrap() error { return s.Err }

func perSecond(d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(time.Second) / float64(d)
}

const (
	// noWinTime is how long help that did not win is not tried again, unless the room changes by a noWinShare of what a token reads.
	noWinTime  = 5 * time.Minute
	noWinShare = 16
	// judgeTime is how often it is judged whether a target can be helped that could not be. It takes judgeShare times as long as that at least.
	judgeTime  = 2 * time.Second
	judgeShare = 500
)

// judge stands back if the target cannot be helped.
func (c *Controller) judge() error {
	if c.opts.Judge == nil {
		return nil
	}
	if err := c.opts.Judge(); err != nil {
		return c.standBack(&StandBack{Reason: Judged, Err: err})
	}
	return nil
}

// standBack gives everything back, and returns s.
func (c *Controller) standBack(s *StandBack) error {
	models, err := c.models()
	if err != nil {
		return err
	}
	s.Room, s.at, s.mapped = c.room, c.now(), models.bytes()
	if c.help != nil {
		c.sum.PerToken = c.help.schedule.Bytes
		s.Bytes = max(s.Bytes, c.help.schedule.Bytes)
		if s.Reason == Fits && c.opts.KeepWarm {
			s.warm = c.newWarmth()
		}
	}
	if err := c.giveUp(s.Error()); err != nil {
		return err
	}
	c.contexts = newContexts(c.contexts.file)
	c.stood, c.begun = s, false
	return s
}

// Ample says, before a target has loaded anything, whether models of so many bytes, all that it will map as far as the caller can tell, fit for sure, and nothing else is asked for: then
// it need not be observed.
func (o *Options) Ample(bytes int64, room room.Room) bool {
	return bytes > 0 && Keepable(room) >= bytes+max(bytes/ampleShare, ampleBytes) && o.Budget == 0 && !o.Always && !o.KeepWarm && o.Stored == nil
}

// ampleBytes, or a share of the models' size, is room for what a target takes besides: its context and its buffers.
const (
	ampleBytes = 512 << 20
	ampleShare = 4
)

// Early stands back before any event, as Ample said so of these bytes and this room, until Look says that they have no room any more, or that the target maps more.
func (c *Controller) Early(bytes int64, room room.Room) *StandBack {
	room.Bytes -= room.Margin()
	c.room = room
	c.stood = &StandBack{Reason: Fits, Bytes: bytes, Room: room, at: c.now(), mapped: bytes, early: true}
	return c.stood
}

// fits says whether all that the target reads has room, by its limits, not by the caller's budget: what a token reads (all of its files, if other weights are computed elsewhere), and the
// other models that it maps, as their turn may come.
func (c *Controller) fits() (*StandBack, error) {
	if c.load != nil || c.guessed { // it is not in memory yet, or nobody knows whether the target reads it there: its first decode tells
		return nil, nil
	}
	s := &StandBack{Reason: Fits, Bytes: c.help.schedule.Bytes + c.help.routed}
	if c.opts.Elsewhere != nil {
		// Between the weights that it reads lie those that it does not. Its faults would read these as well, and push out what it needs.
		files := map[int]bool{}
		s.Bytes = 0
		for _, b := range c.help.schedule.Blocks {
			if !files[b.File] {
				files[b.File] = true
				s.Bytes += c.known[b.File].size
			}
		}
	}
	free := c.room.Bytes - c.help.window.bytes
	if c.room.Level == room.LevelBudget || free < s.Bytes {
		return nil, nil
	}
	models, err := c.models()
	if err != nil {
		return nil, err
	}
	for i, at := range models.Mapped {
		if !slices.ContainsFunc(c.help.schedule.Blocks, func(b pages.Range) bool { return c.known[b.File].id == at.ID }) {
			s.Bytes += models.Files[i].Size
		}
	}
	if free < s.Bytes {
		return nil, nil
	}
	return s, nil
}

// models are those that the target maps now.
func (c *Controller) models() (Model, error) {
	if c.opts.Models == nil {
		return Model{}, nil
	}
	return c.opts.Models()
}

func (m *Model) bytes() (sum int64) {
	for _, f := range m.Files {
		sum += f.Size
	}
	return sum
}

// Look says, after a StandBack, whether there is something to win by now: then the target's events are needed again. It costs little, and needs to be asked once a second.
func (c *Controller) Look() (again bool, err error) {
	s := c.stood
	if s == nil {
		return true, nil
	}
	c.opts.Memory.Changed() // the room is looked at anyway
	if err := c.checkRoom(); err != nil {
		return false, err
	}
	switch s.Reason {
	case Fits, Outside, Differs:
		models, err := c.models()
		if err != nil {
			return false, err
		}
		mapped := models.bytes()
		again = mapped > s.mapped || mapped < s.mapped && !s.early || s.Reason == Fits && c.room.Bytes < s.Bytes || c.readsOther()
	case Judged:
		if now := c.now(); !now.Before(c.judgeAt) {
			again = c.opts.Judge() == nil
			c.judgeAt = now.Add(max(judgeTime, judgeShare*c.now().Sub(now)))
		}
	case NoWin:
		change := c.room.Bytes - s.Room.Bytes
		again = max(change, -change) > s.Bytes/noWinShare || c.now().Sub(s.at) > noWinTime || c.readsOther()
	}
	if again {
		c.stood = nil
	}
	return again, nil
}
