package prefetch

// This file is the window: what is read ahead of the target, and what becomes of it behind the target. There
// it is held from then on, or paged out.

import (
	"cmp"
	"slices"
	"time"

	"tensorcast/prefetch/follow"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/plan"
)

const (
	// insertTime is how long after it was asked for a block may be missing because it was not begun to be
	// read.
	insertTime = 10 * time.Millisecond
	// runBlocks bounds a run, in blocks. The window has room for two runs.
	runBlocks = 4
	// sampleEvery is how many blocks are paged out between two looks whether that has an effect. stuckSamples
	// in a row of which more than half stayed say that somebody else maps the model, too.
	sampleEvery  = 64
	stuckSamples = 4
)

// window owns the visits that are staged. Visit i of token n has the number n*len(visits) + i.
type window struct {
	bytes  int64        // that may be staged
	visits []plan.Visit // of the schedule, in order
	next   int64        // number of the visit to look at next
	staged []stage
	ahead  int64             // bytes of staged
	runEnd int64             // number of the visit behind the run that is being asked for
	passed follow.Position   // of the first read of the furthest visit that was looked at
	early  []follow.Position // by block: the end of its last visit that was over before its op was

	streamed int64 // bytes read ahead, ever
	late     int   // visits that the target reached first
	pagedOut int   // blocks
	stuck    int   // samples in a row of blocks that stayed
}

// stage is a visit that was read ahead, or met in memory. Its block is to be held or paged out once the visit
// is over.
type stage struct {
	block   int
	from    follow.Position // its first read
	end     follow.Position // behind its last read
	begun   time.Time       // when it was asked for
	checked bool            // it was looked at shortly before its use, or need not be
	touched bool            // by the target, as was seen within the op
}

func newWindow(s *plan.Schedule) window {
	return window{visits: s.Visits, early: make([]follow.Position, len(s.Blocks))}
}

// visitAt is the visit that a number stands for, and the positions of its first read and behind its last.
func (w *window) visitAt(number int64, c *follow.Cursor) (v plan.Visit, from, end follow.Position) {
	token := follow.Position(number / int64(len(w.visits)))
	v = w.visits[number%int64(len(w.visits))]
	first := token * follow.Position(c.Reads)
	return v, first + follow.Position(v.From), first + follow.Position(v.To) + 1
}

func (w *window) isStaged(block int) bool {
	return slices.ContainsFunc(w.staged, func(st stage) bool { return st.block == block })
}

// isStagedFor says whether a block is staged for the visit that ends at end.
func (w *window) isStagedFor(block int, end follow.Position) bool {
	return slices.ContainsFunc(w.staged, func(st stage) bool { return st.block == block && st.end == end })
}

// removeOver removes the visits that are over, and returns their blocks.
func (w *window) removeOver(s *plan.Schedule, c *follow.Cursor) (blocks []int) {
	w.staged = slices.DeleteFunc(w.staged, func(st stage) bool {
		if st.end > c.Now {
			return false
		}
		w.ahead -= s.Blocks[st.block].Length
		blocks = append(blocks, st.block)
		return true
	})
	return blocks
}

// forgetStaged leaves what is staged in memory as it is.
func (w *window) forgetStaged() { w.staged, w.ahead = nil, 0 }

// rewind looks again at what lies ahead: some of it was held when it was passed over, and is not any more.
func (w *window) rewind(c *follow.Cursor) {
	w.next, w.runEnd = min(w.next, c.Token()*int64(len(w.visits))), 0
}

// clearPassed clears the window of what the target has passed. Wanted blocks are held from now on, others are
// paged out.
func (f *followed) clearPassed() error {
	over := f.removeOver(f.schedule, &f.Cursor)
	within, err := f.removePassedWithin()
	if err != nil {
		return err
	}
	for _, b := range append(over, within...) {
		switch {
		case f.held[b]:
		case f.want[b]:
			if err := f.holdPassed(b); err != nil {
				return err
			}
		case !f.isStaged(b): // a block on the border of two weights may be staged for a later visit, too
			if err := f.pageOut(f.schedule.Blocks[b]); err != nil {
				return err
			}
		}
	}
	return nil
}

