package prefetch

// This file says what a phase is, which phases there are, and which of them follow each other.

import (
	"time"

	"tensorcast/event"
)

// Phase names one thing that the control loop can be doing.
type Phase string

const (
	Learn       Phase = "learn"      // wait for the target to decode, and learn what a token reads
	Load        Phase = "load"       // read ahead of a target that loads its model
	Compare     Phase = "compare"    // leave the target alone for some tokens, to measure them without help
	Stream      Phase = "stream"     // hold a share of a dense model, and stream the rest
	Mixture     Phase = "mixture"    // the same, and read the experts that routers choose
	StandingOff Phase = "stand back" // nothing is to be won: hold nothing, and look now and then again
)

// phase is one thing that the loop can be doing. A phase is one file.
//
// A phase ends by returning a *change as its error, from enter, handle or tick. So whatever is under way is
// unwound as with any error, however deep it is. The Controller then makes the change.
type phase interface {
	name() Phase
	// enter begins the phase.
	enter() error
	// handle takes the target's next event.
	handle(e event.Event) error
	// tick does what is due. It does not wait for the disk, save for blocks that are to be held.
	tick() error
	// pause is how long tick need not be called, unless events come.
	pause() time.Duration
	// covers says whether the target's own faults had better read little now, see Controller.Covers.
	covers() bool
}

// change is a change of phase, as an error.
type change struct {
	to  phase
	why string
}

func (c *change) Error() string { return string(c.to.name()) + ": " + c.why }

// Transition is a change from one phase to another that may happen, and when it does.
type Transition struct {
	From, To Phase
	When     string
}

// Transitions lists all of them. docs/design/prefetch.md draws the same, and a test compares the two.
func Transitions() []Transition {
	return []Transition{
		{Learn, Load, "the target loads a model whose reads are stored or can be guessed"},
		{Learn, Compare, "the reads of a token are known"},
		{Learn, Stream, "a dense model: its reads are stored, or help needs no comparison"},
		{Learn, Mixture, "a mixture: its reads are stored, or help needs no comparison"},
		{Learn, StandingOff, "everything fits, the weights cannot be helped, or help is paused"},
		{Load, Stream, "a dense model is loaded"},
		{Load, Mixture, "a mixture is loaded"},
		{Load, Compare, "the target reads other weights than were expected"},
		{Load, Learn, "what was learned is no longer so"},
		{Load, StandingOff, "everything fits, the weights cannot be helped, or help is paused"},
		{Compare, Stream, "a dense model: plain tokens were measured, and help is worth trying or wins"},
		{Compare, Mixture, "a mixture: plain tokens were measured, and help is worth trying or wins"},
		{Compare, Compare, "other weights are followed from now on"},
		{Compare, Learn, "what was learned is no longer so"},
		{Compare, StandingOff, "help does not win, everything fits, the weights cannot be helped, or help is paused"},
		{Stream, Compare, "tokens take as long as plain ones did, or other weights are followed"},
		{Stream, Stream, "other weights of a dense model are followed, without comparison"},
		{Stream, Mixture, "a mixture is followed instead, without comparison"},
		{Stream, Learn, "what was learned is no longer so"},
		{Stream, StandingOff, "everything fits, the weights cannot be helped, or help is paused"},
		{Mixture, Compare, "tokens take as long as plain ones did, or other weights are followed"},
		{Mixture, Mixture, "another mixture is followed, without comparison"},
		{Mixture, Stream, "a dense model is followed instead, without comparison"},
		{Mixture, Learn, "what was learned is no longer so"},
		{Mixture, StandingOff, "everything fits, the weights cannot be helped, or help is paused"},
		{StandingOff, Learn, "something may be won by now"},
		{StandingOff, Load, "events come, and the target loads a model"},
		{StandingOff, Compare, "events come, and the reads of a token are known"},
		{StandingOff, Stream, "events come, of a dense model whose reads are stored"},
		{StandingOff, Mixture, "events come, of a mixture whose reads are stored"},
		{StandingOff, StandingOff, "events come, and there is still nothing to win, or help is paused"},
	}
}

// isListed says whether a change is in the table.
func isListed(from, to Phase) bool {
	for _, t := range Transitions() {
		if t.From == from && t.To == to {
			return true
		}
	}
	return false
}
