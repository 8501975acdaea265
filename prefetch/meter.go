package prefetch

// This file measures what the disk delivers.

import "time"

// meter is the disk's bandwidth as far as it was asked for: the most that was read in a quarter of a second. A disk that never had to hurry is faster than that.
type meter struct {
	begun time.Time
	bytes int64
	best  float64 // bytes per second
}

const meterInterval = 250 * time.Millisecond

// add notes reads that were begun.
func (m *meter) add(bytes int64) { m.bytes += bytes }

// tick ends an interval that is over.
func (m *meter) tick(now time.Time) {
	elapsed := now.Sub(m.begun)
	if elapsed < meterInterval {
		return
	}
	if elapsed < 2*meterInterval { // else nobody looked for a while
		m.best = max(m.best, float64(m.bytes)/elapsed.Seconds())
	}
	m.begun, m.bytes = now, 0
}