// removePassedWithin removes the visits of the op under way which the target has passed, and returns their
// blocks: those that lie plan.LeadBlocks before one that it has touched, if it has touched all that was
// staged in between. (If threads share a weight in another way, with a part for each, they are not ahead of
// each other.) It looks only when the window is full, because an op that reads more than the window would be
// stopped by that. And it looks only while a single token is generated: a batch may go through a weight
// several times.
func (f *followed) removePassedWithin() (blocks []int, err error) {
	if f.Decode == 0 || f.Begun == 0 || f.block < f.unit || f.window.ahead+f.block <= f.window.bytes {
		return nil, nil
	}
	var visits []int // indices of staged
	for i, st := range f.staged {
		if st.from <= f.Now && st.end == f.Now+1 {
			visits = append(visits, i)
		}
	}
	rangeOf := func(i int) *pages.Range { return &f.schedule.Blocks[f.staged[visits[i]].block] }
	slices.SortFunc(visits, func(a, b int) int {
		return cmp.Compare(f.schedule.Blocks[f.staged[a].block].Offset, f.schedule.Blocks[f.staged[b].block].Offset)
	})
	over := 0
	for next := range visits {
		st := &f.staged[visits[next]]
		if !st.touched {
			if st.touched, err = f.levers.IsTouched(*rangeOf(next)); err != nil {
				return nil, err
			}
		}
		if !st.touched {
			break
		}
		for over < next && rangeOf(over).End()+plan.LeadBlocks*f.block <= rangeOf(next).Offset {
			over++
		}
	}
	for _, i := range visits[:over] {
		st := &f.staged[i]
		f.early[st.block] = st.end
		blocks = append(blocks, st.block)
		f.window.ahead -= f.schedule.Blocks[st.block].Length
	}
	f.staged = slices.DeleteFunc(f.staged, func(st stage) bool { return f.early[st.block] == st.end })
	return blocks, nil
}

// pageOut pages a block out, and looks now and then whether that had an effect.
func (f *followed) pageOut(r pages.Range) error {
	if err := f.levers.PageOut(r); err != nil {
		return err
	}
	if f.pagedOut++; f.pagedOut%sampleEvery != 0 {
		return nil
	}
	left, err := f.levers.ResidentBytes(r)
	if err != nil {
		return err
	}
	if left <= r.Length/2 {
		f.stuck = 0
		return nil
	}
	if f.stuck++; f.stuck%stuckSamples != 0 {
		return nil
	}
	return f.judge()
}

// fillWindow reads ahead of the target as far as the window goes, held blocks that were taken among it.
func (f *followed) fillWindow() error {
	w, c := &f.window, &f.Cursor
	// Of a token that is over nothing is left to do but to page out what it read last.
	w.next = max(w.next, (c.Token()-1)*int64(len(w.visits)))
	queued, err := f.rereadTaken()
	if err != nil {
		return err
	}
	for {
		v, from, end := w.visitAt(w.next, c)
		if from > c.Now+follow.Position(c.Reads) { // all is held
			break
		}
		left := f.glance.isLeft(from, c.Reads)
		if !left && from > c.Now && f.glance.isLeft(c.Now, c.Reads) { // nobody else is at the disk during a glance
			break
		}
		b := v.Block
		if w.isStagedFor(b, end) || w.early[b] == end || end <= c.Now && from < w.passed {
			w.next++
			continue
		}
		there, err := f.isThere(b, end > c.Now)
		if err != nil {
			return err
		}
		if there || !f.opts.Strategy.Traits().Streams && !f.want[b] {
			w.next++
			continue
		}
		length := f.schedule.Blocks[b].Length
		needed, runEnd := length, w.runEnd
		if end > c.Now && w.next >= runEnd {
			if needed, runEnd, err = f.measureRun(w.next); err != nil {
				return err
			}
		}
		if w.ahead > 0 && w.ahead+needed > w.bytes {
			break
		}
		read, ok, err := f.stageVisit(b, end, left)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		queued = queued || read
		w.runEnd = runEnd
		checked := end <= c.Now || left
		w.staged = append(w.staged, stage{block: b, from: from, end: end, begun: f.now(), checked: checked})
		w.ahead += length
		w.next++
		w.passed = max(w.passed, from)
	}
	if !queued {
		return nil
	}
	return f.levers.Poll()
}

