package prefetch

// This file counts how much of the model is in memory, some of it at a time. The kernel walks a file's folios for that: for 4 GB, most of them small folios, it takes 12 to 25 ms of a processor, and twice
// as long beside the target's threads. Nothing would be read ahead of the target meanwhile.

import (
	"slices"
	"tensorcast/prefetch/pages"
	"time"
)

const (
	// censusPiece is the least that is counted at once. Of a large model it is more: there are at most censusPieces of each file.
	censusPiece  = 8 << 20
	censusPieces = 8192
	// countSlice bounds how long it is counted at once, by one piece. It takes no more than one part of compareShare of the time.
	countSlice   = 200 * time.Microsecond
	compareShare = 50
)

// census is what was in memory of the model's files when each piece of them was looked at last.
type census struct {
	files  int           // whose pieces these are
	pieces []pages.Range // of a file: all of the same length but the last
	bytes  []int64       // by piece: in memory
	total  int64         // of bytes
	order  []int         // of pieces, in which they are counted
	next   int           // index of order
	due    time.Time
}

// extend adds a file.
func (s *census) extend(file int, size int64) {
	length := max(censusPiece, (size/censusPieces+censusPiece-1)/censusPiece*censusPiece)
	for at := int64(0); at < size; at += length {
		s.pieces = append(s.pieces, pages.Range{File: file, Offset: at, Length: min(length, size-at)})
	}
	s.files = file + 1
	s.bytes = append(s.bytes, make([]int64, len(s.pieces)-len(s.bytes))...)
	// What is staged moves through the file in its order. If it were counted in that order, and as fast, all of it would seem to be in memory at once.
	s.order = scattered(len(s.pieces))
}

// scattered are the numbers below n in an order in which neighbours are far from each other: the bits of each are reversed.
func scattered(n int) []int {
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

// count goes on to count what is in memory of the model. A file that is new is counted as a whole.
func (c *Controller) count() error {
	s, begun := &c.census, c.now()
	if begun.Before(s.due) {
		return nil
	}
	for file := s.files; file < len(c.known); file++ {
		first := len(s.pieces)
		s.extend(file, c.known[file].size)
		for i := first; i < len(s.pieces); i++ {
			if err := c.countPiece(i); err != nil {
				return err
			}
		}
	}
	for range s.order {
		if c.now().Sub(begun) >= countSlice {
			break
		}
		s.next %= len(s.order)
		if err := c.countPiece(s.order[s.next]); err != nil {
			return err
		}
		s.next++
	}
	s.due = c.now().Add(compareShare * c.now().Sub(begun))
	return nil
}

func (c *Controller) countPiece(i int) error {
	s := &c.census
	n, err := c.pages.Resident(s.pieces[i])
	if err != nil {
		return err
	}
	s.total += n - s.bytes[i]
	s.bytes[i] = n
	return nil
}

// freed notes that bytes of a block were paged out.
func (s *census) freed(r pages.Range, bytes int64) {
	i, _ := slices.BinarySearchFunc(s.pieces, r, func(p, r pages.Range) int {
		switch {
		case p.File < r.File || p.File == r.File && p.End() <= r.Offset:
			return -1
		case p.Overlaps(r):
			return 0
		}
		return 1
	})
	if i < len(s.pieces) {
		bytes = min(bytes, s.bytes[i])
		s.bytes[i] -= bytes
		s.total -= bytes
	}
}
