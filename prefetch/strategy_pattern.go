package prefetch

// Pattern does what Auto does, but only by a stored pattern: what the target reads is compared with it, and never learned instead.
type Pattern struct{ Auto }

func (Pattern) Name() string { return "pattern" }
