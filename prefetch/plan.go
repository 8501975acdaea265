package prefetch

// This file is the planner: what of a schedule is held in memory, and what is streamed. It is pure: the same input gives the same plan, and nothing is asked or
// touched.

import (
	"fmt"
	"slices"
	"strings"
	"tensorcast/prefetch/pages"
)

// Input is what a strategy decides from.
type Input struct {
	Schedule *Schedule
	Held     []bool // by block: held now
	Room     int64  // bytes of the model that may be in memory, a reserve taken off
	Window   int64  // of that, bytes that may be read ahead or wait to be paged out while the rest is streamed
}

// Plan is what a strategy decides.
type Plan struct {
	Budget  int64 // bytes that may be held
	Hold    []int // blocks to hold besides those that are held, in the order of use
	Release []int // of those that are held, blocks to give back
}

// Strategy is a way to share the room between what is held and what is streamed. Plan is a pure function.
type Strategy interface {
	Name() string
	Plan(in Input) Plan
	Streams() bool // what is not held is read ahead of its use; else the target reads it. Both are paged out behind
}

// Strategies lists all, the default first.
func Strategies() []Strategy { return []Strategy{Auto{}, Pin{}, Stream{}, Pattern{}} }

// StrategyNames are the names that ParseStrategy knows, that of the default first.
func StrategyNames() []string {
	var names []string
	for _, s := range Strategies() {
		names = append(names, s.Name())
	}
	return append(names, formerAuto)
}

// formerAuto is what Auto was called before there were plans.
const formerAuto = "both"

// ParseStrategy finds a strategy by its name.
func ParseStrategy(name string) (Strategy, error) {
	if name == formerAuto {
		return Auto{}, nil
	}
	for _, s := range Strategies() {
		if s.Name() == name {
			return s, nil
		}
	}
	return nil, fmt.Errorf("strategy %q is not one of %s", name, strings.Join(StrategyNames(), ", "))
}

// planSpread holds budget bytes. First those blocks that a token needs more than once: to stream one costs its bytes each time. The others are spread evenly over the file, and so over each
// weight: while held blocks are being computed there is always something to read from disk, and as few blocks as can be are streamed in a row. A row of blocks that are read ahead ends where one is held,
// as a block is read as a large folio only where what follows it is in memory (see Pages.ReadAhead).
// What is held already stays, as far as the budget allows.
func planSpread(in Input, budget int64) Plan {
	s := in.Schedule
	p := Plan{Budget: min(max(budget, 0), s.Bytes)}
	var held, rest []int
	for b := range s.Blocks {
		if in.Held[b] {
			held = append(held, b)
		} else {
			rest = append(rest, b)
		}
	}
	switch have := s.bytes(held); {
	case have > p.Budget:
		once, often := s.byVisits(held)
		p.Release = s.spreadAtLeast(once, have-p.Budget)
		if freed := s.bytes(p.Release); freed < have-p.Budget {
			p.Release = append(p.Release, s.spreadAtLeast(often, have-p.Budget-freed)...)
		}
	case have < p.Budget:
		once, often := s.byVisits(rest)
		p.Hold = s.spread(often, p.Budget-have)
		p.Hold = append(p.Hold, s.spread(once, p.Budget-have-s.bytes(p.Hold))...)
		slices.Sort(p.Hold)
	}
	return p
}

// planTogether holds budget bytes as planSpread does, but what a token needs once as a run from the beginning of the files on. What is left to the target lies together then: its faults read
// around themselves, and find nothing there that they need not read, and readahead goes on.
func planTogether(in Input, budget int64) Plan {
	s := in.Schedule
	p := Plan{Budget: min(max(budget, 0), s.Bytes)}
	var held, rest []int
	for b := range s.Blocks {
		if in.Held[b] {
			held = append(held, b)
		} else {
			rest = append(rest, b)
		}
	}
	if have := s.bytes(held); have > p.Budget {
		once, often := s.byVisits(held)
		slices.Reverse(once)
		for _, b := range append(once, often...) {
			if have <= p.Budget {
				break
			}
			p.Release = append(p.Release, b)
			have -= s.Blocks[b].Length
		}
	} else {
		once, often := s.byVisits(rest)
		for _, b := range append(often, once...) {
			if have += s.Blocks[b].Length; have > p.Budget {
				break
			}
			p.Hold = append(p.Hold, b)
		}
		slices.Sort(p.Hold)
	}
	return p
}

// byVisits parts blocks that a token needs once from those that it needs several times, both in the order of the files.
func (s *Schedule) byVisits(blocks []int) (once, often []int) {
	for _, b := range blocks {
		if s.uses[b] > 1 {
			often = append(often, b)
		} else {
			once = append(once, b)
		}
	}
	for _, all := range [][]int{once, often} {
		slices.SortFunc(all, func(a, b int) int { return pages.CompareRanges(s.Blocks[a], s.Blocks[b]) })
	}
	return once, often
}

// spread picks candidates (indices of blocks) of about budget bytes in all, and not more, spread
// evenly over their order.
func (s *Schedule) spread(candidates []int, budget int64) []int {
	total := s.bytes(candidates)
	if budget >= total {
		return slices.Clone(candidates)
	}
	if budget <= 0 {
		return nil
	}
	share := float64(budget) / float64(total)
	var picked []int
	var bytes, seen int64
	for _, b := range candidates {
		length := s.Blocks[b].Length
		seen += length
		if float64(bytes+length) <= float64(seen)*share { // bytes follows seen * share from below
			picked = append(picked, b)
			bytes += length
		}
	}
	return picked
}

// spreadAtLeast picks candidates of at least bytes, if they have as many, spread evenly over their order.
func (s *Schedule) spreadAtLeast(candidates []int, bytes int64) []int {
	total := s.bytes(candidates)
	if bytes >= total {
		return slices.Clone(candidates)
	}
	share := float64(bytes) / float64(total)
	var picked []int
	var have, seen int64
	for _, b := range candidates {
		seen += s.Blocks[b].Length
		if float64(have) < float64(seen)*share { // have follows seen * share from above
			picked = append(picked, b)
			have += s.Blocks[b].Length
		}
	}
	return picked
}
