package plan

// This file tests which blocks strategies hold and give back.

import (
	"slices"
	"testing"
	"time"

	"tensorcast/prefetch/pages"
)

// Blocks are picked up to a budget, evenly over the order of use.
func TestSpread(t *testing.T) {
	s := NewSchedule(sequence(100*mib, 100*mib), pages.MinBlock, 0)
	var all []int
	for b := range s.Blocks {
		all = append(all, b)
	}
	for _, share := range []float64{0, 0.1, 0.5, 0.85, 1, 2} {
		budget := int64(share * float64(s.Bytes))
		for name, picked := range map[string][]int{
			"at most": s.pickAtMost(all, budget), "at least": s.pickAtLeast(all, budget),
		} {
			bytes := s.sumBytes(picked)
			if name == "at most" && bytes > budget || name == "at least" && bytes < min(budget, s.Bytes) {
				t.Errorf("share %v: picked %d bytes, want %s %d", share, bytes, name, budget)
			}
			if off := bytes - min(budget, s.Bytes); off < -2*pages.MinBlock || off > 2*pages.MinBlock {
				t.Errorf("share %v, %s: %d bytes off a budget of %d, want at most %d off",
					share, name, off, budget, 2*pages.MinBlock)
			}
			// Each tenth of the order has its share, give or take two blocks.
			for tenth := range 10 {
				n := 0
				for _, b := range picked {
					if b*10/len(s.Blocks) == tenth {
						n++
					}
				}
				if want := min(share, 1) * float64(len(s.Blocks)) / 10; float64(n) < want-2 || float64(n) > want+2 {
					t.Errorf("share %v, %s: tenth %d has %d blocks, want about %.0f", share, name, tenth, n, want)
				}
			}
		}
	}
}

// What a strategy that streams nothing holds lies together, and so does what it leaves. This holds when the room
// grows and when it shrinks.
func TestTogether(t *testing.T) {
	s := NewSchedule(sequence(100*mib, 100*mib), pages.MinBlock, 0)
	held := make([]bool, len(s.Blocks))
	for _, room := range []int64{40 * mib, 90 * mib, 20 * mib, 0, 300 * mib} {
		p := Pin{}.Plan(Input{Schedule: s, Held: held, Room: room})
		for _, b := range p.Hold {
			held[b] = true
		}
		for _, b := range p.Release {
			held[b] = false
		}
		var all []int
		for b := range held {
			if held[b] {
				all = append(all, b)
			}
		}
		if bytes := s.sumBytes(all); bytes > room || bytes < min(room, s.Bytes)-pages.MinBlock ||
			bytes > 0 && s.Blocks[all[len(all)-1]].End() != s.Blocks[all[0]].Offset+bytes {
			t.Errorf("room for %d bytes: %d held in blocks %v, want about as many, without a gap", room, bytes, all)
		}
	}
}

// What is foreseen follows from the numbers that are given. Of 200 MiB, 20 are left free or used by prefetchd itself,
// and some are for the window. The disk is slower than computing.
func TestForesee(t *testing.T) {
	c := sequence(100*mib, 100*mib, 100*mib, 100*mib)
	const compute, disk = 40 * time.Millisecond, 1e9
	auto, pin := Foresee(c, Auto{}, 200*mib, compute, disk), Foresee(c, Pin{}, 200*mib, compute, disk)
	for name, f := range map[string]Foreseen{"auto": auto, "pin": pin} {
		var held int64
		for _, r := range f.Held {
			held += r.Length
		}
		if f.Room != 180*mib || f.Window < 8*mib || f.Window > 40*mib ||
			held > f.Room-f.Window || held < f.Room-f.Window-4*mib ||
			f.Missed < 400*mib-held || f.Missed > 404*mib-held {
			t.Errorf("%s: room for %d bytes, a window of %d, %d held, %d missed; "+
				"want room for %d, a window of 8 to 40 MiB, the rest held, and what is not held missed",
				name, f.Room, f.Window, held, f.Missed, 180*mib)
		}
	}
	least := time.Duration(float64(auto.Missed) / disk * 1e9)
	if auto.Token < least || auto.Token > least+compute || pin.Token != 0 {
		t.Errorf("a token takes %v, and %v for pin; want %v to %v, and 0 because it is not known",
			auto.Token, pin.Token, least, least+compute)
	}
	f := Foresee(c, Auto{}, 500*mib, compute, disk)
	if f.Missed != 0 || f.Token < compute-time.Microsecond || f.Token > compute+time.Microsecond {
		t.Errorf("all in memory: a token takes %v, %d bytes missed; want about %v, 0", f.Token, f.Missed, compute)
	}
	if f := Foresee(c, Auto{}, 0, compute, disk); len(f.Held) != 0 || f.Missed < 400*mib {
		t.Errorf("no memory: %d blocks held, %d bytes missed; want none, at least %d", len(f.Held), f.Missed, 400*mib)
	}
}

