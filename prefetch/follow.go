package prefetch

// This file follows a target through its cycle: which read it is in, token after token.

import (
	"slices"

	"tensorcast/event"
)

// place is where a read begins.
type place struct {
	file   int
	offset int64
}

// position counts reads over all tokens: read i of token n is at n*reads + i. It never falls.
type position int64

// follower knows the target's position in a cycle.
type follower struct {
	reads  int
	index  map[place][]int // reads by where they begin, ascending
	now    position        // of the read that is under way, or comes next
	decode uint32          // the decode that is followed, of thread tid; 0 between decodes
	tid    int32
	met    int     // reads of the cycle that were met in it
	moved  bool    // now is a position in it
	nanos  []int64 // by read: the least that its op was seen to take, in ns; -1 if it was not. Whatever disturbs an op, and the disk, adds to it.
	lately []int64 // by read: what its op took lately for one token, in ns; -1 if it was not seen
	gaps   []int64 // as opTimes.gaps, as seen lately; -1 if it was not
	begun  int64   // ns, when it began, if it generates one token; 0 else
	ended  int64   // ns, when the last read's op was over, or the decode began; 0: not known, or it generates no token
}

func newFollower(s *Schedule) follower {
	unseen := func(n int) []int64 { return slices.Repeat([]int64{-1}, n) }
	f := follower{reads: len(s.Reads), index: map[place][]int{}, nanos: slices.Clone(s.Nanos), lately: unseen(len(s.Reads)), gaps: unseen(len(s.Reads) + 1)}
	for i, r := range s.Reads {
		at := place{r.File, r.Offset}
		f.index[at] = append(f.index[at], i)
	}
	return f
}

// token is the token that a position is in.
func (f *follower) token(p position) int64 { return int64(p) / int64(f.reads) }

// begin follows a decode. The position moves on to the first read of the next token: at once, or with the first read that is of the cycle if it is not sure
// that this decode has it.
func (f *follower) begin(tid int32, decode uint32, begun int64, sure bool) {
	f.decode, f.tid, f.met, f.begun, f.ended, f.moved = decode, tid, 0, begun, begun, false
	if sure {
		f.move()
	}
}

func (f *follower) move() {
	f.moved = true
	if n := position(f.reads); f.now%n != 0 {
		f.now += n - f.now%n
	}
}

// done notes that the target has done an op that reads the weight at a place, in nanos without waiting for the disk (-1: not observed). It is false if the cycle has no such read.
func (f *follower) done(at place, o *event.Op, nanos int64) bool {
	reads := f.index[at]
	if len(reads) == 0 {
		return false
	}
	if !f.moved {
		f.move()
	}
	f.met++
	n := position(f.reads)
	token, read := f.now/n, int(f.now%n)
	i, _ := slices.BinarySearch(reads, read)
	if i == len(reads) { // it begins again: a batch of several graphs
		token++
		i = 0
	}
	if nanos >= 0 {
		if least := &f.nanos[reads[i]]; *least < 0 || nanos < *least {
			*least = nanos
		}
		if f.begun != 0 {
			follow(&f.lately[reads[i]], nanos)
		}
	}
	if p := token*n + position(reads[i]); p == f.now && f.ended != 0 && o.Time >= f.ended { // not of the second weight of an op
		follow(&f.gaps[reads[i]], o.Time-f.ended) // a gap waits for no disk, so what it took lately is what it takes: attention grows with the context
	}
	f.ended = 0
	if f.begun != 0 && o.Duration >= 0 {
		f.ended = o.Time + o.Duration
	}
	f.now = token*n + position(reads[i]) + 1
	return true
}

// end notes when the decode ended.
func (f *follower) end(at int64) {
	if f.met > 0 && f.now%position(f.reads) == 0 && f.ended != 0 && at >= f.ended {
		follow(&f.gaps[f.reads], at-f.ended)
	}
	f.ended = 0
}

// latelyShare of what was seen before is replaced by a new observation.
const latelyShare = 8

// follow moves a mean of what was seen lately, -1 if nothing was, towards what is seen now.
func follow(lately *int64, nanos int64) {
	if *lately < 0 {
		*lately = nanos
	} else {
		*lately += (nanos - *lately) / latelyShare
	}
}
