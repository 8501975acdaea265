package device

// This file predicts when weights are used next: by that, planes give way, and are brought back before they are
// needed.
//
// A token's products come in the same order again and again. If not all of their planes fit, then what was used
// least recently is what is needed soonest: to evict that would make each product miss. So the distance between
// the last two uses of a weight, counted in products of all clients, is taken for the distance to the next one.

import "context"

// fetchAheadProducts is how many products ahead planes are brought back. Each is copied while these products
// are computed.
const fetchAheadProducts = 4

// useHistory says when a weight was used, counted in uses of all weights.
type useHistory struct {
	last   uint64 // the last use
	period uint64 // between the last two uses; 0: there were fewer
	steady bool   // the period before was the same
}

// record notes a use.
func (u *useHistory) record(now uint64) {
	if u.last > 0 {
		p := now - u.last
		u.period, u.steady = p, p == u.period
	}
	u.last = now
}

// expectNext returns when the next use is expected. If it is overdue, or there were fewer than two uses, it is
// expected after as long as the last one is ago.
func (u *useHistory) expectNext(now uint64) uint64 {
	if n := u.last + u.period; u.period > 0 && n >= now {
		return n
	}
	return now + (now - u.last)
}

// fetchOne brings back a plane that is needed soon, in place of one that is needed later. It reports false if
// there is none.
func (s *store) fetchOne() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var soon *weight
	for _, w := range s.uploads {
		next := w.last + w.period
		if !w.steady || w.changing || w.users > 0 || next <= s.uses || next > s.uses+fetchAheadProducts {
			continue
		}
		if soon != nil && next >= soon.last+soon.period {
			continue
		}
		for i := range w.planes {
			if !w.planes[i].resident {
				soon = w
				break
			}
		}
	}
	if soon == nil {
		return false
	}
	at := len(soon.planes) - 1 // highest first
	for soon.planes[at].resident {
		at--
	}
	p := &soon.planes[at]
	from := p.bytes
	soon.users++ // nobody frees it, and it does not displace itself
	defer s.markIdle(soon)
	var to []byte
	for {
		var err error
		if to, err = s.pool.Take(len(from)); err == nil {
			break
		}
		if !s.evictOne(soon.last + soon.period) {
			return false
		}
	}
	s.mu.Unlock() // products must not wait for the copy
	copy(to, from)
	s.mu.Lock()
	if p.resident || soon.planes == nil { // a product has brought it, or the weight was released
		s.freePiece(to)
		return true
	}
	s.hostBytes -= len(to)
	s.counts.Moved += uint64(len(to))
	s.counts.Ahead++
	p.bytes, p.resident = to, true
	soon.operand = nil
	return true
}

// fetchAhead brings planes back after each product, until ctx ends.
func (s *store) fetchAhead(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.productEnded:
		}
		for ctx.Err() == nil && s.fetchOne() {
		}
	}
}
