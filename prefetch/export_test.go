package prefetch

// This file exports to the tests outside the package what they need of its inside.

import (
	"time"

	"tensorcast/pattern"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/plan"
)

// ExpectToken is how long a token takes with what is held now, as predicted from the true computing time of each
// read's op and from the disk's true bandwidth in bytes per second. The Controller must be helping.
func (c *Controller) ExpectToken(disk float64) time.Duration {
	f := c.s.f
	t := plan.OpTimes{Gaps: make([]float64, len(f.schedule.Reads)+1)}
	for _, n := range f.schedule.Nanos {
		t.Reads = append(t.Reads, float64(n))
	}
	return f.schedule.ExpectToken(f.held, f.window.bytes, plan.Lead(f.block, f.unit), t, disk)
}

// Use begins with a stored cycle at once, where the target maps its files at the given addresses.
func (c *Controller) Use(cycle *pattern.Cycle, at []models.Mapped) error {
	return c.settle(c.s.followStored(cycle, at))
}
