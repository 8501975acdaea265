package prefetch

// This file is the window: what is read ahead of the target, and what becomes of it behind the target: it is held from then on, or paged out.

import (
	"cmp"
	"slices"
	"tensorcast/prefetch/pages"
	"time"
)

// window owns the visits that are staged. Visit i of token n is number n*len(visits) + i.
type window struct {
	bytes  int64   // that may be staged
	visits []Visit // of the schedule, in order
	next   int64   // number of the visit to look at next
	staged []stage
	ahead  int64      // bytes of staged
	runEnd int64      // number of the visit behind the run that is being asked for
	passed position   // of the first read of the furthest visit that was looked at
	early  []position // by block: the end of its last visit that was over before its op was
	left   trail      // of what is left to the target

	streamed int64 // bytes read ahead, ever
	late     int   // visits that the target reached first
	pagedOut int   // blocks
	stuck    int   // samples in a row of blocks that stayed
}

// stage is a visit that was read ahead, or met in memory, and whose block is to be held or paged out once it is over.
type stage struct {
	block int
	from  position  // its first read
	end   position  // behind its last read
	begun time.Time // when it was asked for
	sure  bool      // it was looked at shortly before its use, or need not be

	touched bool // by the target, as was seen within the op
}

// at is the visit that a number stands for, and the positions of its first read and behind its last.
func (w *window) at(number int64, f *follower) (v Visit, from, end position) {
	token := position(number / int64(len(w.visits)))
	v = w.visits[number%int64(len(w.visits))]
	return v, token*position(f.reads) + position(v.From), token*position(f.reads) + position(v.To) + 1
}

func (w *window) isStaged(block int) bool {
	return slices.ContainsFunc(w.staged, func(st stage) bool { return st.block == block })
}

// isStagedFor says whether a block is staged for the visit that ends at end.
func (w *window) isStagedFor(block int, end position) bool {
	return slices.ContainsFunc(w.staged, func(st stage) bool { return st.block == block && st.end == end })
}

// over removes the visits that are over and returns their blocks.
func (w *window) over(s *Schedule, f *follower) (blocks []int) {
	w.staged = slices.DeleteFunc(w.staged, func(st stage) bool {
		if st.end > f.now {
			return false
		}
		w.ahead -= s.Blocks[st.block].Length
		blocks = append(blocks, st.block)
		return true
	})
	return blocks
}

// drop forgets what is staged: it is left in memory as it is.
func (w *window) drop() { w.staged, w.ahead = nil, 0 }

// rewind looks again at what lies ahead: some of it was held when it was passed over, and is not any more.
func (w *window) rewind(f *follower) {
	w.next, w.runEnd = min(w.next, f.token(f.now)*int64(len(w.visits))), 0
}

// behind clears the window of what the target has passed: the blocks that are wanted are held from now on, the others are paged out.
func (c *Controller) behind() error {
	h := c.help
	over := h.over(h.schedule, &h.follower)
	passed, err := c.within()
	if err != nil {
		return err
	}
	for _, b := range append(over, passed...) {
		switch {
		case h.held[b]:
		case h.want[b]:
			if err := c.adopt(b); err != nil {
				return err
			}
		case !h.isStaged(b): // a block on the border of two weights may be staged for a later visit, too
			if err := c.pageOut(h.schedule.Blocks[b]); err != nil {
				return err
			}
		}
	}
	return nil
}

// leadBlocks is how many blocks lie at least between a block that is over and one that the target has touched, while it is in the op that reads both: ggml's threads take the
// rows of a weight in chunks, in order (ggml_compute_forward_mul_mat), so all of them are close together.
const leadBlocks = 2

