package plan

import (
	"slices"
	"tensorcast/prefetch/pages"
	"testing"
	"time"
)

func TestSpread(t *testing.T) {
	s := NewSchedule(sequence(100*mib, 100*mib), pages.MinBlock, 0)
	var all []int
	for b := range s.Blocks {
		all = append(all, b)
	}
	for _, share := range []float64{0, 0.1, 0.5, 0.85, 1, 2} {
		budget := int64(share * float64(s.Bytes))
		for name, picked := range map[string][]int{"at most": s.pickAtMost(all, budget), "at least": s.pickAtLeast(all, budget)} {
			bytes := s.sumBytes(picked)
			if name == "at most" && bytes > budget || name == "at least" && bytes < min(budget, s.Bytes) {
				t.Errorf("share %v: %d bytes, %s %d", share, bytes, name, budget)
			}
			if off := bytes - min(budget, s.Bytes); off < -2*pages.MinBlock || off > 2*pages.MinBlock {
				t.Errorf("share %v, %s: %d bytes off a budget of %d", share, name, off, budget)
			}
			// Evenly: every tenth of the order has its share, give or take a block.
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

// What a strategy that streams nothing holds lies together, and so does what it leaves, when the room grows and when
// it shrinks.
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
		if bytes := s.sumBytes(all); bytes > room || bytes < min(room, s.Bytes)-pages.MinBlock || bytes > 0 && s.Blocks[all[len(all)-1]].End() != s.Blocks[all[0]].Offset+bytes {
			t.Errorf("room for %d bytes: %d in blocks %v", room, bytes, all)
		}
	}
}

// What is foreseen follows from what is planted: 200 MiB of which 32 are left free or taken for itself, and some for
// the window, and a disk that is slower than computing.
func TestForesee(t *testing.T) {
	c := sequence(100*mib, 100*mib, 100*mib, 100*mib)
	const compute, disk = 40 * time.Millisecond, 1e9
	auto, pin := Foresee(c, Auto{}, 200*mib, compute, disk), Foresee(c, Pin{}, 200*mib, compute, disk)
	for name, f := range map[string]Foreseen{"auto": auto, "pin": pin} {
		var held int64
		for _, r := range f.Held {
			held += r.Length
		}
		if f.Room != 180*mib || f.Window < 8*mib || f.Window > 40*mib || held > f.Room-f.Window || held < f.Room-f.Window-4*mib || f.Missed < 400*mib-held || f.Missed > 404*mib-held {
			t.Errorf("%s: %d bytes held, missed %d, window %d, room %d", name, held, f.Missed, f.Window, f.Room)
		}
	}
	if least := time.Duration(float64(auto.Missed) / disk * 1e9); auto.Token < least || auto.Token > least+compute || pin.Token != 0 {
		t.Errorf("a token takes %v, and %v for pin; the disk %v", auto.Token, pin.Token, least)
	}
	if f := Foresee(c, Auto{}, 500*mib, compute, disk); f.Missed != 0 || f.Token < compute-time.Microsecond || f.Token > compute+time.Microsecond {
		t.Errorf("all in memory: %v, %d bytes missed", f.Token, f.Missed)
	}
	if f := Foresee(c, Auto{}, 0, compute, disk); len(f.Held) != 0 || f.Missed < 400*mib {
		t.Errorf("no memory: %d blocks held, %d bytes missed", len(f.Held), f.Missed)
	}
}

// What a token needs several times is held first, and given back last: streamed, it would be read as often.
func TestOftenFirst(t *testing.T) {
	c := sequence(3*mib, 40*mib, 40*mib)
	c.Reads = append(c.Reads, c.Reads[0], c.Reads[1], c.Reads[0])
	s := NewSchedule(c, pages.MinBlock, 0)
	held := make([]bool, len(s.Blocks))
	in := Input{Schedule: s, Held: held, Room: 3 * mib}
	for _, b := range (Auto{}).Plan(in).Hold {
		held[b] = true
		if s.Uses[b] < 2 {
			t.Errorf("block %d, of one visit, is held first", b)
		}
	}
	for b := range held {
		held[b] = true
	}
	in.Room = 60 * mib
	for _, b := range (Auto{}).Plan(in).Release {
		if s.Uses[b] > 1 {
			t.Errorf("block %d, of %d visits, is given back first", b, s.Uses[b])
		}
	}
	in.Room = 0
	if p := (Auto{}).Plan(in); len(p.Release) != len(held) {
		t.Errorf("%d of %d blocks are given back where there is no room", len(p.Release), len(held))
	}
}

// What a strategy decides: never more than fits beside the window, what is held stays as far as it can, and a plan
// that was carried out asks for nothing more.
func TestStrategies(t *testing.T) {
	s := NewSchedule(randomCycle(5), pages.MinBlock, 4*mib)
	for _, strategy := range Strategies() {
		parsed, err := ParseStrategy(strategy.Name())
		if err != nil || parsed != strategy {
			t.Fatalf("%s is read as %v, %v", strategy.Name(), parsed, err)
		}
		held := make([]bool, len(s.Blocks))
		for _, share := range []float64{0.5, 0.8, 0.3, 1.5, 0, 0.6} {
			in := Input{Schedule: s, Held: held, Room: int64(share * float64(s.Bytes)), Window: 8 * mib}
			p := strategy.Plan(in)
			if len(p.Hold) > 0 && len(p.Release) > 0 {
				t.Errorf("%s at %v holds and releases", strategy.Name(), share)
			}
			for _, b := range p.Release {
				if !held[b] {
					t.Fatalf("%s releases block %d, which is not held", strategy.Name(), b)
				}
				held[b] = false
			}
			for _, b := range p.Hold {
				if held[b] {
					t.Fatalf("%s holds block %d twice", strategy.Name(), b)
				}
				held[b] = true
			}
			if !slices.IsSorted(p.Hold) {
				t.Errorf("%s holds in another order than that of use", strategy.Name())
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
				t.Errorf("%s at %v is not satisfied with its own plan: %+v", strategy.Name(), share, again)
			}
		}
	}
	if _, err := ParseStrategy("all"); err == nil {
		t.Error("no error for a strategy that does not exist")
	}
}
