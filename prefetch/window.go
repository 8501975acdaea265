package prefetch

// This file is the window: what is read ahead of the target, and what becomes of it behind the target: it is held from then on, or paged out.

import "slices"

// window owns the visits that are staged. Visit i of token n is number n*len(visits) + i.
type window struct {
	bytes  int64   // that may be staged
	visits []Visit // of the schedule, in order
	next   int64   // number of the visit to look at next
	staged []stage
	ahead  int64    // bytes of staged
	passed position // of the first read of the furthest visit that was looked at

	streamed int64 // bytes read ahead, ever
	late     int   // visits that the target reached first
	pagedOut int   // blocks
	stuck    int   // samples in a row of blocks that stayed
}

// stage is a visit that was read ahead, or met in memory, and whose block is to be held or paged out once it is over.
type stage struct {
	block int
	end   position // behind its last read
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
func (w *window) rewind(f *follower) { w.next = min(w.next, f.token(f.now)*int64(len(w.visits))) }

// behind clears the window of what the target has passed: the blocks that are wanted are held from now on, the others are paged out.
func (c *Controller) behind() error {
	h := c.help
	for _, b := range h.over(h.schedule, &h.follower) {
		switch {
		case h.held[b]:
		case h.want[b]:
			if err := c.adopt(b); err != nil {
				return err
			}
		case c.opts.Strategy.Streams() && !h.isStaged(b): // a block on the border of two weights may be staged for a later visit, too
			if err := c.pageOut(h.schedule.Blocks[b]); err != nil {
				return err
			}
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
func (c *Controller) pageOut(r Range) error {
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
	queued := false
	for {
		v, from, end := w.at(w.next, f)
		if from > f.now+position(f.reads) { // all is held
			break
		}
		b := v.Block
		if slices.Contains(w.staged, stage{b, end}) || end <= f.now && from < w.passed {
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
		if w.ahead > 0 && w.ahead+length > w.bytes {
			break
		}
		// What is over was read by the target itself: it only waits to be paged out, or held.
		if end <= f.now {
			w.late++
		} else if read, ok, err := c.readAhead(h.schedule.Blocks[b]); err != nil {
			return err
		} else if !ok {
			break
		} else if read > 0 {
			queued = true
			w.streamed += read
		}
		w.staged = append(w.staged, stage{b, end})
		w.ahead += length
		w.next++
		w.passed = max(w.passed, from)
	}
	if !queued {
		return nil
	}
	return c.pages.Poll()
}

// readAhead reads what of a block is not in memory. It returns how many bytes these are, and false if too many reads are under way.
func (c *Controller) readAhead(r Range) (bytes int64, ok bool, err error) {
	there, err := c.pages.Resident(r)
	if err != nil || there >= r.Length {
		return 0, true, err
	}
	return r.Length - there, c.pages.ReadAhead(r), nil
}
