package prefetch

import (
	"math/rand/v2"
	"tensorcast/prefetch/pages"
	"testing"
	"time"
)

const msec = int64(time.Millisecond)

// timed are aligned reads of so many MiB each, whose ops take so many ms, with so many between them.
func timed(lengths, reads, gaps []int64) (*helping, opTimes) {
	c := sequence(lengths...)
	t := opTimes{gaps: make([]float64, len(lengths)+1)}
	for i := range c.Reads {
		c.Reads[i].Offset = (c.Reads[i].Offset - 4096) * mibs
		c.Reads[i].Length *= mibs
		t.reads = append(t.reads, float64(reads[i]*msec))
	}
	for i, n := range gaps {
		t.gaps[i] = float64(n * msec)
	}
	h := newHelping(NewSchedule(c, pages.MinBlock, 0))
	h.block, h.unit = pages.MinBlock, pages.MinBlock
	return h, t
}

// compute is how long a token takes that waits for nothing, in ns.
func (t *opTimes) compute() (sum float64) {
	for _, n := range t.reads {
		sum += n
	}
	for _, n := range t.gaps {
		sum += n
	}
	return sum
}

// Closed forms, with a disk that reads a mebibyte in a millisecond.
func TestPredict(t *testing.T) {
	const disk = 1000 * mibs
	even := []int64{8, 8, 8, 8}
	for _, tc := range []struct {
		name                 string
		window               int64 // MiB
		lengths, reads, gaps []int64
		held                 int // of the first blocks
		disk                 float64
		want                 int64 // ms
	}{
		{"all is held: what computes", 8, even, []int64{1, 2, 3, 4}, []int64{0, 1, 0, 1, 3}, 32, disk, 15},
		{"nothing is known but the disk", 8, even, []int64{0, 0, 0, 0}, nil, 0, disk, 32},
		{"the disk is slower", 16, even, []int64{1, 1, 1, 1}, nil, 0, disk, 32},
		{"the target is slower", 16, even, []int64{20, 20, 20, 20}, nil, 0, disk, 80},
		{"a share of the bytes is read", 8, even, []int64{0, 0, 0, 0}, nil, 20, disk, 12},
		// While 16 MiB compute that are held for 60 ms the disk fills the window of 8 MiB, and no more. The other 8 + 8 MiB take 1 ms each: 8 are there, 8 are waited for.
		{"the window bounds what is read during held ops", 8, even, []int64{30, 30, 1, 1}, nil, 16, disk, 60 + 1 + 8 + 1 - 1},
		// An op larger than the window: what it has passed leaves the window.
		{"an op larger than the window, which computes longer than the disk reads", 8, []int64{32}, []int64{64}, []int64{8, 0}, 0, disk, 8 + 64},
		{"a bandwidth that is not known", 8, even, []int64{1, 1, 1, 1}, nil, 0, 0, 0},
	} {
		h, times := timed(tc.lengths, tc.reads, tc.gaps)
		for b := range h.held[:tc.held] {
			h.held[b] = true
		}
		want := time.Duration(tc.want * msec)
		if got := h.predict(tc.window*mibs, times, tc.disk); got < want-want/100 || got > want+want/100 {
			t.Errorf("%s: %v, want %v", tc.name, got, want)
		}
	}
	// Blocks that are smaller than what is read at once do not leave the window before the op is over: it waits for the other 24 ms of disk.
	h, times := timed([]int64{32}, []int64{64}, []int64{8, 0})
	h.unit = 2 * h.block
	if got, want := h.predict(8*mibs, times, disk), time.Duration((8+64+24)*msec); got < want-want/100 || got > want+want/100 {
		t.Errorf("a weight larger than the window: %v, want %v", got, want)
	}
}

// No token is shorter than what it computes, or than what the disk needs for it; with a wider window, or a faster disk, none is longer. The ops have very different lengths, and take very
// different times for a byte; the room is for a part.
func TestPredictBounds(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 2))
		s := NewSchedule(randomCycle(seed), pages.MinBlock, 4*mibs)
		var times opTimes
		for _, read := range s.Reads {
			times.reads = append(times.reads, float64(read.Length)/(0.5+4*r.Float64()))
			times.gaps = append(times.gaps, float64(r.Int64N(5)*r.Int64N(2)*msec))
		}
		times.gaps = append(times.gaps, 0)
		h := newHelping(s)
		room, window, disk := int64((0.2+0.7*r.Float64())*float64(s.Bytes)), int64(8*mibs), (0.3+r.Float64())*1e9
		for _, b := range (Auto{}).Plan(Input{Schedule: s, Held: h.held, Room: room, Window: window}).Hold {
			h.held[b] = true
		}
		var streamed float64
		for _, v := range s.Visits {
			if !h.held[v.Block] {
				streamed += float64(s.Blocks[v.Block].Length) / disk * 1e9
			}
		}
		token, compute := h.predict(window, times, disk), times.compute()
		if float64(token) < max(compute, streamed)*0.999 {
			t.Errorf("seed %d: %v, of which %.0f ns compute and %.0f read", seed, token, compute, streamed)
		}
		if float64(token) > (compute+streamed)*1.001 {
			t.Errorf("seed %d: %v, one after the other would take %.0f ns", seed, token, compute+streamed)
		}
		if w, f := h.predict(2*window, times, disk), h.predict(window, times, 2*disk); w > token+token/1000 || f > token+token/1000 {
			t.Errorf("seed %d: %v, with a wider window %v, with a faster disk %v", seed, token, w, f)
		}
	}
}
