package lookup

// This file pages out what is in memory of a table besides the rows that were looked up lately.

import (
	"slices"
	"time"

	"tensorcast/prefetch/pages"
)

const (
	// pieceBytes of a table are looked at together.
	pieceBytes = 64 << 20
	// around is how far from a row its fault may read at most, in bytes: with a readahead of the device of 8 MiB, which
	// llama.cpp doubles.
	around = 16 << 20
	// settleTime is how long after a row was looked up what lies around it is looked at. Its op is over by then, and
	// what its faults read has arrived.
	settleTime = 50 * time.Millisecond
	// sweepSlice bounds how long is looked at once, by one piece.
	sweepSlice = 250 * time.Microsecond
)

// strays are the pieces of tables of which something may be in memory that nobody has looked up.
type strays struct {
	waiting []waitingPiece // in the order of since
	isThere map[piece]bool // those that wait
}

// piece is a part of a table, in units of pieceBytes of the table's file.
type piece struct {
	table  int
	number int64
}

// waitingPiece is a piece that is to be looked at.
type waitingPiece struct {
	piece
	since time.Time
}

func (s *strays) add(p piece, now time.Time) {
	if s.isThere[p] {
		return
	}
	if s.isThere == nil {
		s.isThere = map[piece]bool{}
	}
	s.isThere[p] = true
	s.waiting = append(s.waiting, waitingPiece{p, now})
}

// LookAgain has all of the tables looked at: the target may have read any of it while nobody was told.
func (t *Tables) LookAgain() { t.strays.addAll(t.tables, t.opts.Now()) }

// addAll adds all of the tables.
func (s *strays) addAll(tables []table, now time.Time) {
	for at := range tables {
		s.addRange(at, tables[at].Range, now)
	}
}

// noteMiss notes that a fault may read what lies around a range of a table.
func (s *strays) noteMiss(at int, of *table, r pages.Range, now time.Time) {
	near := pages.Range{File: r.File, Offset: r.Offset - around, Length: r.Length + 2*around}
	s.addRange(at, cutTo(near, of.Range), now)
}

func (s *strays) addRange(at int, r pages.Range, now time.Time) {
	for n := r.Offset / pieceBytes; n*pieceBytes < r.End(); n++ {
		s.add(piece{at, n}, now)
	}
}

// Sweep pages out what should not be in memory of the pieces whose time has come. It takes a fraction of a millisecond.
func (t *Tables) Sweep() error {
	begun := t.opts.Now()
	if t.busy {
		return nil
	}
	t.trim()
	for s := &t.strays; len(s.waiting) > 0; {
		next := s.waiting[0]
		if begun.Sub(next.since) < settleTime || t.opts.Now().Sub(begun) >= sweepSlice {
			return nil
		}
		s.waiting = s.waiting[1:]
		delete(s.isThere, next.piece)
		if err := t.sweepPiece(next.piece); err != nil {
			return err
		}
	}
	return nil
}

// sweepPiece pages out what is in memory of a piece besides the rows that were looked up lately.
func (t *Tables) sweepPiece(p piece) error {
	o := &t.tables[p.table]
	whole := cutTo(pages.Range{File: o.File, Offset: p.number * pieceBytes, Length: pieceBytes}, o.inner())
	if whole.Length == 0 {
		return nil
	}
	resident, err := t.levers.ResidentBytes(whole)
	if err != nil || resident == 0 {
		return err
	}
	at := whole.Offset
	for _, n := range append(t.pagesIn(p.table, whole), whole.End()/pages.PageSize) {
		gap := pages.Range{File: o.File, Offset: at, Length: n*pages.PageSize - at}
		at = (n + 1) * pages.PageSize
		if gap.Length == 0 {
			continue
		}
		stray, err := t.levers.ResidentBytes(gap)
		if err != nil {
			return err
		}
		if stray == 0 {
			continue
		}
		if !t.levers.Evict(gap) { // too much waits: later
			t.strays.add(p, t.opts.Now())
			return nil
		}
		t.total.strays += stray
	}
	return nil
}

// pagesIn are the numbers of the pages in a range that were looked up lately, in order.
func (t *Tables) pagesIn(at int, r pages.Range) (numbers []int64) {
	for e := t.used.Front(); e != nil; e = e.Next() {
		p := e.Value.(page)
		if offset := p.number * pages.PageSize; p.table == at && offset >= r.Offset && offset < r.End() {
			numbers = append(numbers, p.number)
		}
	}
	slices.Sort(numbers)
	return numbers
}
