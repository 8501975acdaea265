package prefetch

// This file counts how much of the model is in memory, some of it at a time. The kernel walks a file's folios
// for that. For 4 GB, most of them small folios, it takes 12 to 25 ms of a processor, and twice as long
// beside the target's threads. Nothing would be read ahead of the target meanwhile.

import (
	"slices"
	"time"

	"tensorcast/prefetch/lookup"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
)

const (
	// censusPiece is the least that is counted at once, in bytes, but where a table begins or ends. Of a large model it
	// is more: there are about censusPieces of each file at most.
	censusPiece  = 8 << 20
	censusPieces = 8192
	// countSlice bounds how long it is counted at once, by one piece. Counting takes no more than one part of
	// countShare of the time.
	countSlice = 200 * time.Microsecond
	countShare = 50
)

// census is what was in memory of the model's files when each piece of them was looked at last.
type census struct {
	files  int           // whose pieces these are
	pieces []pages.Range // of a file: all of the same length but the last
	bytes  []int64       // by piece: in memory
	total  int64         // sum of bytes, without pieces that another group pays for
	table  []bool        // by piece: all of it belongs to a table of which rows are looked up
	order  []int         // of pieces, in which they are counted
	next   int           // index in order
	due    time.Time

	borrowed      []bool // by piece: all of it is in memory, and another group pays for it (see sparing.go)
	borrowedBytes int64  // of these pieces
	lostBorrowed  int64  // bytes of pieces that were such, and are not all in memory any more
}

// addFile adds a file of so many bytes. tables are the large tables in it. Their whole pages have pieces of their own.
func (c *census) addFile(file int, size int64, tables []models.Weight) {
	length := max(censusPiece, (size/censusPieces+censusPiece-1)/censusPiece*censusPiece)
	add := func(from, end int64, isTable bool) {
		for at := from; at < end; at += length {
			c.pieces = append(c.pieces, pages.Range{File: file, Offset: at, Length: min(length, end-at)})
			c.table = append(c.table, isTable)
		}
	}
	at := int64(0)
	for _, t := range tables {
		from, end := (t.Offset+pages.PageSize-1)&^(pages.PageSize-1), min(t.End, size)&^(pages.PageSize-1)
		if from < at || from >= end {
			continue
		}
		add(at, from, false)
		add(from, end, true)
		at = end
	}
	add(at, size, false)
	c.files = file + 1
	c.bytes = append(c.bytes, make([]int64, len(c.pieces)-len(c.bytes))...)
	c.borrowed = append(c.borrowed, make([]bool, len(c.pieces)-len(c.borrowed))...)
	// What is read ahead moves through the file in its order. If it were counted in that order, and as fast,
	// all of the file would seem to be in memory at once.
	c.order = scatter(len(c.pieces))
}

// scatter has the numbers below n in an order in which neighbours are far from each other: the bits of each
// are reversed.
func scatter(n int) []int {
	bits := 0
	for 1<<bits < n {
		bits++
	}
	order := make([]int, 0, n)
	for i := range 1 << bits {
		at := 0
		for b := range bits {
			at |= i >> b & 1 << (bits - 1 - b)
		}
		if at < n {
			order = append(order, at)
		}
	}
	return order
}

// count goes on to count what is in memory of the session's files. A file that is new is counted as a whole.
func (c *census) count(s *session) error {
	begun := s.now()
	if begun.Before(c.due) {
		return nil
	}
	for file := c.files; file < len(s.files); file++ {
		first := len(c.pieces)
		c.addFile(file, s.files[file].size, s.files[file].weights.Tables(lookup.LeastBytes))
		for i := first; i < len(c.pieces); i++ {
			if err := c.countPiece(s.levers, i); err != nil {
				return err
			}
		}
	}
	for range c.order {
		if s.now().Sub(begun) >= countSlice {
			break
		}
		c.next %= len(c.order)
		if err := c.countPiece(s.levers, c.order[c.next]); err != nil {
			return err
		}
		c.next++
	}
	c.due = s.now().Add(countShare * s.now().Sub(begun))
	return nil
}

func (c *census) countPiece(levers pages.Reclaimer, i int) error {
	n, err := levers.ResidentBytes(c.pieces[i])
	if err != nil {
		return err
	}
	switch length := c.pieces[i].Length; {
	case !c.borrowed[i]:
		c.total += n - c.bytes[i]
	case n < length:
		c.borrowed[i] = false
		c.borrowedBytes -= length
		c.lostBorrowed += length
		c.total += n
	}
	c.bytes[i] = n
	return nil
}

// noteFreed notes that bytes of a block were paged out.
func (c *census) noteFreed(r pages.Range, bytes int64) {
	i, _ := slices.BinarySearchFunc(c.pieces, r, comparePiece)
	if i < len(c.pieces) && !c.borrowed[i] {
		bytes = min(bytes, c.bytes[i])
		c.bytes[i] -= bytes
		c.total -= bytes
	}
}

// comparePiece orders a piece before what lies behind it. It is 0 if the two overlap.
func comparePiece(piece, r pages.Range) int {
	switch {
	case piece.File < r.File || piece.File == r.File && piece.End() <= r.Offset:
		return -1
	case piece.Overlaps(r):
		return 0
	}
	return 1
}
