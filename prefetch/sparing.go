package prefetch

// This file spares what another control group pays for. Such a part of the model is in memory at no cost to the
// target's group. If it were paged out, the target's group would have to read it again, and pay for it from then on.
// So it is neither held nor streamed nor paged out. The rest of the model is helped as if that were all of it.

import (
	"slices"

	"tensorcast/prefetch/pages"
)

const (
	// leastBorrowed is the least part of a model, one in so many bytes, that is worth sparing. Whoever looks at a
	// file pays for a few of its pages.
	leastBorrowed = 64
	// lostShare of a model is what others may stop paying for until what is followed is learned anew. The target's
	// own faults read it until then.
	lostShare = 32
)

// sparing are levers that free nothing for which another group pays.
type sparing struct {
	pages.Levers
	census *census
}

// PageOut implements pages.Levers.
func (l *sparing) PageOut(r pages.Range) error {
	for _, part := range l.census.cutOwn(r) {
		if err := l.Levers.PageOut(part); err != nil {
			return err
		}
	}
	return nil
}

// Evict implements pages.Levers.
func (l *sparing) Evict(r pages.Range) bool {
	for _, part := range l.census.cutOwn(r) {
		if !l.Levers.Evict(part) {
			return false
		}
	}
	return true
}

// findBorrowed finds out which pieces of the model other groups pay for. own is the target's group, by its inode; 0
// if it makes no difference who pays.
func (c *census) findBorrowed(levers pages.Accountant, own uint64) error {
	c.borrowed, c.borrowedBytes, c.lostBorrowed = make([]bool, len(c.pieces)), 0, 0
	c.total = 0
	var whole int64
	for i, r := range c.pieces {
		if !c.table[i] {
			whole += r.Length
		}
		if own != 0 && c.bytes[i] >= r.Length {
			group, err := levers.PayingGroup(r)
			if err != nil {
				return err
			}
			if group != 0 && group != own {
				c.borrowed[i] = true
				c.borrowedBytes += r.Length
				continue
			}
		}
		c.total += c.bytes[i]
	}
	if c.borrowedBytes < whole/leastBorrowed {
		c.total += c.borrowedBytes
		clear(c.borrowed)
		c.borrowedBytes = 0
	}
	return nil
}

// isAllResident says whether all of the model is in memory, but for tables.
func (c *census) isAllResident() bool {
	for i, r := range c.pieces {
		if c.bytes[i] < r.Length && !c.table[i] {
			return false
		}
	}
	return len(c.pieces) > 0
}

// borrowAll takes all of the model to be borrowed. If all of it is in memory, and the target's group has no room for
// that, others pay for some of it at least, though the kernel may not tell. Nothing can be better than that.
func (c *census) borrowAll() {
	for i, r := range c.pieces {
		if !c.borrowed[i] {
			c.borrowed[i] = true
			c.borrowedBytes += r.Length
		}
	}
	c.total = 0
}

// countOwn is how many bytes the files have besides tables and what other groups pay for, in memory or not.
func (c *census) countOwn() (bytes int64) {
	for i, r := range c.pieces {
		if !c.borrowed[i] && !c.table[i] {
			bytes += r.Length
		}
	}
	return bytes
}

// isBorrowed says whether another group pays for all of a range.
func (c *census) isBorrowed(r pages.Range) bool { return len(c.cutOwn(r)) == 0 }

// hasLostBorrowed says whether so much has gone of what other groups paid for that what is left is to be found out.
func (c *census) hasLostBorrowed() bool {
	return c.lostBorrowed > (c.borrowedBytes+c.total+c.lostBorrowed)/lostShare
}

// cutOwn are the parts of a range for which no other group pays.
func (c *census) cutOwn(r pages.Range) (parts []pages.Range) {
	if c.borrowedBytes == 0 {
		return []pages.Range{r}
	}
	first, _ := slices.BinarySearchFunc(c.pieces, r, comparePiece)
	at := r.Offset
	for i := first; i < len(c.pieces) && c.pieces[i].File == r.File && c.pieces[i].Offset < r.End(); i++ {
		p := c.pieces[i]
		if !c.borrowed[i] {
			continue
		}
		if p.Offset > at {
			parts = append(parts, pages.Range{File: r.File, Offset: at, Length: p.Offset - at})
		}
		at = p.End()
	}
	if at < r.End() {
		parts = append(parts, pages.Range{File: r.File, Offset: at, Length: r.End() - at})
	}
	return parts
}
