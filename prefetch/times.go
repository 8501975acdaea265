package prefetch

import "tensorcast/prefetch/pages"

// This file tells how long ops take from how long they were seen to take, which may have waits for the disk in it: by themselves, and beside what is read.

// layers is how many reads of one length there have to be for the least of them to have waited for little.
const layers = 4

// times are those of a token's ops, as far as they can be told. What an op was seen to take at the least still has the waits in it that it has in each token. Ops of the same length do
// the same in other layers, and may have waited less. An op of which the window has no room for all that is streamed, so that it always waits, is taken to need no more for a byte
// than the slowest of those that are all held; if there are none, than the slowest of those that are there in several layers. Other waits may be counted as computing: then the disk
// was the slower one, and decides all the same. An op that was not seen is taken to need as much for a byte as the others in the mean, and a gap that was not seen to be none.
func (h *helping) times() opTimes {
	s := h.schedule
	streamed := make([]int64, len(s.Reads)) // bytes in memory for the op that are not held
	for _, v := range s.Visits {
		for i := v.From; !h.held[v.Block] && i <= v.To; i++ {
			streamed[i] += s.Blocks[v.Block].Length
		}
	}
	groups := h.leastByLength(h.nanos)
	var held, layered float64 // ns per byte
	for i, r := range s.Reads {
		g := groups[r.Length]
		perByte := float64(g.least) / float64(r.Length)
		if g.reads > 0 && streamed[i] == 0 && r.Length >= pages.MinBlock { // what a small op takes does not go by its bytes
			held = max(held, perByte)
		}
		if g.reads >= layers && r.Length >= pages.MinBlock {
			layered = max(layered, perByte)
		}
	}
	if held == 0 {
		held = layered
	}
	t := opTimes{make([]float64, len(s.Reads)), make([]float64, len(h.gaps))}
	var bytes, nanos float64 // of the ops that were seen
	for i, r := range s.Reads {
		g := groups[r.Length]
		if g.reads == 0 {
			continue
		}
		t.reads[i] = float64(g.least)
		if most := held * float64(r.Length); most > 0 && streamed[i] > h.bytes {
			t.reads[i] = min(t.reads[i], most)
		}
		bytes, nanos = bytes+float64(r.Length), nanos+t.reads[i]
	}
	for i, r := range s.Reads {
		if groups[r.Length].reads == 0 && bytes > 0 {
			t.reads[i] = float64(r.Length) * nanos / bytes
		}
	}
	for i, n := range h.gaps {
		t.gaps[i] = float64(max(n, 0))
	}
	return t
}

// timesLately are those of a token's ops beside what is read, as they were lately. Reading has computing take longer, as it needs memory's bandwidth and processors: prefetchd's, and those
// of a hypervisor that serves the disk. By how much is seen where there are several layers: at those of their ops that wait for least. What also these wait is counted as computing: then the
// disk was the slower one, and decides all the same. The other ops are taken to be slowed as much; if there are no layers, nothing is known. The gaps are as they were lately anyway.
func (h *helping) timesLately() opTimes {
	t, alone := h.times(), h.leastByLength(h.nanos)
	var before, now float64
	for length, g := range h.leastByLength(h.lately) {
		if a := alone[length]; length >= pages.MinBlock && min(a.reads, g.reads) >= layers {
			before, now = before+float64(a.least)*float64(g.reads), now+float64(g.least)*float64(g.reads)
		}
	}
	if now > before && before > 0 {
		for i := range t.reads {
			t.reads[i] *= now / before
		}
	}
	return t
}

// leastOf is the least that was seen of a number of reads.
type leastOf struct {
	least int64 // ns
	reads int
}

// leastByLength goes by nanos, by read: -1 is one that was not seen.
func (h *helping) leastByLength(nanos []int64) map[int64]leastOf {
	groups := map[int64]leastOf{}
	for i, r := range h.schedule.Reads {
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
