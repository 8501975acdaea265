package device

// This file expects when weights are used next: what gives way follows from it, and what is brought back before it is needed. A token's products come in the same order again and again. If not all of their planes fit, then
// to let go what was used least recently is to let go what is needed soonest, and each product misses. Here the last distance between two uses of a weight, counted in products of all clients, is taken for the next one.

import "context"

// horizon is how many products ahead planes are brought back. Each is a copy, in the time of these products.
const fetchAheadProducts = 4

// uses is when a weight was used, counted in products.
type useHistory struct {
	last, period uint64 // period is between the last two; 0: there was one, or none
	steady       bool   // so it was between the two before
}

func (u *useHistory) record(now uint64) {
	if u.last > 0 {
		p := now - u.last
		u.period, u.steady = p, p == u.period
	}
	u.last = now
}

// next is when the next use is expected. If it should have been before now, or there is nothing to go by, it is as far ahead as the last one is back.
func (u *useHistory) expectNext(now uint64) uint64 {
	if n := u.last + u.period; u.period > 0 && n >= now {
		return n
	}
	return now + (now - u.last)
}

// fetch brings back a plane that is needed soon, in place of one that is needed later. It reports whether it did.
func (s *store) fetchOne() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var soon *weight
	for _, w := range s.uploads {
		if !w.steady || w.changing || w.users > 0 || w.last+w.period <= s.uses || w.last+w.period > s.uses+fetchAheadProducts || soon != nil && w.last+w.period >= soon.last+soon.period {
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
	s.mu.Unlock() // products go on meanwhile
	copy(to, from)
	s.mu.Lock()
	if p.resident || soon.planes == nil { // a product did not want to wait, or nobody needs it any more
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

// fetchAhead fetches after each product, until ctx ends.
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
