package plan

// This file expects how long a token takes with a plan: it goes through tokens as the target does, with what
// the disk brings meanwhile.

import "time"

// A steady state is reached when two tokens in a row differ by no more than a steadyShare of one. It is
// looked for in as many as steadyTokens.
const (
	steadyTokens = 8
	steadyShare  = 1000
)

// ExpectToken is how long a token takes in the steady state; 0 if the disk's rate is not known. held says
// which blocks are held. All others are read each time that they are visited, from a disk that delivers so
// many bytes per second. The disk reads ahead in the order of the visits, as far as the window, in bytes, has
// room. A block is in the window from when it is asked for until the op of its visit's last read is over, or
// is lead bytes ahead of it (see Lead). An op goes through its weight from the first byte to the last, in
// proportion to its time, and waits where a block has not come yet. What the window has no room for the op
// reads itself, waiting.
func (s *Schedule) ExpectToken(held []bool, window, lead int64, t OpTimes, disk float64) time.Duration {
	if disk <= 0 {
		return 0
	}
	r := simulation{window: window, lead: lead, ended: make([]int64, len(s.Reads))}
	for _, v := range s.Visits {
		if held[v.Block] {
			continue
		}
		b, read := s.Blocks[v.Block], s.Reads[v.From]
		r.visits = append(r.visits, streamedVisit{
			Visit: v, offset: b.Offset, bytes: b.Length, nanos: float64(b.Length) / disk * 1e9,
			into: float64(max(b.Offset-read.Offset, 0)) / float64(read.Length) * t.Reads[v.From],
		})
	}
	r.ready = make([]float64, len(r.visits))
	var before, token float64
	for n := range steadyTokens {
		begun := r.now
		r.runToken(t)
		before, token = token, r.now-begun
		if diff := token - before; n > 0 && diff*steadyShare <= token && -diff*steadyShare <= token {
			break
		}
	}
	return time.Duration((before + token) / 2) // long and short tokens may alternate
}

// Bound is the most tokens per second that anybody could reach with room for so many bytes of the model and a
// disk of so many bytes per second, in the best of all orders: the ops compute, and meanwhile the disk
// delivers what has no room. It is 0 if the disk's rate is not known.
func (s *Schedule) Bound(room int64, t OpTimes, disk float64) float64 {
	if disk <= 0 {
		return 0
	}
	nanos := max(t.Sum(), float64(max(s.Bytes-room, 0))/disk*1e9)
	if nanos <= 0 {
		return 0
	}
	return float64(time.Second) / float64(time.Duration(nanos))
}

// streamedVisit is a visit of a block that is not held.
type streamedVisit struct {
	Visit
	offset, bytes int64
	nanos         float64 // that the disk takes for it
	into          float64 // ns from the beginning of the op of read From to the block's first byte
	inWindow      bool
}

// simulation runs tokens. Times are in ns from its beginning.
type simulation struct {
	window int64 // bytes
	lead   int64 // bytes between a block that leaves the window and what the op reads now
	visits []streamedVisit
	next   int       // visits that were asked for, over all tokens
	used   int       // visits that the target has reached, over all tokens
	ready  []float64 // by visit: when it was read
	ended  []int64   // by read: bytes that leave the window when its op is over
	ahead  int64     // bytes in the window
	disk   float64   // when the disk is free
	now    float64   // the target's time
}

// readAhead has the disk read what the window has room for now.
func (r *simulation) readAhead() {
	for n := len(r.visits); n > 0 && r.next < r.used+n; r.next++ {
		v := &r.visits[r.next%n]
		if r.ahead > 0 && r.ahead+v.bytes > r.window {
			return
		}
		v.inWindow = true
		r.ahead += v.bytes
		r.ended[v.To] += v.bytes
		r.readNext()
	}
}

// readNext has the disk read the next visit's block.
func (r *simulation) readNext() {
	i := r.next % len(r.visits)
	r.disk = max(r.disk, r.now) + r.visits[i].nanos
	r.ready[i] = r.disk
}

// dropPassed takes visits out of the window that an op has passed, which reads on at offset. It looks at
// those from passed on, and returns the next one to look at.
func (r *simulation) dropPassed(passed int, offset int64) int {
	for n := len(r.visits); passed < r.used; passed++ {
		v := &r.visits[passed%n]
		if offset-v.offset-v.bytes < r.lead {
			break
		}
		if v.inWindow && v.To == v.From {
			v.inWindow = false
			r.ahead -= v.bytes
			r.ended[v.To] -= v.bytes
		}
	}
	return passed
}

// runToken simulates one token.
func (r *simulation) runToken(t OpTimes) {
	r.readAhead()
	for i, op := range t.Reads {
		r.now += t.Gaps[i]
		left, passed := op, r.used
		for n := len(r.visits); n > 0 && r.visits[r.used%n].From == i; {
			v := &r.visits[r.used%n]
			r.now += v.into - (op - left)
			left = op - v.into
			if r.used == r.next { // the window is full of this op's weight
				v.inWindow = false
				r.readNext()
				r.next++
			}
			r.now = max(r.now, r.ready[r.used%n])
			r.used++
			passed = r.dropPassed(passed, v.offset)
			r.readAhead()
			if r.used%n == 0 { // the last visit of a token
				break
			}
		}
		r.now += left
		r.ahead -= r.ended[i]
		r.ended[i] = 0
		r.readAhead()
	}
	r.now += t.Gaps[len(t.Reads)]
}