// stageVisit does what a visit of a block needs that ends at end. left says that it is left to the target,
// for a glance. read says that reads were begun; ok is false if too many are under way.
func (f *followed) stageVisit(block int, end follow.Position, left bool) (read, ok bool, err error) {
	r := f.schedule.Blocks[block]
	switch {
	case end <= f.Now: // the target has read it by itself: it only waits to be paged out, or held
		f.late++
		return false, true, nil
	case left: // it only has to be paged out
		resident, err := f.levers.ResidentBytes(r)
		f.glance.missing += r.Length - resident
		return false, true, err
	}
	bytes, ok, err := f.readAhead(r)
	if err != nil || !ok {
		return false, false, err
	}
	f.streamed += bytes
	return bytes > 0, true, nil
}

// rereadTaken looks at what was read ahead and is needed next. What is missing was taken before it was used:
// it is read again, and accounted as what is kept would be.
func (f *followed) rereadTaken() (queued bool, err error) {
	for i := range f.staged {
		st := &f.staged[i]
		if st.checked || st.from > f.Now+1 || f.now().Sub(st.begun) < insertTime {
			continue
		}
		b := f.schedule.Blocks[st.block]
		if f.levers.IsReading(b) {
			continue
		}
		st.checked = true
		read, ok, err := f.readAhead(b)
		if err != nil {
			return queued, err
		}
		if read > 0 && ok {
			queued = true
			f.streamed += read
			f.memory.noteLoss(read)
		}
	}
	return queued, nil
}

// measureRun is how many bytes are to be read ahead together with a visit's block, and the number of the
// visit behind them. A run has the blocks that follow each other in the file, are needed next, and are not in
// memory. A large folio can be read once what follows it in the file is there (see
// pages.AheadReader.CanReadApart), so the last block of a run is read first. Where blocks can be read apart,
// a run is one block: to wait until the window has room for several has the target wait, too. A run ends
// where the next block is in memory. If that is too far, its last block is read as single pages, which costs
// several times as much. Runs end at the same places each time.
func (f *followed) measureRun(number int64) (bytes, behind int64, err error) {
	v, _, _ := f.visitAt(number, &f.Cursor)
	last := f.schedule.Blocks[v.Block]
	bytes, behind = last.Length, number+1
	small := f.opts.Window != 0 && f.opts.Window < 2*runBlocks*f.block
	if small || f.block <= pages.MinBlock || f.levers.CanReadApart() {
		return bytes, behind, nil
	}
	var most, mostBehind int64 // up to the first end that is the same each time
	for blocks := 1; ; blocks++ {
		if most == 0 && last.End()%(runBlocks*f.block) == 0 {
			most, mostBehind = bytes, behind
		}
		v, _, end := f.visitAt(behind, &f.Cursor)
		r := f.schedule.Blocks[v.Block]
		if r.File != last.File || r.Offset != last.End() || f.held[v.Block] || f.isStagedFor(v.Block, end) {
			return bytes, behind, nil
		}
		resident, err := f.levers.ResidentBytes(r)
		if err != nil {
			return 0, 0, err
		}
		if resident >= r.Length {
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

// readAhead reads what of a range is not in memory. It returns how many bytes these are, and false if too
// many reads are under way.
func (s *session) readAhead(r pages.Range) (bytes int64, ok bool, err error) {
	resident, err := s.levers.ResidentBytes(r)
	if err != nil || resident >= r.Length {
		return 0, true, err
	}
	return r.Length - resident, s.levers.ReadAhead(r), nil
}
