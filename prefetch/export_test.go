package prefetch

import "time"

// Foresee predicts a token of a controller that helps, with what is held now, from how long each read's op really computes and what the disk really delivers.
func (c *Controller) Foresee(disk float64) time.Duration {
	h := c.help
	t := opTimes{gaps: make([]float64, len(h.gaps))}
	for _, n := range h.schedule.Nanos {
		t.reads = append(t.reads, float64(n))
	}
	return h.predict(h.window.bytes, t, disk)
}
