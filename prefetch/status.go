package prefetch

// This file says what a controller is doing, for people and for metrics.

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/prefetch/plan"
)

// Activity is what users are told of what a controller is doing. A Phase says it in the loop's terms.
type Activity string

const (
	Waiting   Activity = "waiting"     // for the target to decode
	Comparing Activity = "comparing"   // tokens are measured without help
	Helping   Activity = "helping"     // weights are held and streamed
	Giving    Activity = "giving back" // the same, and memory is short
	Idle      Activity = "idle"        // nothing is to be won
)

// Status is what a controller is doing now. Sizes are bytes.
type Status struct {
	Activity  Activity  `json:"phase"`
	LoopPhase Phase     `json:"loop_phase"`
	Since     time.Time `json:"loop_phase_since"` // when that began
	Why       string    `json:"why,omitempty"`    // Idle: what there is no win for; Giving: what bounds the room
	Held      int64     `json:"held_bytes"`
	Wanted    int64     `json:"wanted_bytes"`          // of what a token reads, that is to be held
	PerToken  int64     `json:"token_bytes"`           // that a token reads
	Experts   int64     `json:"experts_bytes"`         // of a mixture's experts, in memory, as far as is known
	Streamed  int64     `json:"streamed_bytes"`        // a token, lately
	Early     int64     `json:"speculated_bytes"`      // besides, of experts before they were chosen: a token, lately
	Before    float64   `json:"before_tokens_per_sec"` // without help, when that was measured last; 0: it was not
	Now       float64   `json:"tokens_per_sec"`        // lately, with help; 0: not known
	Tokens    int       `json:"tokens"`                // generated with help so far
	Decodes   int       `json:"decodes"`               // with help so far, of one token, several or a prompt
	Bound     float64   `json:"bound_tokens_per_sec"`  // what nobody could pass with this room and disk; 0: not known
	Warmed    int64     `json:"warmed_bytes"`          // that fit, were taken by others, and were read back, in all
}

// status says what is being done in a phase.
func (s *session) status(in phase) Status {
	status := Status{Warmed: s.work.warmed, Tokens: s.work.tokens, Decodes: s.work.decodes}
	if p, is := in.(*standBackPhase); is {
		status.Activity, status.Why = Idle, p.stood.Error()
		return status
	}
	f, w := s.f, &s.compared
	if f == nil {
		status.Activity = Waiting
		return status
	}
	status.Activity, status.Held, status.Wanted, status.PerToken = Helping, f.heldBytes, f.wantBytes, f.schedule.Bytes
	status.Before, status.Now = w.speeds()
	if f.mixture != nil {
		status.Experts, status.Early = f.mixture.Resident(), f.mixture.EarlyPerToken()
	}
	if n := int64(len(w.with)); n > 0 {
		status.Streamed = (w.with[n-1].streamed - w.streamed) / n
		if f.mixture == nil { // otherwise what a token reads depends on the router
			status.Bound = f.schedule.Bound(s.memory.room.Bytes, f.times(), s.meter.best)
		}
	}
	if in.name() == Compare {
		status.Activity = Comparing
	} else if s.now().Before(s.memory.shrunk.Add(shortTime)) {
		status.Activity, status.Why = Giving, s.memory.room.Level
		if s.now().Before(s.memory.shortAt.Add(shortTime)) {
			status.Why += ", " + s.memory.short
		}
	}
	return status
}

// expectedSpeed is how many tokens per second are expected with what is held and a window of so many bytes.
func (f *followed) expectedSpeed(window int64) float64 {
	times := f.schedule.TimesBesideReads(f.held, f.window.bytes, &f.Seen)
	return perSecond(1, f.schedule.ExpectToken(f.held, window, plan.Lead(f.block, f.unit), times, f.meter.best))
}

// String is one line for people.
func (s Status) String() string {
	bytes := func(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
	switch s.Activity {
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
	if s.Activity == Giving {
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
