package plan

// Auto holds what fits and streams the rest. What is streamed is paged out behind its use, so nothing presses
// on what is held.
type Auto struct{}

// Name implements Strategy.
func (Auto) Name() string { return "auto" }

// Plan implements Strategy.
func (Auto) Plan(in Input) Plan { return spreadOverFile(in, in.Room-in.Window) }

// Traits implements Strategy.
func (Auto) Traits() Traits { return Traits{Streams: true, ReadsExperts: true, KeepsExperts: true} }
