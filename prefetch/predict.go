package prefetch

// This file predicts how long a token takes with a plan: it goes through the tokens as the target does, with what the disk brings meanwhile. It is pure.

import (
	"math"
	"time"
)

// opTimes is how long a token's ops take by themselves, in ns.
type opTimes struct {
	reads []float64 // by read: its op, without waiting for the disk
	gaps  []float64 // by read: what is computed between the op before it, or the token's beginning, and its own; and last, from the last op to the token's end
}

// Steady is when two tokens in a row differ by no more than a steadyShare of one; it is looked for in as many as steadyTokens.
const (
	steadyTokens = 8
	steadyShare  = 1000
)

// predict is how long a token takes, in the steady state, with what is held, if all else is read from a disk of so many bytes per second each time that it is visited; 0 if that is not
// known. The disk reads ahead in the order of the visits, as far as the window has room: a block is in it from when it is asked for until the op of its visit's last read is over, or has
// passed it (see within). An op goes through its weight from the first byte to the last, in proportion to its time, and waits where a block has not come yet. What the window has no room
// for it reads itself, waiting.
func (h *helping) predict(window int64, t opTimes, disk float64) time.Duration {
	s := h.schedule
	if disk <= 0 {
		return 0
	}
	r := run{window: window, lead: math.MaxInt64, visits: make([]streamed, 0, len(s.Visits)), ended: make([]int64, len(s.Reads))}
	if h.block >= h.unit {
		r.lead = leadBlocks * h.block
	}
	for _, v := range s.Visits {
		if h.held[v.Block] {
			continue
		}
		b, read := s.Blocks[v.Block], s.Reads[v.From]
		r.visits = append(r.visits, streamed{
			Visit: v, offset: b.Offset, bytes: b.Length, nanos: float64(b.Length) / disk * 1e9,
			into: float64(max(b.Offset-read.Offset, 0)) / float64(read.Length) * t.reads[v.From],
		})
	}
	r.ready = make([]float64, len(r.visits))
	var before, token float64
	for n := range steadyTokens {
		begun := r.now
		r.token(t)
		before, token = token, r.now-begun
		if diff := token - before; n > 0 && diff*steadyShare <= token && -diff*steadyShare <= token {
			break
		}
	}
	return time.Duration((before + token) / 2) // they may take turns
}

// streamed is a visit of a block that is not held.
type streamed struct {
	Visit
	offset, bytes int64
	nanos         float64 // that the disk takes for it
	into          float64 // ns from the beginning of the op of read From to the block's first byte
	ahead         bool    // it is in the window
}

// run is a simulation. Times are in ns from its beginning.
type run struct {
	window int64 // bytes
	lead   int64 // bytes between a block that leaves the window and what the op reads now
	visits []streamed
	next   int       // visits that were asked for, over all tokens
	used   int       // visits that the target has reached, over all tokens
	ready  []float64 // by visit: when it was read
	ended  []int64   // by read: bytes that leave the window when its op is over
	ahead  int64     // bytes in the window
	disk   float64   // when the disk is free
	now    float64   // the target's time
}

// ask has the disk read what the window has room for now.
func (r *run) ask() {
	for n := len(r.visits); n > 0 && r.next < r.used+n; r.next++ {
		v := &r.visits[r.next%n]
		if r.ahead > 0 && r.ahead+v.bytes > r.window {
			return
		}
		v.ahead = true
		r.ahead += v.bytes
		r.ended[v.To] += v.bytes
		r.read()
	}
}

// read has the disk read the next visit's block.
func (r *run) read() {
	i := r.next % len(r.visits)
	r.disk = max(r.disk, r.now) + r.visits[i].nanos
	r.ready[i] = r.disk
}

// leave takes visits out of the window which an op, that reads on at offset, has passed: those from passed on. It returns the next one.
func (r *run) leave(passed int, offset int64) int {
	for n := len(r.visits); passed < r.used; passed++ {
		v := &r.visits[passed%n]
		if offset-v.offset-v.bytes < r.lead {
			break
		}
		if v.ahead && v.To == v.From {
			v.ahead = false
			r.ahead -= v.bytes
			r.ended[v.To] -= v.bytes
		}
	}
	return passed
}

// token simulates one.
func (r *run) token(t opTimes) {
	r.ask()
	for i, op := range t.reads {
		r.now += t.gaps[i]
		left, passed := op, r.used
		for n := len(r.visits); n > 0 && r.visits[r.used%n].From == i; {
			v := &r.visits[r.used%n]
			r.now += v.into - (op - left)
			left = op - v.into
			if r.used == r.next { // the window is full of this op's weight
				v.ahead = false
				r.read()
				r.next++
			}
			r.now = max(r.now, r.ready[r.used%n])
			r.used++
			passed = r.leave(passed, v.offset)
			r.ask()
			if r.used%n == 0 { // the last visit of a token
				break
			}
		}
		r.now += left
		r.ahead -= r.ended[i]
		r.ended[i] = 0
		r.ask()
	}
	r.now += t.gaps[len(t.reads)]
}
