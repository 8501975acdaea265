package device

// This file moves planes between the pool and the host: what a product needs is brought into the pool, and
// other planes give way.

import (
	"errors"
	"slices"

	"tensorcast/fabric"
)

// moveToPool moves a plane into the pool, evicting others if need be. s.mu is held.
func (s *store) moveToPool(p *plane) error {
	for {
		b, err := s.pool.Take(len(p.bytes))
		if err == nil {
			copy(b, p.bytes)
			s.hostBytes -= len(b)
			s.counts.Moved += uint64(len(b))
			p.bytes, p.resident = b, true
			return nil
		}
		if !s.evictOne(0) {
			return err
		}
	}
}

// evictOne moves one plane of a weight that is neither pinned nor in use to the host, see givesWayBefore for
// which. It evicts nothing, and reports false, unless the weight is expected to be used later than after, in
// products. s.mu is held.
func (s *store) evictOne(after uint64) bool {
	var victim *plane
	var of *weight
	for _, w := range s.uploads {
		if w.users > 0 || w.pins > 0 {
			continue
		}
		for i := range w.planes {
			p := &w.planes[i]
			if p.resident && (victim == nil || s.givesWayBefore(w, p, of, victim)) {
				victim, of = p, w
			}
		}
	}
	if victim == nil || of.expectNext(s.uses) <= after {
		return false
	}
	host := slices.Clone(victim.bytes)
	s.freePiece(victim.bytes)
	victim.bytes, victim.resident = host, false
	s.hostBytes += len(host)
	s.counts.Evictions++
	s.counts.Moved += uint64(len(host))
	of.operand = nil
	return true
}

// givesWayBefore reports whether plane p of w gives way before plane q of v. Planes that are not the highest of
// their term give way first, then those that are expected to be used last, then the lowest ones of a weight.
func (s *store) givesWayBefore(w *weight, p *plane, v *weight, q *plane) bool {
	if a, b := w.isTop(p), v.isTop(q); a != b {
		return b
	}
	if a, b := w.expectNext(s.uses), v.expectNext(s.uses); a != b {
		return a > b
	}
	return p.index < q.index
}

// completePlanes brings all planes of w into the pool. w must have a user, so that it does not displace itself.
// s.mu is held.
func (s *store) completePlanes(w *weight) error {
	for i := len(w.planes) - 1; i >= 0; i-- {
		if p := &w.planes[i]; !p.resident {
			if err := s.moveToPool(p); err != nil {
				return err
			}
			s.counts.Misses++
			w.operand = nil
		} else {
			s.counts.Hits++
		}
	}
	return nil
}

// productOperand is what a product takes of a weight.
type productOperand struct {
	operand *fabric.Operand
	planes  int    // that it multiplies
	zeros   uint64 // trits of these that are 0
	bytes   uint64 // of these
}

// beginProduct prepares w for a product, which reads its planes until endProduct. With degrade, low planes that
// are not in the pool are left out. The error is errGone, or wraps ErrNoRoom.
func (s *store) beginProduct(w *weight, degrade bool) (productOperand, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w.changing {
		s.idleCond.Wait()
	}
	if w.letGo {
		return productOperand{}, errGone
	}
	w.users++
	err := s.prepareOperand(w, degrade)
	if err != nil {
		w.users--
		return productOperand{}, err
	}
	s.uses++
	w.record(s.uses)
	if w.usedPlanes < len(w.planes) {
		s.counts.Degraded++
	}
	return productOperand{w.operand, w.usedPlanes * w.form.planesPerPlane(), w.usedZeros, w.usedBytes}, nil
}

// prepareOperand makes w.operand, unless it is as wanted already. s.mu is held.
func (s *store) prepareOperand(w *weight, degrade bool) error {
	allTops := true // the highest plane of each term is in the pool
	for i := range w.planes {
		if p := &w.planes[i]; w.isTop(p) && !p.resident {
			allTops = false
		}
	}
	if degrade && allTops {
		if w.operand != nil {
			s.counts.Hits += uint64(w.usedPlanes)
			return nil
		}
		err := s.buildOperand(w)
		if err == nil || !errors.Is(err, fabric.ErrOperand) {
			s.counts.Hits += uint64(w.usedPlanes)
			return err
		}
		// Without its low planes, a weight of six planes may leave the range of a byte: then all planes are needed.
	}
	if err := s.completePlanes(w); err != nil {
		return err
	}
	if w.operand != nil && w.usedPlanes == len(w.planes) {
		return nil
	}
	return s.buildOperand(w)
}

// buildOperand makes the operand of the planes that are in the pool. Zeros stand for the others. s.mu is held.
func (s *store) buildOperand(w *weight) error {
	m := *w.matrix
	m.Terms = slices.Clone(m.Terms)
	used, zeros, bytes := 0, uint64(0), uint64(0)
	for t := range m.Terms {
		m.Terms[t].Planes = slices.Clone(m.Terms[t].Planes)
	}
	for i := range w.planes {
		p := &w.planes[i]
		b := p.bytes
		if p.resident {
			used, zeros, bytes = used+1, zeros+p.zeros, bytes+uint64(len(b))
		} else {
			z := s.zeroPlanes[m.Layout]
			if z == nil {
				z = &zeroPlaneSource{zeroByte: zeroCode(m.Layout), fd: -1}
				s.zeroPlanes[m.Layout] = z
			}
			var err error
			if b, err = z.plane(len(b)); err != nil {
				return err
			}
		}
		m.Terms[p.term].Planes[p.index] = b
	}
	o, err := w.newOperand(&m)
	if err != nil {
		return err
	}
	w.operand, w.usedPlanes, w.usedZeros, w.usedBytes = o, used, zeros, bytes
	return nil
}

// endProduct follows beginProduct.
func (s *store) endProduct(w *weight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.markIdle(w)
	if s.hostBytes > 0 {
		select {
		case s.productEnded <- struct{}{}:
		default: // fetchAhead will look anyway
		}
	}
}

// markIdle says that w has one user less. s.mu is held.
func (s *store) markIdle(w *weight) {
	if w.users--; w.users > 0 {
		return
	}
	if w.letGo {
		s.freeWeight(w)
	}
	s.idleCond.Broadcast()
}
