package plan

// This file chooses which blocks are held, for a budget of bytes.

import (
	"slices"

	"tensorcast/prefetch/pages"
)

// spreadOverFile holds budget bytes. Blocks that a token needs more than once come first, because streaming
// one costs its bytes each time. The others are spread evenly over the file, and so over each weight. Then
// there is always something to read from disk while held blocks are computed, and as few blocks as possible
// are streamed in a row. A row of streamed blocks ends at a held one, which is needed: a block is read as a
// large folio only where the block behind it is in memory (see the head of pages/kernel.go). What is held
// already stays, as far as the budget allows.
func spreadOverFile(in Input, budget int64) Plan {
	s := in.Schedule
	p := Plan{Budget: min(max(budget, 0), s.Bytes)}
	held, rest := splitHeld(in)
	switch have := s.sumBytes(held); {
	case have > p.Budget:
		once, often := s.splitByUses(held)
		p.Release = s.pickAtLeast(once, have-p.Budget)
		if freed := s.sumBytes(p.Release); freed < have-p.Budget {
			p.Release = append(p.Release, s.pickAtLeast(often, have-p.Budget-freed)...)
		}
	case have < p.Budget:
		once, often := s.splitByUses(rest)
		p.Hold = s.pickAtMost(often, p.Budget-have)
		p.Hold = append(p.Hold, s.pickAtMost(once, p.Budget-have-s.sumBytes(p.Hold))...)
		slices.Sort(p.Hold)
	}
	return p
}

// holdTogether holds budget bytes as spreadOverFile does, but those that a token needs once as one run from
// the beginning of the files. What is left to the target then lies together. Its faults read around
// themselves, and find nothing there that they need not read.
func holdTogether(in Input, budget int64) Plan {
	s := in.Schedule
	p := Plan{Budget: min(max(budget, 0), s.Bytes)}
	held, rest := splitHeld(in)
	if have := s.sumBytes(held); have > p.Budget {
		once, often := s.splitByUses(held)
		slices.Reverse(once)
		for _, b := range append(once, often...) {
			if have <= p.Budget {
				break
			}
			p.Release = append(p.Release, b)
			have -= s.Blocks[b].Length
		}
	} else {
		once, often := s.splitByUses(rest)
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

// splitHeld separates the blocks that are held from the rest.
func splitHeld(in Input) (held, rest []int) {
	for b := range in.Schedule.Blocks {
		if in.Held[b] {
			held = append(held, b)
		} else {
			rest = append(rest, b)
		}
	}
	return held, rest
}

// splitByUses separates blocks that a token needs once from those that it needs several times, both in file
// order.
func (s *Schedule) splitByUses(blocks []int) (once, often []int) {
	for _, b := range blocks {
		if s.Uses[b] > 1 {
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

// pickAtMost picks blocks of about budget bytes in all, and not more, spread evenly over the order of the
// candidates.
func (s *Schedule) pickAtMost(candidates []int, budget int64) []int {
	total := s.sumBytes(candidates)
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

// pickAtLeast picks blocks of at least so many bytes, if there are as many, spread evenly over the order of
// the candidates.
func (s *Schedule) pickAtLeast(candidates []int, bytes int64) []int {
	total := s.sumBytes(candidates)
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
