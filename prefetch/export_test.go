package prefetch

import (
	"time"

	"tensorcast/pattern"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/plan"
)

// ExpectToken expects how long a token of a controller takes that helps, with what is held now, from how long each read's
// op really computes and what the disk really delivers.
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
