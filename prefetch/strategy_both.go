package prefetch

// Both holds what fits, and streams the rest. As that is paged out behind its use, nothing presses on what is held.
type Both struct{}

func (Both) Name() string       { return "both" }
func (Both) Plan(in Input) Plan { return planSpread(in, in.Room-in.Window) }
func (Both) Streams() bool      { return true }
