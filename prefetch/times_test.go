package prefetch

import (
	"math"
	"slices"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/prefetch/pages"
)

// What an op was seen to take is told from what it waited, as far as layers and held weights tell it.
func TestTimes(t *testing.T) {
	const m = mibs
	s := NewSchedule(sequence(4*m, 4*m, 4*m, 4*m, 2*m, 32*m, 6*m, 6*m), pages.MinBlock, 0)
	h := newHelping(s)
	h.bytes = 8 * m
	h.nanos = []int64{500, 400, 430, -1, 300, 90000, 900, 1000}
	hold := func(read int, held bool) {
		for _, v := range s.Visits {
			if v.From <= read && read <= v.To {
				h.held[v.Block] = held
			}
		}
	}
	// Nothing is held: the large op is as slow as one of the layers, the others of their length as the fastest of them.
	if got, want := h.times().reads, []float64{400, 400, 400, 400, 300, 90000, 900, 900}; !slices.Equal(got, want) {
		t.Errorf("three of four layers were seen: %v, want %v", got, want)
	}
	h.nanos[3] = 410
	if got, want := h.times().reads, []float64{400, 400, 400, 400, 300, 3200, 900, 900}; !slices.Equal(got, want) {
		t.Errorf("four layers were seen: %v, want %v", got, want)
	}
	hold(4, true) // 150 ns a mebibyte
	if got := h.times().reads[5]; got != 32*150 {
		t.Errorf("by a read that waits for nothing the large op takes %v", got)
	}
	for i := range h.held {
		h.held[i] = true
	}
	if got := h.times().reads[5]; got != 90000 {
		t.Errorf("it is held, and takes %v", got)
	}
	h.nanos[4] = -1
	if got, want := h.times().reads[4], 2.0*(4*400+90000+2*900)/(4*4+32+2*6); math.Abs(got-want) > 1 {
		t.Errorf("an op that was not seen takes %v, want %v", got, want)
	}
}

// Reading slows computing by as much as the layers' ops take longer lately that wait for least. What prompts take is no part of it.
func TestTimesLately(t *testing.T) {
	const m = mibs
	s := NewSchedule(sequence(4*m, 4*m, 4*m, 4*m, 2*m, 4096), pages.MinBlock, 0)
	h := newHelping(s)
	h.bytes = 32 * m
	decode := func(begun int64, nanos ...int64) {
		h.begin(1, h.decode+1, begun, true)
		for i, n := range nanos {
			h.done(place{0, s.Reads[i].Offset}, &event.Op{Time: begun, Duration: n}, n)
		}
		h.end(begun)
	}
	expect := func(when string, want ...float64) {
		t.Helper()
		if got := h.timesLately().reads; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	decode(0, 9000, 9000, 9000, 9000, 9000, 9000)
	expect("a prompt", 9000, 9000, 9000, 9000, 9000, 9000)
	decode(1000, 400, 400, 400, 400, 200, 10)
	expect("nothing was slowed", 400, 400, 400, 400, 200, 10)
	decode(2000, 4000, 1200, 8000, 4000, 9000, 400) // the second layer's mean moves least: by an eighth of what it took longer
	expect("all layers were slowed by a quarter or more", 500, 500, 500, 500, 250, 12.5)
	if got, want := h.times().reads, []float64{400, 400, 400, 400, 200, 10}; !slices.Equal(got, want) {
		t.Errorf("by themselves they take %v, want %v", got, want)
	}
	h.lately[0] = -1
	expect("a layer was not seen", 400, 400, 400, 400, 200, 10)
}

// What lies between ops is what they were seen to leave lately; not what a decode of another kind leaves, or one of which something was missed.
func TestGaps(t *testing.T) {
	s := NewSchedule(sequence(mibs, mibs, mibs, 4096), pages.MinBlock, 0)
	f := newFollower(s)
	at := func(i int) place { return place{0, s.Reads[i].Offset} }
	decode := func(begun int64, gap int64, reads ...int) {
		f.begin(1, f.decode+1, begun, true)
		now := begun
		for _, i := range reads {
			now += gap
			f.done(at(i), &event.Op{Time: now, Duration: 100}, 100)
			if i == 2 { // another weight of the same op
				f.done(at(3), &event.Op{Time: now, Duration: 100}, 0)
			}
			now += 100
		}
		f.end(now + 2*gap)
	}
	decode(1000, 80, 0, 1, 2)
	if want := []int64{80, 80, 80, -1, 160}; !slices.Equal(f.gaps, want) {
		t.Errorf("%v, want %v", f.gaps, want)
	}
	decode(2000, 160, 0, 2)
	if want := []int64{90, 80, 80, -1, 180}; !slices.Equal(f.gaps, want) {
		t.Errorf("a read was missed: %v, want %v", f.gaps, want)
	}
	decode(0, 1000, 0, 1, 2)
	if want := []int64{90, 80, 80, -1, 180}; !slices.Equal(f.gaps, want) {
		t.Errorf("a prompt: %v, want %v", f.gaps, want)
	}
}

// What was asked for is not what has come.
func TestMeter(t *testing.T) {
	var m meter
	now := time.Unix(1000, 0)
	m.tick(now, 0)
	for range 50 {
		now = now.Add(10 * time.Millisecond)
		m.add(10 * mibs)
		m.tick(now, 50*mibs)
	}
	if want := 450.0 * mibs / 0.5; m.best < want*0.99 || m.best > want*1.01 {
		t.Errorf("%.0f bytes a second were seen, %.0f have come", m.best, want)
	}
}

// The loop looks oftener the faster the disk brings blocks, within bounds.
func TestBusyPause(t *testing.T) {
	for perSecond, want := range map[float64]time.Duration{0: mostBusy, 1e9: mostBusy, 4 << 30: 3 * time.Second / 4 / 2048, 1e12: leastBusy} {
		c := &Controller{help: &helping{block: 2 << 20}, meter: meter{best: perSecond}}
		if got := c.busyPause(); got.Round(time.Microsecond) != want.Round(time.Microsecond) {
			t.Errorf("blocks of 2 MiB from a disk of %v bytes per second: each %v, want %v", perSecond, got, want)
		}
	}
}
