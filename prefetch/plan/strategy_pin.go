package plan

// Pin holds what fits. The target reads the rest by itself, for which the window's room is left. The rest is
// paged out behind the target, so nothing presses on what is held.
type Pin struct{}

// Name implements Strategy.
func (Pin) Name() string { return "pin" }

// Plan implements Strategy.
func (Pin) Plan(in Input) Plan { return holdTogether(in, in.Room-in.Window) }

// Traits implements Strategy.
func (Pin) Traits() Traits { return Traits{} }
