package device

// This file changes the planes of a held weight while clients use it: products wait for the change, and changes
// wait for products.

import "tensorcast/fabric"

// beginChange waits until nobody uses w, and keeps products away from it until endChange. s.mu is held, but not
// while this waits.
func (s *store) beginChange(w *weight) {
	for w.changing {
		s.idleCond.Wait()
	}
	w.changing = true
	for w.users > 0 {
		s.idleCond.Wait()
	}
	w.users++
}

// endChange follows beginChange, when the planes have been changed. s.mu is held.
func (s *store) endChange(w *weight) {
	w.operand, w.changing = nil, false
	s.markIdle(w)
}

// coarsenWeight takes the lowest of three planes out of a weight that can do without it. The other two stay
// where they are.
func (s *store) coarsenWeight(w *weight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beginChange(w)
	defer s.endChange(w)
	if w.letGo || !w.form.canCoarsen {
		return
	}
	p := &w.planes[0]
	s.mu.Unlock()
	less := fabric.CoarsenBands(p.bytes, w.matrix.Rows, w.matrix.Cols)
	s.mu.Lock()
	var err error
	if p.bytes, err = s.pool.Shrink(p.bytes, len(less)); err != nil {
		s.log.Error("give a plane's memory back", "err", err) // never happens
		p.bytes = less
	}
	w.form = weightForm{
		bands: 2, zeros: w.form.zeros - w.form.lowZeros,
		canRefine: true, belowBound: w.form.coarsenIfShort, snr: w.form.coarserSNR,
	}
	p.zeros = w.form.zeros
}

// exchangePlanes gives w the planes of by, which nobody else knows, and frees w's own.
func (s *store) exchangePlanes(w, by *weight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beginChange(w)
	defer s.endChange(w)
	w.planes, by.planes = by.planes, w.planes
	w.pieces, by.pieces = by.pieces, w.pieces
	w.form, by.form = by.form, w.form
	by.refs = 0
	s.freeWeight(by)
}
