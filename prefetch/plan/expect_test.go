package plan

// This file tests the expected time of a token.

import (
	"math/rand/v2"
	"testing"
	"time"

	"tensorcast/prefetch/pages"
)

const msec = int64(time.Millisecond)

// newTimedSchedule is a schedule of aligned reads, with the times of their ops. lengths are in MiB, reads and gaps in
// ms.
func newTimedSchedule(lengths, reads, gaps []int64) (*Schedule, OpTimes) {
	c := sequence(lengths...)
	t := OpTimes{Gaps: make([]float64, len(lengths)+1)}
	for i := range c.Reads {
		c.Reads[i].Offset = (c.Reads[i].Offset - 4096) * mib
		c.Reads[i].Length *= mib
		t.Reads = append(t.Reads, float64(reads[i]*msec))
	}
	for i, n := range gaps {
		t.Gaps[i] = float64(n * msec)
	}
	return NewSchedule(c, pages.MinBlock, 0), t
}

// The expected time is compared with closed forms. The disk reads a mebibyte in a millisecond.
func TestPredict(t *testing.T) {
	const disk = 1000 * mib
	even := []int64{8, 8, 8, 8}
	for _, tc := range []struct {
		name                 string
		window               int64 // MiB
		lengths, reads, gaps []int64
		held                 int // how many of the first blocks are held
		disk                 float64
		want                 int64 // ms
	}{
		{"all is held: only computing counts", 8, even, []int64{1, 2, 3, 4}, []int64{0, 1, 0, 1, 3}, 32, disk, 15},
		{"nothing is known but the disk", 8, even, []int64{0, 0, 0, 0}, nil, 0, disk, 32},
		{"the disk is slower", 16, even, []int64{1, 1, 1, 1}, nil, 0, disk, 32},
		{"the target is slower", 16, even, []int64{20, 20, 20, 20}, nil, 0, disk, 80},
		{"a share of the bytes is read", 8, even, []int64{0, 0, 0, 0}, nil, 20, disk, 12},
		// The ops of the 16 MiB that are held take 60 ms. Meanwhile the disk fills the window of 8 MiB, and no more.
		// The other two ops take 1 ms each: the 8 MiB of the first are there, the second waits for its 8.
		{
			"the window bounds what is read during held ops",
			8, even, []int64{30, 30, 1, 1}, nil, 16, disk, 60 + 1 + 8 + 1 - 1,
		},
		// What the op has passed leaves the window before the op is over.
		{
			"an op larger than the window, which computes longer than the disk reads",
			8, []int64{32}, []int64{64}, []int64{8, 0}, 0, disk, 8 + 64,
		},
		{"a bandwidth that is not known", 8, even, []int64{1, 1, 1, 1}, nil, 0, 0, 0},
	} {
		s, times := newTimedSchedule(tc.lengths, tc.reads, tc.gaps)
		held := make([]bool, len(s.Blocks))
		for b := range held[:tc.held] {
			held[b] = true
		}
		want := time.Duration(tc.want * msec)
		got := s.ExpectToken(held, tc.window*mib, Lead(pages.MinBlock, pages.MinBlock), times, tc.disk)
		if got < want-want/100 || got > want+want/100 {
			t.Errorf("%s: %v, want %v", tc.name, got, want)
		}
	}
	// If blocks are smaller than what is read at once, they do not leave the window before the op is over. So the op
	// waits for the other 24 ms of disk.
	s, times := newTimedSchedule([]int64{32}, []int64{64}, []int64{8, 0})
	got := s.ExpectToken(make([]bool, len(s.Blocks)), 8*mib, Lead(pages.MinBlock, 2*pages.MinBlock), times, disk)
	if want := time.Duration((8 + 64 + 24) * msec); got < want-want/100 || got > want+want/100 {
		t.Errorf("a weight larger than the window, in small blocks: %v, want %v", got, want)
	}
}

// No token is shorter than its computing, or than the disk's time for it. With a wider window, or a faster disk, none
// is longer. The ops' lengths and times per byte differ widely, and there is room for a part of the bytes.
func TestPredictBounds(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 2))
		s := NewSchedule(randomCycle(seed), pages.MinBlock, 4*mib)
		var times OpTimes
		for _, read := range s.Reads {
			times.Reads = append(times.Reads, float64(read.Length)/(0.5+4*r.Float64()))
			times.Gaps = append(times.Gaps, float64(r.Int64N(5)*r.Int64N(2)*msec))
		}
		times.Gaps = append(times.Gaps, 0)
		held := make([]bool, len(s.Blocks))
		room, window, disk := int64((0.2+0.7*r.Float64())*float64(s.Bytes)), int64(8*mib), (0.3+r.Float64())*1e9
		for _, b := range (Auto{}).Plan(Input{Schedule: s, Held: held, Room: room, Window: window}).Hold {
			held[b] = true
		}
		var streamed float64
		for _, v := range s.Visits {
			if !held[v.Block] {
				streamed += float64(s.Blocks[v.Block].Length) / disk * 1e9
			}
		}
		expect := func(window int64, disk float64) time.Duration {
			return s.ExpectToken(held, window, Lead(pages.MinBlock, pages.MinBlock), times, disk)
		}
		token, compute := expect(window, disk), times.Sum()
		if float64(token) < max(compute, streamed)*0.999 {
			t.Errorf("seed %d: %v, want at least the %.0f ns of computing and the %.0f of reading",
				seed, token, compute, streamed)
		}
		if float64(token) > (compute+streamed)*1.001 {
			t.Errorf("seed %d: %v, want at most %.0f ns, one after the other", seed, token, compute+streamed)
		}
		if w, f := expect(2*window, disk), expect(window, 2*disk); w > token+token/1000 || f > token+token/1000 {
			t.Errorf("seed %d: with a wider window %v, with a faster disk %v, want at most %v", seed, w, f, token)
		}
	}
}
