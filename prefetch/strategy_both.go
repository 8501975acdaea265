package prefetch

// Both holds what fits, locked, and streams the rest.
type Both struct{}

func (Both) Name() string       { return "both" }
func (Both) Plan(in Input) Plan { return planSpread(in, in.Room-in.Window) }
func (Both) Lever() Lever       { return LeverLock }
func (Both) Streams() bool      { return true }
