package prefetch

// This file tests the meter of the disk, and how often the loop ticks.

import (
	"testing"
	"time"
)

const mib = 1 << 20

// The meter counts what has arrived, not what was asked for.
func TestMeter(t *testing.T) {
	var m meter
	now := time.Unix(1000, 0)
	m.tick(now, 0)
	for range 50 {
		now = now.Add(10 * time.Millisecond)
		m.add(10 * mib)
		m.tick(now, 50*mib)
	}
	if want := 450.0 * mib / 0.5; m.best < want*0.99 || m.best > want*1.01 {
		t.Errorf("%.0f bytes a second were measured, want about %.0f", m.best, want)
	}
}

// The faster the disk brings blocks, the more often the loop ticks, within bounds.
func TestBusyPause(t *testing.T) {
	for perSecond, want := range map[float64]time.Duration{
		0: mostBusy, 1e9: mostBusy, 4 << 30: 3 * time.Second / 4 / 2048, 1e12: leastBusy,
	} {
		now := time.Unix(1000, 0)
		s := &session{now: func() time.Time { return now }, meter: meter{best: perSecond}, loop: timing{busy: now}}
		f := &followed{session: s, block: 2 << 20}
		if got := f.pauseForBlock(false); got.Round(time.Microsecond) != want.Round(time.Microsecond) {
			t.Errorf("blocks of 2 MiB from a disk of %v bytes per second: a pause of %v, want %v", perSecond, got, want)
		}
	}
}