// What a token needs several times is held first, and given back last. If it were streamed, it would be read as many
// times.
func TestOftenFirst(t *testing.T) {
	c := sequence(3*mib, 40*mib, 40*mib)
	c.Reads = append(c.Reads, c.Reads[0], c.Reads[1], c.Reads[0])
	s := NewSchedule(c, pages.MinBlock, 0)
	held := make([]bool, len(s.Blocks))
	in := Input{Schedule: s, Held: held, Room: 3 * mib}
	for _, b := range (Auto{}).Plan(in).Hold {
		held[b] = true
		if s.Uses[b] < 2 {
			t.Errorf("block %d, of %d visit, is held first, want one of several", b, s.Uses[b])
		}
	}
	for b := range held {
		held[b] = true
	}
	in.Room = 60 * mib
	for _, b := range (Auto{}).Plan(in).Release {
		if s.Uses[b] > 1 {
			t.Errorf("block %d, of %d visits, is given back first, want one of a single visit", b, s.Uses[b])
		}
	}
	in.Room = 0
	if p := (Auto{}).Plan(in); len(p.Release) != len(held) {
		t.Errorf("no room: %d blocks are given back, want all %d", len(p.Release), len(held))
	}
}

// A strategy never holds more than fits beside the window. What is held stays as far as it can. A plan that was
// carried out asks for nothing more.
func TestStrategies(t *testing.T) {
	s := NewSchedule(randomCycle(5), pages.MinBlock, 4*mib)
	for _, strategy := range Strategies() {
		parsed, err := ParseStrategy(strategy.Name())
		if err != nil || parsed != strategy {
			t.Fatalf("ParseStrategy(%q) = %v, %v, want %v", strategy.Name(), parsed, err, strategy)
		}
		held := make([]bool, len(s.Blocks))
		for _, share := range []float64{0.5, 0.8, 0.3, 1.5, 0, 0.6} {
			in := Input{Schedule: s, Held: held, Room: int64(share * float64(s.Bytes)), Window: 8 * mib}
			p := strategy.Plan(in)
			if len(p.Hold) > 0 && len(p.Release) > 0 {
				t.Errorf("%s at %v holds %d blocks and releases %d, want only one of both",
					strategy.Name(), share, len(p.Hold), len(p.Release))
			}
			for _, b := range p.Release {
				if !held[b] {
					t.Fatalf("%s releases block %d, want only blocks that are held", strategy.Name(), b)
				}
				held[b] = false
			}
			for _, b := range p.Hold {
				if held[b] {
					t.Fatalf("%s holds block %d, want only blocks that are not held yet", strategy.Name(), b)
				}
				held[b] = true
			}
			if !slices.IsSorted(p.Hold) {
				t.Errorf("%s at %v holds %v, want the order of use", strategy.Name(), share, p.Hold)
			}
			var sum int64
			for b, is := range held {
				if is {
					sum += s.Blocks[b].Length
				}
			}
			want := min(max(in.Room-in.Window, 0), s.Bytes)
			if strategy.Name() == "stream" {
				want = 0
			}
			if p.Budget != want || sum > want || sum < want-2*pages.MinBlock {
				t.Errorf("%s at %v: %d bytes held, budget %d, want %d", strategy.Name(), share, sum, p.Budget, want)
			}
			if again := strategy.Plan(in); s.sumBytes(again.Hold) > 2*pages.MinBlock || again.Release != nil {
				t.Errorf("%s at %v: the next plan is %+v, want no change", strategy.Name(), share, again)
			}
		}
	}
	if _, err := ParseStrategy("all"); err == nil {
		t.Error(`ParseStrategy("all") = nil, want an error`)
	}
}
