package prefetch

// Pin holds what fits; the target reads the rest by itself, for which the window's room is left. As that is paged out behind its use, nothing presses on what is held.
type Pin struct{}

func (Pin) Name() string       { return "pin" }
func (Pin) Plan(in Input) Plan { return planTogether(in, in.Room-in.Window) }
func (Pin) Streams() bool      { return false }
