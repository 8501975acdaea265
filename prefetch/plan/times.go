package plan

// This file tells how long ops compute from how long they were seen to take. What was seen may include waits
// for the disk: what is told is how long ops take by themselves, and beside what is being read.

import "slices"

// minLayers is how many reads of one length there have to be for the least of them to have waited for little.
const minLayers = 4

// OpTimes is how long a token's ops take, in ns.
type OpTimes struct {
	// Reads has the ops, by read, without waits for the disk.
	Reads []float64
	// Gaps has what is computed in between: by read, the time from the op before it, or the token's
	// beginning, to its own; and last the time from the last op to the token's end.
	Gaps []float64
}

// Sum is how long a token takes that waits for nothing, in ns.
func (t *OpTimes) Sum() (sum float64) {
	for _, n := range t.Reads {
		sum += n
	}
	for _, n := range t.Gaps {
		sum += n
	}
	return sum
}

// Observed is what was seen of a cycle's ops, in ns. -1 stands for what was not seen.
type Observed struct {
	Least  []int64 // by read: the least that its op took; whatever disturbs an op, and the disk, adds to it
	Lately []int64 // by read: a running mean of what its op took for one token
	Gaps   []int64 // as OpTimes.Gaps: a running mean
}

// NewObserved begins with what the schedule's cycle says of its ops.
func NewObserved(s *Schedule) Observed {
	unseen := func(n int) []int64 { return slices.Repeat([]int64{-1}, n) }
	return Observed{slices.Clone(s.Nanos), unseen(len(s.Reads)), unseen(len(s.Reads) + 1)}
}

// Times are the times of a token's ops by themselves, as far as they can be told. held says which blocks are
// held, and window is its size in bytes.
//
// The least that an op was seen to take still includes the waits that it has in each token. Ops of the same
// length do the same in other layers, and may have waited less. An op always waits if the window has no room
// for all that is streamed of it. It is taken to need no more for a byte than the slowest of those ops whose
// weights are all held, or, if there are none, than the slowest of those that are there in several layers.
// Other waits may be counted as computing. Then the disk was slower than the processor, and decides all the
// same. An op that was not seen is taken to need the mean time for a byte, and a gap that was not seen is
// taken to be none.
func (s *Schedule) Times(held []bool, window int64, seen *Observed) OpTimes {
	streamed := s.streamedByRead(held)
	groups := s.leastByLength(seen.Least)
	var ofHeld, ofLayers float64 // ns per byte
	for i, r := range s.Reads {
		g := groups[r.Length]
		perByte := float64(g.least) / float64(r.Length)
		if g.reads > 0 && streamed[i] == 0 && r.Length >= minTimed {
			ofHeld = max(ofHeld, perByte)
		}
		if g.reads >= minLayers && r.Length >= minTimed {
			ofLayers = max(ofLayers, perByte)
		}
	}
	if ofHeld == 0 {
		ofHeld = ofLayers
	}
	t := OpTimes{make([]float64, len(s.Reads)), make([]float64, len(seen.Gaps))}
	var bytes, nanos float64 // of the ops that were seen
	for i, r := range s.Reads {
		g := groups[r.Length]
		if g.reads == 0 {
			continue
		}
		t.Reads[i] = float64(g.least)
		if most := ofHeld * float64(r.Length); most > 0 && streamed[i] > window {
			t.Reads[i] = min(t.Reads[i], most)
		}
		bytes, nanos = bytes+float64(r.Length), nanos+t.Reads[i]
	}
	for i, r := range s.Reads {
		if groups[r.Length].reads == 0 && bytes > 0 {
			t.Reads[i] = float64(r.Length) * nanos / bytes
		}
	}
	for i, n := range seen.Gaps {
		t.Gaps[i] = float64(max(n, 0))
	}
	return t
}

// TimesBesideReads are the times of a token's ops beside what is being read, as they were lately. Reading
// makes computing slower, because it takes memory bandwidth and processors: ours, and those of a hypervisor
// that serves the disk. By how much is told by the layers' ops that wait least. What also these wait is
// counted as computing. Then the disk was slower than the processor, and decides all the same. The other ops
// are taken to be slowed as much. Without layers nothing is known. The gaps are as they were lately anyway.
func (s *Schedule) TimesBesideReads(held []bool, window int64, seen *Observed) OpTimes {
	t, alone := s.Times(held, window, seen), s.leastByLength(seen.Least)
	var before, now float64
	for length, g := range s.leastByLength(seen.Lately) {
		if a := alone[length]; length >= minTimed && min(a.reads, g.reads) >= minLayers {
			before += float64(a.least) * float64(g.reads)
			now += float64(g.least) * float64(g.reads)
		}
	}
	if now > before && before > 0 {
		for i := range t.Reads {
			t.Reads[i] *= now / before
		}
	}
	return t
}

// streamedByRead is, by read, how many bytes of the blocks that it needs are not held.
func (s *Schedule) streamedByRead(held []bool) []int64 {
	streamed := make([]int64, len(s.Reads))
	for _, v := range s.Visits {
		for i := v.From; !held[v.Block] && i <= v.To; i++ {
			streamed[i] += s.Blocks[v.Block].Length
		}
	}
	return streamed
}

// leastOf is the least time that was seen of some reads of one length.
type leastOf struct {
	least int64 // ns
	reads int
}

// leastByLength groups what was seen, by read, by the reads' lengths.
func (s *Schedule) leastByLength(nanos []int64) map[int64]leastOf {
	groups := map[int64]leastOf{}
	for i, r := range s.Reads {
		if n := nanos[i]; n >= 0 {
			g := groups[r.Length]
			if g.reads == 0 || n < g.least {
				g.least = n
			}
			groups[r.Length] = leastOf{g.least, g.reads + 1}
		}
	}
	return groups
}
