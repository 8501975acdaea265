package prefetch

// This file stages what a target reads while it loads its model. llama.cpp maps a file with MAP_POPULATE: the kernel goes through all of it, in the order of the file, before
// the program goes on. Nobody can stop that from outside. What can be done is to read ahead of it at the disk's bandwidth, which it does not reach by itself where the device's
// readahead is small, and to decide what of it stays: of what it has passed, what is to be held and what a token reads first is left in memory, the rest is paged out. Left to the
// kernel, the end of the file would be in memory, and a token begins with its other end.

import (
	"cmp"
	"slices"
	"tensorcast/prefetch/pages"
	"time"
)

// loading is a target that loads its model, or may do so.
type loading struct {
	files []loadFile
	file  *loadFile // that it goes through; nil until that is known
	begun time.Time
	moved time.Time // when it was seen to come further
	swept int       // the first piece that it has passed and that was not looked at
	next  int       // the first piece that is not being read
	kept  int64     // bytes that stay, of those before swept
}

// loadFile is a file that the target may be going through.
type loadFile struct {
	file   int
	base   uint64  // where it is mapped
	pieces []piece // all of it, in order
	at     int     // the first piece that the target has not passed
}

// piece is a block of the schedule, or what lies between two.
type piece struct {
	pages.Range
	stays bool // in memory, when the target has passed it
}

const (
	// findTime is how long a target that has mapped a file takes to begin to go through it.
	findTime = 250 * time.Millisecond
	// loadStall without progress ends a loading: it was none, or is none any more.
	loadStall = 500 * time.Millisecond
	// loadAhead bounds what is read ahead of it while memory is left; else half of the window is.
	loadAhead = 64 << 20
	// passes is how many pieces are asked about at a time.
	passes = 64
)

// loads begins to watch a target that may be loading what is to be followed.
func (c *Controller) loads(files []loadFile) {
	if c.opts.Touched == nil || c.opts.Lock || len(files) == 0 || len(c.contexts.open) > 0 {
		return
	}
	c.load = &loading{files: files, begun: c.now()}
}

// Covers says whether the target's own faults had better read little now, as what it reads next is read for it. Of a mixture of experts they had: most of what they read besides nobody asked
// for, with help or without. What they read of a dense model is needed next, so that tokens without help would be slower, and the comparison with them unfair.
func (c *Controller) Covers() bool {
	h := c.help
	switch {
	case !c.begun || c.load != nil:
		return false
	case h == nil:
		return c.sum.Experts != nil
	case h.decode == 0 && c.contexts.main == nil: // the cycle came from a file, and the target loads the model, for which it has advice of its own
		return false
	case h.experts != nil:
		return true
	}
	return !c.watch.aside && c.opts.Strategy.Streams() && !h.glance.leaves(h.now, h.reads)
}

// stageLoading does what is due while the target loads.
func (c *Controller) stageLoading() error {
	l, now := c.load, c.now()
	if c.help.decode != 0 {
		return c.loaded()
	}
	if l.file == nil {
		if err := c.findLoading(); err != nil {
			return err
		}
		if l.file == nil {
			if now.Sub(l.begun) > findTime {
				return c.loaded()
			}
			return nil
		}
		l.moved = now
		if err := c.pages.InOrder(true); err != nil {
			return err
		}
	}
	before := l.file.at
	if err := l.file.pass(c.opts.Touched); err != nil {
		return err
	}
	if l.file.at > before {
		l.moved = now
	}
	if l.file.at == len(l.file.pieces) || now.Sub(l.moved) > loadStall {
		return c.loaded()
	}
	if err := c.readLoading(); err != nil {
		return err
	}
	return c.sweepLoading(now)
}

// findLoading looks for a file of which the target has touched something, and not the end.
func (c *Controller) findLoading() error {
	for i := range c.load.files {
		f := &c.load.files[i]
		if f.pieces == nil {
			f.pieces = c.cut(f.file)
		}
		if err := f.pass(c.opts.Touched); err != nil {
			return err
		}
		if f.at > 0 && f.at < len(f.pieces) {
			c.load.file = f
			return nil
		}
	}
	return nil
}

