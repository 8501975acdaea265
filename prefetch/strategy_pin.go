package prefetch

// Pin holds what fits, locked; the target reads the rest by itself, for which the window's room is left.
type Pin struct{}

func (Pin) Name() string       { return "pin" }
func (Pin) Plan(in Input) Plan { return planSpread(in, in.Room-in.Window) }
func (Pin) Lever() Lever       { return LeverLock }
func (Pin) Streams() bool      { return false }
