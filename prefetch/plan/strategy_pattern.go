package plan

// Pattern does what Auto does, but only by a stored pattern. What the target reads is compared with the
// pattern, and is never learned instead of it.
type Pattern struct{ Auto }

// Name implements Strategy.
func (Pattern) Name() string { return "pattern" }

// Traits implements Strategy.
func (p Pattern) Traits() Traits {
	t := p.Auto.Traits()
	t.OnlyStored = true
	return t
}
