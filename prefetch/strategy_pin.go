package prefetch

// Pin holds what fits; the target reads the rest by itself, for which the window's room is left.
type Pin struct{}

func (Pin) Name() string       { return "pin" }
func (Pin) Plan(in Input) Plan { return planSpread(in, in.Room-in.Window) }
func (Pin) Streams() bool      { return false }