// within removes the visits of the op that is under way which the target has passed, and returns their blocks: those that lie leadBlocks before one that it has touched, if it has touched
// all that was staged in between. Threads that share a weight otherwise, a part for each, are not ahead of each other then. It looks when the window is full, which an op that
// reads more than the window would be stopped by, and only while a single token is generated: a batch may go through a weight several times.
func (c *Controller) within() (blocks []int, err error) {
	h := c.help
	if h.decode == 0 || h.begun == 0 || h.block < h.unit || h.ahead+h.block <= h.window.bytes {
		return nil, nil
	}
	var visits []int // indices of staged
	for i, st := range h.staged {
		if st.from <= h.now && st.end == h.now+1 {
			visits = append(visits, i)
		}
	}
	at := func(i int) *pages.Range { return &h.schedule.Blocks[h.staged[visits[i]].block] }
	slices.SortFunc(visits, func(a, b int) int {
		return cmp.Compare(h.schedule.Blocks[h.staged[a].block].Offset, h.schedule.Blocks[h.staged[b].block].Offset)
	})
	over := 0
	for next := range visits {
		st := &h.staged[visits[next]]
		if !st.touched {
			if st.touched, err = c.pages.Touched(*at(next)); err != nil {
				return nil, err
			}
		}
		if !st.touched {
			break
		}
		for over < next && at(over).End()+leadBlocks*h.block <= at(next).Offset {
			over++
		}
	}
	for _, i := range visits[:over] {
		st := &h.staged[i]
		h.early[st.block] = st.end
		blocks = append(blocks, st.block)
		h.ahead -= h.schedule.Blocks[st.block].Length
	}
	h.staged = slices.DeleteFunc(h.staged, func(st stage) bool { return h.early[st.block] == st.end })
	return blocks, nil
}

// trail is what the target has read by itself and passed, where that is left to it.
type trail struct {
	next   int64 // number of the visit to look at next
	blocks []int // that wait to be paged out, in the order of use
	bytes  int64 // of them
}

// trailShare of the window is for the trail: a fault reads what lies before it, too, unless that is in memory.
const trailShare = 2

// trail pages out what the target has read by itself, where that is left to it, a part of the window behind it. Else the kernel would take the memory for it from what is held.
func (c *Controller) trail() error {
	h, t := c.help, &c.help.left
	if c.opts.Strategy.Streams() {
		return nil
	}
	for t.next = max(t.next, (h.token(h.now)-1)*int64(len(h.visits))); ; t.next++ {
		v, _, end := h.at(t.next, &h.follower)
		if end > h.now {
			break
		}
		if !h.want[v.Block] {
			t.blocks = append(t.blocks, v.Block)
			t.bytes += h.schedule.Blocks[v.Block].Length
		}
	}
	for len(t.blocks) > 0 && t.bytes > h.bytes/trailShare {
		b := t.blocks[0]
		t.blocks = t.blocks[1:]
		t.bytes -= h.schedule.Blocks[b].Length
		if h.want[b] || slices.Contains(t.blocks, b) { // wanted by now, or used again since
			continue
		}
		if err := c.pageOut(h.schedule.Blocks[b]); err != nil {
			return err
		}
	}
	return nil
}

const (
	// sampleEvery is how many blocks are paged out between two looks whether that has an effect,
	sampleEvery = 64
	// and stuckSamples are so many in a row of which more than half stayed: somebody else maps the model, too.
	stuckSamples = 4
)

// pageOut pages a block out, and now and then looks whether that had an effect.
func (c *Controller) pageOut(r pages.Range) error {
	w := &c.help.window
	if err := c.pages.PageOut(r); err != nil {
		return err
	}
	if w.pagedOut++; w.pagedOut%sampleEvery != 0 {
		return nil
	}
	left, err := c.pages.Resident(r)
	if err != nil {
		return err
	}
	if left <= r.Length/2 {
		w.stuck = 0
		return nil
	}
	if w.stuck++; w.stuck%stuckSamples != 0 {
		return nil
	}
	return c.judge()
}

