package plan

// This file tests how the reads of a token become a schedule of blocks and visits.

import (
	"math/rand/v2"
	"slices"
	"testing"

	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

const mib = 1 << 20

// sequence is a cycle of reads of the given lengths in bytes, one behind the other in the file from byte 4096 on.
func sequence(lengths ...int64) *pattern.Cycle {
	c := &pattern.Cycle{}
	offset := int64(4096)
	for _, l := range lengths {
		c.Reads = append(c.Reads, pattern.CycleRead{Offset: offset, Length: l, Nanos: -1})
		offset += l
	}
	return c
}

// randomCycle is a cycle of 60 reads of random lengths up to 9 MiB, in an order that is not that of the file.
func randomCycle(seed uint64) *pattern.Cycle {
	r := rand.New(rand.NewPCG(seed, 1))
	lengths := make([]int64, 60)
	for i := range lengths {
		if i%3 == 0 {
			lengths[i] = 4096 // a norm
		} else {
			lengths[i] = r.Int64N(9*mib)/4096*4096 + 4096
		}
	}
	c := sequence(lengths...)
	r.Shuffle(len(c.Reads), func(i, j int) { c.Reads[i], c.Reads[j] = c.Reads[j], c.Reads[i] })
	return c
}

// Whenever a read is under way, each of its bytes lies in a block that is held or that a visit keeps in memory.
func TestScheduleCoversReads(t *testing.T) {
	for seed := range uint64(20) {
		s := NewSchedule(randomCycle(seed), pages.MinBlock, 8*mib)
		held := make([]bool, len(s.Blocks))
		for _, b := range (Auto{}).Plan(Input{Schedule: s, Held: held, Room: s.Bytes / 2}).Hold {
			held[b] = true
		}
		stream := slices.DeleteFunc(slices.Clone(s.Visits), func(v Visit) bool { return held[v.Block] })
		for i, r := range s.Reads {
			covered := int64(0)
			for n, b := range s.Blocks {
				overlap := min(b.End(), r.End()) - max(b.Offset, r.Offset)
				if overlap <= 0 {
					continue
				}
				present := held[n]
				for _, v := range stream {
					present = present || v.Block == n && v.From <= i && i <= v.To
				}
				if present {
					covered += overlap
				}
			}
			if covered != r.Length {
				t.Fatalf("seed %d: %d bytes of read %d are in memory while it is under way, want all %d",
					seed, covered, i, r.Length)
			}
		}
		for i := 1; i < len(stream); i++ {
			if stream[i].From < stream[i-1].From {
				t.Fatalf("seed %d: visit %d begins with read %d, after one that begins with %d; want the order of use",
					seed, i, stream[i].From, stream[i-1].From)
			}
		}
	}
}

// Blocks do not overlap, are aligned, and cover little more than the reads.
func TestBlocks(t *testing.T) {
	s := NewSchedule(randomCycle(3), pages.MinBlock, 0)
	var total int64
	for _, r := range s.Reads {
		total += r.Length
	}
	seen := map[int64]bool{}
	for _, b := range s.Blocks {
		if b.Offset%4096 != 0 || b.Length%4096 != 0 || b.Length > pages.MinBlock || b.Length <= 0 ||
			b.Offset/pages.MinBlock != (b.End()-1)/pages.MinBlock {
			t.Errorf("block [%d, +%d), want whole pages of one aligned block of %d", b.Offset, b.Length, pages.MinBlock)
		}
		if seen[b.Offset/pages.MinBlock] {
			t.Errorf("two blocks around %d, want one", b.Offset)
		}
		seen[b.Offset/pages.MinBlock] = true
	}
	if s.Bytes != total {
		t.Errorf("blocks have %d bytes, want the reads' %d", s.Bytes, total)
	}
}

// Which rows a token gathers depends on the token. So they are not part of the schedule.
func TestGathersAreLeftOut(t *testing.T) {
	c := sequence(mib, 100*mib, mib)
	c.Reads[1].Slice, c.Reads[1].Slices = mib, 2
	if s := NewSchedule(c, pages.MinBlock, 0); len(s.Reads) != 2 || s.Bytes > 4*mib || len(s.Blocks) > 4 {
		t.Errorf("%d reads, %d bytes in %d blocks; want 2 reads, at most %d bytes in at most 4 blocks",
			len(s.Reads), s.Bytes, len(s.Blocks), 4*mib)
	}
}

// A block that is used twice stays if little is read in between. Otherwise it is read again.
func TestVisits(t *testing.T) {
	again := sequence(mib/2, 3*mib, mib/4)
	again.Reads = append(again.Reads, again.Reads[0])
	for _, tc := range []struct {
		near   int64
		visits int
	}{{0, 2}, {mib/4 - 1, 2}, {mib / 4, 1}} {
		s := NewSchedule(again, pages.MinBlock, tc.near)
		n := 0
		for _, v := range s.Visits {
			if s.Blocks[v.Block].Offset == 4096 { // only reads 0, 1 and 3 lie in it
				n++
			}
		}
		if n != tc.visits {
			t.Errorf("near %d: %d visits, want %d", tc.near, n, tc.visits)
		}
	}
}

func TestScheduleOfHugeModel(t *testing.T) {
	c := &pattern.Cycle{}
	for i := range 200 {
		c.Reads = append(c.Reads, pattern.CycleRead{Offset: int64(i) << 30, Length: 1 << 30})
	}
	if s := NewSchedule(c, pages.MinBlock, 0); len(s.Blocks) > MaxBlocks || s.Bytes != 200<<30 {
		t.Errorf("%d blocks, %d bytes; want at most %d blocks, %d bytes",
			len(s.Blocks), s.Bytes, MaxBlocks, int64(200<<30))
	}
}
