package prefetch

import (
	"math/rand/v2"
	"testing"
)

// sequence makes reads of the given lengths, one behind the other in the file from byte 4096 on, each address its
// offset plus a base.
func sequence(lengths ...int64) []Read {
	var reads []Read
	offset := int64(4096)
	for _, l := range lengths {
		reads = append(reads, Read{Offset: offset, Length: l, Address: 0x7f0000000000 + uint64(offset)})
		offset += l
	}
	return reads
}

const mib = 1 << 20

func randomReads(seed uint64) []Read {
	r := rand.New(rand.NewPCG(seed, 1))
	lengths := make([]int64, 60)
	for i := range lengths {
		if i%3 == 0 {
			lengths[i] = 4096 // a norm
		} else {
			lengths[i] = r.Int64N(9*mib)/4096*4096 + 4096
		}
	}
	reads := sequence(lengths...)
	r.Shuffle(len(reads), func(i, j int) { reads[i], reads[j] = reads[j], reads[i] }) // file order is not access order
	return reads
}

// Whenever a read is under way, each of its bytes lies in a block that is pinned or that a visit keeps in memory.
func TestPlanCoversReads(t *testing.T) {
	for seed := range uint64(20) {
		reads := randomReads(seed)
		p := newPlan(reads, 8*mib)
		pins, _ := p.spread(p.where(false), p.bytes/2)
		for _, b := range pins {
			p.blocks[b].pinned = true
		}
		stream := p.streamed()
		for i, r := range reads {
			covered := int64(0)
			for n, b := range p.blocks {
				if b.address-uint64(b.offset) != 0x7f0000000000 {
					t.Fatalf("block at %d has address %#x", b.offset, b.address)
				}
				overlap := min(b.offset+b.length, r.End()) - max(b.offset, r.Offset)
				if overlap <= 0 {
					continue
				}
				present := b.pinned
				for _, v := range stream {
					present = present || v.block == n && v.from <= i && i <= v.to
				}
				if present {
					covered += overlap
				}
			}
			if covered != r.Length {
				t.Fatalf("seed %d: %d of %d bytes of read %d are in memory when it is under way", seed, covered, r.Length, i)
			}
		}
		for i := 1; i < len(stream); i++ {
			if stream[i].from < stream[i-1].from {
				t.Fatalf("the stream is not in the order of use at %d", i)
			}
		}
	}
}

// Blocks do not overlap, are aligned, and cover little more than the reads.
func TestPlanBlocks(t *testing.T) {
	p := newPlan(randomReads(3), 0)
	var total int64
	for _, r := range p.reads {
		total += r.Length
	}
	seen := map[int64]bool{}
	for _, b := range p.blocks {
		if b.offset%4096 != 0 || b.length%4096 != 0 || b.length > minBlock || b.length <= 0 || b.offset/minBlock != (b.offset+b.length-1)/minBlock {
			t.Errorf("block [%d, +%d) is not aligned", b.offset, b.length)
		}
		if seen[b.offset/minBlock] {
			t.Errorf("two blocks at %d", b.offset)
		}
		seen[b.offset/minBlock] = true
	}
	if p.bytes != total {
		t.Errorf("blocks have %d bytes, contiguous reads %d", p.bytes, total)
	}
}

// A block that is used twice is kept if little is read in between, else read again.
func TestVisits(t *testing.T) {
	reads := sequence(mib/2, 3*mib, mib/4)
	again := append(reads, reads[0])
	for _, tc := range []struct {
		near   int64
		visits int
	}{{0, 2}, {mib/4 - 1, 2}, {mib / 4, 1}} {
		p := newPlan(again, tc.near)
		n := 0
		for _, v := range p.visits {
			if p.blocks[v.block].offset == 4096 { // only reads 0, 1 and 3 lie in it
				n++
			}
		}
		if n != tc.visits {
			t.Errorf("near %d: %d visits, want %d", tc.near, n, tc.visits)
		}
	}
}

func TestSpread(t *testing.T) {
	p := newPlan(sequence(100*mib, 100*mib), 0)
	for _, share := range []float64{0, 0.1, 0.5, 0.85, 1, 2} {
		budget := int64(share * float64(p.bytes))
		picked, bytes := p.spread(p.where(false), budget)
		if bytes > budget || bytes < min(budget, p.bytes)-2*minBlock {
			t.Errorf("share %v: %d bytes of a budget of %d", share, bytes, budget)
		}
		// Evenly: every tenth of the order has its share, give or take a block.
		for tenth := range 10 {
			n := 0
			for _, b := range picked {
				if b*10/len(p.blocks) == tenth {
					n++
				}
			}
			if want := min(share, 1) * float64(len(p.blocks)) / 10; float64(n) < want-2 || float64(n) > want+2 {
				t.Errorf("share %v: tenth %d has %d pins, want about %.0f", share, tenth, n, want)
			}
		}
	}
}

func TestPlanOfHugeModel(t *testing.T) {
	var reads []Read
	for i := range 200 {
		reads = append(reads, Read{Offset: int64(i) << 30, Length: 1 << 30, Address: uint64(i) << 30})
	}
	if p := newPlan(reads, 0); len(p.blocks) > maxBlocks || p.bytes != 200<<30 {
		t.Errorf("%d blocks, %d bytes", len(p.blocks), p.bytes)
	}
}
