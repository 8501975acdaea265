package prefetch

// Keep holds what Both holds, but locks nothing: the kernel may take it back. As everything else is paged out behind its use, nothing presses on it.
type Keep struct{}

func (Keep) Name() string       { return "keep" }
func (Keep) Plan(in Input) Plan { return planSpread(in, in.Room-in.Window) }
func (Keep) Lever() Lever       { return LeverKeep }
func (Keep) Streams() bool      { return true }
