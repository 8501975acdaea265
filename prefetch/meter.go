package prefetch

// This file measures what the disk delivers.

import "time"

const (
	meterLeast = 100 * time.Millisecond
	meterMost  = time.Second
)

// meter is the disk's bandwidth, as far as it was asked for: the most that was surely read in a time. A disk
// that never had to hurry is faster than that.
type meter struct {
	begun time.Time
	bytes int64   // asked for since
	best  float64 // bytes per second
}

// add notes reads that were begun.
func (m *meter) add(bytes int64) { m.bytes += bytes }

// tick looks at what was read since the interval began. Of what was asked for, as much as pending may not
// have been read yet.
func (m *meter) tick(now time.Time, pending int64) {
	elapsed := now.Sub(m.begun)
	if elapsed < meterLeast {
		return
	}
	m.best = max(m.best, float64(m.bytes-pending)/elapsed.Seconds())
	if elapsed >= meterMost {
		m.begun, m.bytes = now, 0
	}
}