// ahead reads ahead of the target as far as the window goes, what is held and was taken among it.
func (c *Controller) ahead() error {
	h := c.help
	w, f := &h.window, &h.follower
	// Of a token that is over nothing is left to do but to page out what it read last.
	w.next = max(w.next, (f.token(f.now)-1)*int64(len(w.visits)))
	queued, err := c.again()
	if err != nil {
		return err
	}
	for {
		v, from, end := w.at(w.next, f)
		if from > f.now+position(f.reads) { // all is held
			break
		}
		left := h.glance.leaves(from, f.reads)
		if !left && from > f.now && h.glance.leaves(f.now, f.reads) { // nobody else is at the disk while it is looked at
			break
		}
		b := v.Block
		if w.isStagedFor(b, end) || w.early[b] == end || end <= f.now && from < w.passed {
			w.next++
			continue
		}
		there, err := c.isThere(b, end > f.now)
		if err != nil {
			return err
		}
		if there || !c.opts.Strategy.Streams() && !h.want[b] {
			w.next++
			continue
		}
		length := h.schedule.Blocks[b].Length
		needed := length
		runEnd := w.runEnd
		if end > f.now && w.next >= runEnd {
			if needed, runEnd, err = c.run(w.next); err != nil {
				return err
			}
		}
		if w.ahead > 0 && w.ahead+needed > w.bytes {
			break
		}
		// What is over was read by the target itself: it only waits to be paged out, or held.
		if end <= f.now {
			w.late++
		} else if left { // it only has to be paged out
			if err := c.leave(h.schedule.Blocks[b]); err != nil {
				return err
			}
		} else if read, ok, err := c.readAhead(h.schedule.Blocks[b]); err != nil {
			return err
		} else if !ok {
			break
		} else if read > 0 {
			queued = true
			w.streamed += read
		}
		w.runEnd = runEnd
		w.staged = append(w.staged, stage{block: b, from: from, end: end, begun: c.now(), sure: end <= f.now || left})
		w.ahead += length
		w.next++
		w.passed = max(w.passed, from)
	}
	if !queued {
		return nil
	}
	return c.pages.Poll()
}

// insertTime is how long after it was asked for a block may be missing because it was not begun to be read.
const insertTime = 10 * time.Millisecond

// again looks at what was read ahead and is needed next. What is missing was taken before it was used: it is read again, and accounted as what is kept would be.
func (c *Controller) again() (queued bool, err error) {
	h := c.help
	for i := range h.staged {
		st := &h.staged[i]
		if st.sure || st.from > h.now+1 || c.now().Sub(st.begun) < insertTime {
			continue
		}
		b := h.schedule.Blocks[st.block]
		if c.pages.Reading(b) {
			continue
		}
		st.sure = true
		read, ok, err := c.readAhead(b)
		if err != nil {
			return queued, err
		}
		if read > 0 && ok {
			queued = true
			h.streamed += read
			c.taken(read)
		}
	}
	return queued, nil
}

// runBlocks bounds a run. A window has room for two.
const runBlocks = 4

// run is how many bytes are to be read ahead together with a visit's block, and the number of the visit behind them: those of the blocks that follow it in the file, are needed next, and
// are not in memory. Where blocks can be read apart that is one: to wait until the window has room for several has the target wait, too. A large folio can be read once what follows it in the file is there (see Pages.ReadAhead), so the last of them is read first. A run ends where the next block is in
// memory; where that is too far, its last block is read as single pages, which costs several times as much. Runs end at the same places each time.
func (c *Controller) run(number int64) (bytes, behind int64, err error) {
	h := c.help
	v, _, _ := h.at(number, &h.follower)
	last := h.schedule.Blocks[v.Block]
	bytes, behind = last.Length, number+1
	if h.block <= pages.MinBlock || c.pages.Apart() || c.opts.Window != 0 && c.opts.Window < 2*runBlocks*h.block {
		return bytes, behind, nil
	}
	var most, mostBehind int64 // up to the first end that is the same each time
	for blocks := 1; ; blocks++ {
		if most == 0 && last.End()%(runBlocks*h.block) == 0 {
			most, mostBehind = bytes, behind
		}
		v, _, end := h.at(behind, &h.follower)
		r := h.schedule.Blocks[v.Block]
		if r.File != last.File || r.Offset != last.End() || h.held[v.Block] || h.isStagedFor(v.Block, end) {
			return bytes, behind, nil
		}
		there, err := c.pages.Resident(r)
		if err != nil {
			return 0, 0, err
		}
		if there >= r.Length {
			return bytes, behind, nil
		}
		if blocks >= runBlocks {
			return most, mostBehind, nil
		}
		bytes += r.Length
		behind++
		last = r
	}
}

