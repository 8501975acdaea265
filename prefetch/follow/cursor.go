package follow

// This file follows a target through a cycle: which read it is in, token after token, and how long its ops
// take.

import (
	"slices"

	"tensorcast/event"
	"tensorcast/prefetch/plan"
)

// Position counts reads over all tokens: read i of token n is at n*reads + i. It never falls.
type Position int64

// Cursor knows the target's position in a cycle.
type Cursor struct {
	Reads  int      // of the cycle
	Now    Position // of the read that is under way, or comes next
	Decode uint32   // number of the decode that is followed, of thread TID; 0 between decodes
	TID    int32    // thread
	Met    int      // reads of the cycle that were met in this decode
	// Unknown is how many bytes of weights were read in this decode that are no part of the cycle. Whoever calls
	// NoteRead adds to it.
	Unknown int64
	Begun   int64         // ns, when the decode began, if it generates one token; else 0
	Seen    plan.Observed // how long the ops were seen to take

	index map[start][]int // reads by where they begin, ascending
	moved bool            // Now is a position in this decode
	ended int64           // ns, when the last read's op was over or the decode began; 0: unknown, or several tokens
}

// start is where a read begins.
type start struct {
	file   int
	offset int64
}

// NewCursor begins before the first token.
func NewCursor(s *plan.Schedule) Cursor {
	c := Cursor{Reads: len(s.Reads), index: map[start][]int{}, Seen: plan.NewObserved(s)}
	for i, r := range s.Reads {
		at := start{r.File, r.Offset}
		c.index[at] = append(c.index[at], i)
	}
	return c
}

// TokenOf is the token that a position is in.
func (c *Cursor) TokenOf(p Position) int64 { return int64(p) / int64(c.Reads) }

// ReadOf is the index of the read at a position.
func (c *Cursor) ReadOf(p Position) int { return int(int64(p) % int64(c.Reads)) }

// Token is the token that the target is in.
func (c *Cursor) Token() int64 { return c.TokenOf(c.Now) }

// BeginDecode follows a decode. The position moves to the first read of the next token: at once if it is
// certain that the decode has this cycle, otherwise with the first read that belongs to it. begun is as
// Begun.
func (c *Cursor) BeginDecode(tid int32, decode uint32, begun int64, certain bool) {
	c.Decode, c.TID, c.Met, c.Unknown, c.Begun, c.ended, c.moved = decode, tid, 0, 0, begun, begun, false
	if certain {
		c.moveToNextToken()
	}
}

func (c *Cursor) moveToNextToken() {
	c.moved = true
	if n := Position(c.Reads); c.Now%n != 0 {
		c.Now += n - c.Now%n
	}
}

// NoteRead notes that the target has done an op that reads the weight at offset in a file. nanos is how long
// it computed without waiting for the disk; -1 if that was not observed. It returns false if the cycle has no
// such read.
func (c *Cursor) NoteRead(file int, offset int64, o *event.Op, nanos int64) bool {
	reads := c.index[start{file, offset}]
	if len(reads) == 0 {
		return false
	}
	if !c.moved {
		c.moveToNextToken()
	}
	c.Met++
	n := Position(c.Reads)
	token, read := c.Now/n, int(c.Now%n)
	i, _ := slices.BinarySearch(reads, read)
	if i == len(reads) { // the cycle begins again: a batch that goes through several graphs
		token++
		i = 0
	}
	if nanos >= 0 {
		if least := &c.Seen.Least[reads[i]]; *least < 0 || nanos < *least {
			*least = nanos
		}
		if c.Begun != 0 {
			moveMean(&c.Seen.Lately[reads[i]], nanos)
		}
	}
	p := token*n + Position(reads[i])
	if p == c.Now && c.ended != 0 && o.Time >= c.ended { // not the second weight of one op
		// A gap waits for no disk, so what it took lately is what it takes. Attention grows with the context.
		moveMean(&c.Seen.Gaps[reads[i]], o.Time-c.ended)
	}
	c.ended = 0
	if c.Begun != 0 && o.Duration >= 0 {
		c.ended = o.Time + o.Duration
	}
	c.Now = p + 1
	return true
}

// HasMetCycle says whether the decode has read so much of the cycle that it is one of it. Another context of the same
// model, which guesses tokens by a layer of its own, shares a few weights with it.
func (c *Cursor) HasMetCycle() bool { return c.Met > 0 && c.Met >= c.Reads/2 }

// EndDecode notes when the decode ended, in ns of the target's clock. No decode is followed then.
func (c *Cursor) EndDecode(at int64) {
	c.Decode = 0
	if c.Met > 0 && c.Now%Position(c.Reads) == 0 && c.ended != 0 && at >= c.ended {
		moveMean(&c.Seen.Gaps[c.Reads], at-c.ended)
	}
	c.ended = 0
}

// meanShare of a running mean is replaced by a new observation.
const meanShare = 8

// moveMean moves a running mean, which is -1 before the first observation, towards what is seen now.
func moveMean(mean *int64, nanos int64) {
	if *mean < 0 {
		*mean = nanos
	} else {
		*mean += (nanos - *mean) / meanShare
	}
}
