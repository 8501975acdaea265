package prefetch

// This file says what a controller is doing.

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize"
)

// Phase is what a controller is doing.
type Phase string

const (
	Waiting   Phase = "waiting"     // for the target to decode
	Comparing Phase = "comparing"   // tokens are measured without help
	Helping   Phase = "helping"     //
	Giving    Phase = "giving back" // memory is short
	Idle      Phase = "idle"        // nothing is to be won
)

// Status is what a controller is doing now. Sizes are bytes.
type Status struct {
	Phase    Phase   `json:"phase"`
	Why      string  `json:"why,omitempty"` // Idle: what there is no win for; Giving: what bounds the room
	Held     int64   `json:"held_bytes"`
	Wanted   int64   `json:"wanted_bytes"`          // of what a token reads, that is to be held
	PerToken int64   `json:"token_bytes"`           // that a token reads
	Experts  int64   `json:"experts_bytes"`         // of a mixture's experts, in memory, as far as is known
	Streamed int64   `json:"streamed_bytes"`        // a token, lately
	Early    int64   `json:"speculated_bytes"`      // besides, of experts that were likely to be chosen: a token, lately
	Before   float64 `json:"before_tokens_per_sec"` // without help, when that was measured last; 0: it was not
	Now      float64 `json:"tokens_per_sec"`        // lately, with help; 0: not known
	Bound    float64 `json:"bound_tokens_per_sec"`  // what nobody could pass with this room and this disk, see bound; 0: not known
	Warmed   int64   `json:"warmed_bytes"`          // that fit, were taken by others, and were read back, in all
}

// Status says what the controller is doing.
func (c *Controller) Status() Status {
	h, w := c.help, &c.watch
	if h == nil {
		if c.stood != nil {
			return Status{Phase: Idle, Why: c.stood.Error(), Warmed: c.sum.Warmed}
		}
		return Status{Phase: Waiting, Warmed: c.sum.Warmed}
	}
	s := Status{Phase: Helping, Held: h.heldBytes, Wanted: h.wantBytes, PerToken: h.schedule.Bytes, Before: perSecond(time.Duration(w.plain)), Warmed: c.sum.Warmed}
	if h.experts != nil {
		s.Experts, s.Early = h.experts.there, int64(h.experts.lately)
	}
	if n := int64(len(w.with)); n > 0 {
		s.Now, s.Streamed = perSecond(time.Duration(median(w.with))), (w.marks[n-1]-w.streamed)/n
		s.Bound = h.bound(c.room.Bytes, c.meter.best)
	}
	switch {
	case w.aside:
		s.Phase = Comparing
	case c.now().Before(c.shrunk.Add(shrunkTime)):
		s.Phase, s.Why = Giving, c.room.Level
		if c.now().Before(c.shortAt.Add(shrunkTime)) {
			s.Why += ", " + c.short
		}
	}
	return s
}

// bound is the most tokens per second with room for so many bytes of the model and a disk of so many bytes per second, in the best of all orders: the ops compute, as long as they take
// in memory as far as that is known (see times), and meanwhile the disk delivers what has no room. Of a mixture of experts it is not known: what a token reads depends on the router.
func (h *helping) bound(room int64, disk float64) float64 {
	if h.experts != nil || disk <= 0 {
		return 0
	}
	t := h.times()
	computes := 0.0
	for _, n := range append(t.reads, t.gaps...) {
		computes += n
	}
	return perSecond(time.Duration(max(computes, float64(max(h.schedule.Bytes-room, 0))/disk*1e9)))
}

// shrunkTime is how long it is told that memory was given back.
const shrunkTime = 2 * time.Second

// String is one line for people.
func (s Status) String() string {
	bytes := func(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
	switch s.Phase {
	case Waiting:
		return "learning: waiting for the target to decode"
	case Idle:
		if s.Warmed > 0 {
			return fmt.Sprintf("idle: %s; %s that others took were read back", s.Why, bytes(s.Warmed))
		}
		return "idle: " + s.Why
	case Comparing:
		return "comparing: tokens without help are measured"
	}
	line := fmt.Sprintf("keeping %s of %s", bytes(s.Held), bytes(s.PerToken))
	if s.Experts > 0 {
		line += fmt.Sprintf(" and %s of experts", bytes(s.Experts))
	}
	if s.Phase == Giving {
		line = fmt.Sprintf("giving back: memory is short (%s); %s", s.Why, line)
	}
	if s.Now == 0 {
		return line
	}
	line += fmt.Sprintf(", streaming %s/token, ", bytes(s.Streamed))
	if s.Early > 0 {
		line += fmt.Sprintf("guessing %s/token, ", bytes(s.Early))
	}
	if s.Before > 0 {
		return line + fmt.Sprintf("%.2f tok/s, %.2f before", s.Now, s.Before)
	}
	return line + fmt.Sprintf("%.2f tok/s", s.Now)
}