const (
	// sweepInterval is how often what is in memory is compared with what is to be. It takes no more than a fiftieth of the time (compareShare), and a twentieth when it finds something,
	sweepInterval = 4 * time.Millisecond
	sweepShare    = 20
	// by so much at once,
	sweepSlice = 250 * time.Microsecond
	// and rests for a while when what is too much cannot be paged out, or is none of the blocks'.
	sweepRest = 100 * time.Millisecond
	// sweepSlack blocks may be in memory besides: what is read by single pages is not there all at once.
	sweepSlack = 4
)

// sweep pages out what is neither held nor needed soon. A miss of the target reads up to twice the device's readahead around itself, which would take the memory of what was
// read ahead, and so cause the next miss.
func (c *Controller) sweep() error {
	h, begun := c.help, c.now()
	if !c.opts.Strategy.Streams() || begun.Before(h.sweepAt) {
		return nil
	}
	pause, share := sweepInterval, time.Duration(compareShare)
	defer func() { h.sweepAt = c.now().Add(max(pause, share*c.now().Sub(begun))) }()
	if h.experts != nil { // they have much in memory that is no block
		if h.wantBytes >= h.schedule.Bytes {
			return nil
		}
	} else if err := c.count(); err != nil || !c.tooMuch() {
		return err
	}
	soon := h.soon()
	for n := range h.schedule.Blocks {
		if n > 0 && c.now().Sub(begun) >= sweepSlice {
			return nil
		}
		b := h.sweepNext
		h.sweepNext = (b + 1) % len(h.schedule.Blocks)
		h.unswept++
		if h.held[b] || h.want[b] || soon[b] {
			continue
		}
		r := h.schedule.Blocks[b]
		n, err := c.pages.Resident(r)
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		share, h.unswept = sweepShare, 0
		c.swept += n
		if err := c.pageOut(r); err != nil {
			return err
		}
		c.census.freed(r, n)
	}
	if h.unswept >= len(h.schedule.Blocks) {
		pause, h.unswept = sweepRest, 0
	}
	return nil
}

// tooMuch says whether more is in memory of the files than is held, staged, or has room anyway.
func (c *Controller) tooMuch() bool {
	h := c.help
	return c.census.total > max(h.heldBytes+h.ahead+sweepSlack*h.block, c.room.Bytes) // what nobody needs the room of may stay
}

// soon are the blocks that are staged, and those of the visits from the one that is under way on, up to a window beyond what was looked at.
func (h *helping) soon() map[int]bool {
	soon := map[int]bool{}
	for _, st := range h.staged {
		soon[st.block] = true
	}
	bytes := h.bytes
	n := int64(len(h.visits))
	number := h.token(h.now) * n
	for range n {
		v, _, end := h.at(number, &h.follower)
		if end > h.now {
			if number >= h.next {
				if bytes -= h.schedule.Blocks[v.Block].Length; bytes < 0 {
					break
				}
			}
			soon[v.Block] = true
		}
		number++
	}
	return soon
}

// readAhead reads what of a block is not in memory. It returns how many bytes these are, and false if too many reads are under way.
func (c *Controller) readAhead(r pages.Range) (bytes int64, ok bool, err error) {
	there, err := c.pages.Resident(r)
	if err != nil || there >= r.Length {
		return 0, true, err
	}
	return r.Length - there, c.pages.ReadAhead(r), nil
}
