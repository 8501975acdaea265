package prefetch

// Auto holds what fits, and streams the rest. As that is paged out behind its use, nothing presses on what is held.
type Auto struct{}

func (Auto) Name() string       { return "auto" }
func (Auto) Plan(in Input) Plan { return planSpread(in, in.Room-in.Window) }
func (Auto) Streams() bool      { return true }