// cut cuts a file in pieces, and decides which of them stay.
func (c *Controller) cut(file int) (pieces []piece) {
	h := c.help
	soon, bytes := make([]bool, len(h.schedule.Blocks)), int64(0)
	for _, v := range h.schedule.Visits { // a token's beginning
		if n := h.schedule.Blocks[v.Block].Length; !h.want[v.Block] && !soon[v.Block] {
			if bytes += n; bytes > h.window.bytes/2 {
				break
			}
			soon[v.Block] = true
		}
	}
	var blocks []piece
	for b, r := range h.schedule.Blocks {
		if r.File == file {
			blocks = append(blocks, piece{r, h.want[b] || soon[b]})
		}
	}
	slices.SortFunc(blocks, func(a, b piece) int { return cmp.Compare(a.Offset, b.Offset) })
	at := int64(0)
	for _, b := range blocks {
		pieces = append(gap(pieces, file, at, b.Offset, h.block), b)
		at = b.End()
	}
	return gap(pieces, file, at, c.known[file].size, h.block)
}

// gap adds what lies between two offsets of a file, cut at multiples of step.
func gap(pieces []piece, file int, at, end, step int64) []piece {
	for at < end {
		n := min(step-at%step, end-at)
		pieces = append(pieces, piece{pages.Range{File: file, Offset: at, Length: n}, false})
		at += n
	}
	return pieces
}

// pass finds out how far the target has come: it has passed whatever lies before something that it has touched. As long as nothing is known, of all that it has touched only the
// last may be left; later it is looked for a little ahead.
func (f *loadFile) pass(touched func([]uint64) ([]bool, error)) error {
	everywhere := f.at == 0
	for first := f.at; first < len(f.pieces) && (everywhere || first == f.at); first += passes {
		some := f.pieces[first:min(first+passes, len(f.pieces))]
		ends := make([]uint64, len(some))
		for i, p := range some {
			ends[i] = f.base + uint64(p.End()-1)
		}
		are, err := touched(ends)
		if err != nil {
			return err
		}
		for i, is := range are {
			if is {
				f.at = first + i + 1
			}
		}
	}
	return nil
}

// readLoading reads ahead of the target, in its order: the large folios that it finds then it maps by one entry each. What its own faults have mapped, page by page, has page tables from then on, which
// make streaming several times as dear (see costs.go).
func (c *Controller) readLoading() error {
	l, h := c.load, c.help
	f := l.file
	l.next = max(l.next, f.at)
	ahead := int64(0)
	for _, p := range f.pieces[f.at:l.next] {
		ahead += p.Length
	}
	most := max(min(c.room.Bytes-l.kept-h.window.bytes, loadAhead), h.window.bytes/2)
	queued := false
	for ; l.next < len(f.pieces); l.next++ {
		p := f.pieces[l.next]
		if ahead > 0 && ahead+p.Length > most {
			break
		}
		read, ok, err := c.readAhead(p.Range)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if read > 0 {
			queued = true
			h.streamed += read
			c.meter.add(read)
		}
		ahead += p.Length
	}
	if !queued {
		return nil
	}
	return c.pages.Poll()
}

// sweepLoading pages out what the target has passed and what is not to stay, unless there is room for all.
func (c *Controller) sweepLoading(begun time.Time) error {
	l, whole := c.load, int64(0)
	for _, f := range l.files {
		whole += c.known[f.file].size
	}
	for ; l.swept < l.file.at && c.now().Sub(begun) < slice; l.swept++ {
		p := l.file.pieces[l.swept]
		if p.stays || c.room.Bytes >= whole {
			l.kept += p.Length
			continue
		}
		if err := c.pages.PageOut(p.Range); err != nil {
			return err
		}
	}
	return nil
}

// loaded ends the loading: now it is asked whether there is something to win, and what is in memory is held as the plan wants.
func (c *Controller) loaded() error {
	c.opts.Log.Info("the target has loaded the model", "after", c.now().Sub(c.load.begun), "staged", c.help.streamed)
	if err := c.endLoad(); err != nil {
		return err
	}
	if err := c.winnable(); err != nil {
		return err
	}
	return c.takeHold()
}

// endLoad forgets the loading, if there is one.
func (c *Controller) endLoad() error {
	if c.load == nil {
		return nil
	}
	c.load = nil
	return c.pages.InOrder(false)
}
