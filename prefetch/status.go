package prefetch

// This file says what a controller is doing, for people and for metrics.

import (
	"fmt"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/prefetch/mixture"
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
//
// Why says what there is no win for (Idle), what bounds the room (Giving), and what is waited for (Waiting). Who
// observes the target knows the last one, and fills it in.
type Status struct {
	Activity  Activity  `json:"phase"`
	LoopPhase Phase     `json:"loop_phase"`
	Since     time.Time `json:"loop_phase_since"` // when that began
	Why       string    `json:"why,omitempty"`    // for Idle, Giving and Waiting, see below
	Held      int64     `json:"held_bytes"`
	Wanted    int64     `json:"wanted_bytes"`          // of what a token reads, that is to be held
	PerToken  int64     `json:"token_bytes"`           // that a token reads
	Needs     int64     `json:"model_bytes"`           // that are to be in memory at best; 0: not known, or for nothing
	Room      int64     `json:"room_bytes"`            // for the model, and for others that want to be in the same room
	Level     string    `json:"room_level"`            // what bounds that; the budget does not count
	Experts   int64     `json:"experts_bytes"`         // of a mixture's experts, in memory, as far as is known
	Streamed  int64     `json:"streamed_bytes"`        // a token, lately
	Early     int64     `json:"speculated_bytes"`      // besides, of experts before they were chosen: a token, lately
	Before    float64   `json:"before_tokens_per_sec"` // without help, when that was measured last; 0: it was not
	Now       float64   `json:"tokens_per_sec"`        // lately, with help; 0: not known
	Tokens    int       `json:"tokens"`                // generated with help so far
	Decodes   int       `json:"decodes"`               // with help so far, of one token, several or a prompt
	Bound     float64   `json:"bound_tokens_per_sec"`  // what nobody could pass with this room and disk; 0: not known
	Disk      float64   `json:"disk_bytes_per_sec"`    // that the disk was seen to deliver at best; 0: not known
	Warmed    int64     `json:"warmed_bytes"`          // that fit, were taken by others, and were read back, in all
	// PromptTokens, ReadAhead and Taken only grow: tokens of prompts with help; bytes of the model that were read
	// ahead of the target's use, or when a router had chosen them; bytes that were kept, and that the kernel took.
	PromptTokens int   `json:"prompt_tokens"`
	ReadAhead    int64 `json:"read_ahead_bytes"`
	Taken        int64 `json:"taken_bytes"`
	// Hot is what was read of experts before this target chose any; nil if nothing was known of them.
	Hot *mixture.Hot `json:"hot_experts,omitempty"`
}

// status says what is being done in a phase.
func (s *session) status(in phase) Status {
	status := Status{Warmed: s.work.warmed, Tokens: s.work.tokens, Decodes: s.work.decodes}
	status.PromptTokens, status.ReadAhead, status.Taken = s.work.promptTokens, s.work.streamed, s.work.taken
	if s.f != nil {
		status.ReadAhead += s.f.streamed
	}
	status.Disk = s.meter.best
	status.Needs, status.Room, status.Level = s.memory.needs(), s.memory.whole, s.memory.level
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
		status.Hot = f.mixture.Hot()
	}
	if n := int64(len(w.with)); n > 0 {
		status.Streamed = (w.with[n-1].streamed - w.streamed) / n
		if f.mixture == nil { // otherwise what a token reads depends on the router
			steps := f.schedule.Bound(s.memory.room.Bytes, f.times(), s.meter.best)
			status.Bound = w.tokensPerStep() * steps
		}
	}
	if in.name() == Compare {
		status.Activity = Comparing
	} else if s.memory.isShort() {
		status.Activity, status.Why = Giving, s.memory.room.Bound()
		if s.now().Before(s.memory.shortAt.Add(shortTime)) {
			status.Why += ", " + s.memory.short
		}
	}
	return status
}

// expectedSpeed is how many tokens per second are expected with what is held and a window of so many bytes.
func (f *followed) expectedSpeed(window int64) float64 {
	times := f.schedule.TimesBesideReads(f.held, f.window.bytes, &f.Seen)
	step := f.schedule.ExpectToken(f.held, window, plan.Lead(f.block, f.unit), times, f.meter.best)
	return perSecond(f.compared.tokensPerStep(), step)
}

// String is one line for people. It begins with the speed, because a narrow terminal cuts the end.
func (s Status) String() string {
	switch s.Activity {
	case Waiting:
		if s.Why != "" {
			return "waiting: " + s.Why
		}
		return "learning: waiting for the target to decode"
	case Idle:
		if s.Warmed > 0 {
			return fmt.Sprintf("idle: %s; %s that others took were read back", s.Why, readable(s.Warmed))
		}
		return "idle: " + s.Why
	case Comparing:
		return "comparing: tokens without help are measured"
	}
	line := s.Work()
	if s.Activity == Giving {
		line = fmt.Sprintf("giving back, because memory is short (%s); %s", s.Why, line)
	}
	if speed := s.Speed(); speed != "" {
		line = speed + "; " + line
	}
	return line
}

// Speed says how fast the target is with help, and was without. It is empty if that is not known. A target that only
// reads prompts, as for embeddings, generates no tokens: then the tokens of prompts count.
func (s Status) Speed() string {
	if s.Now <= 0 {
		return ""
	}
	text := FormatSpeed(s.Now)
	if ReadsPrompts(s.Tokens, s.Decodes) {
		text += " prompt"
	}
	text += " tok/s"
	if s.Before > 0 {
		text += fmt.Sprintf(", %s before", FormatSpeed(s.Before))
	}
	return text
}

// ReadsPrompts says whether most of so many decodes, which generated so many tokens, were prompts. A prompt of a single
// token counts as generated.
func ReadsPrompts(tokens, decodes int) bool { return 2*tokens < decodes }

// Work says what is kept in memory, and what is read for each token.
func (s Status) Work() string {
	line := fmt.Sprintf("keeping %s of %s", readable(s.Held), readable(s.PerToken))
	if s.Experts > 0 {
		line += fmt.Sprintf(" and %s of experts", readable(s.Experts))
	}
	if s.Now > 0 {
		line += fmt.Sprintf(", streaming %s/token", readable(s.Streamed))
	}
	if s.Early > 0 {
		line += fmt.Sprintf(", guessing %s/token", readable(s.Early))
	}
	return line
}

// FormatSpeed formats a rate with three digits, or with the two behind the point where it is small.
func FormatSpeed(perSecond float64) string {
	switch {
	case perSecond < 9.995: // what is less is rounded to less than 10
		return strconv.FormatFloat(perSecond, 'f', 2, 64)
	case perSecond < 99.95:
		return strconv.FormatFloat(perSecond, 'f', 1, 64)
	}
	return strconv.FormatFloat(perSecond, 'f', 0, 64)
}

// readable formats a number of bytes. Negative numbers are 0.
func readable(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
