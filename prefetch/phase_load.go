package prefetch

// This file is the phase that reads ahead of a target which loads its model. llama.cpp maps a file with
// MAP_POPULATE: the kernel goes through all of it, in the order of the file, before the program goes on.
// Nobody can stop that from outside. What can be done is to read ahead of it at the disk's bandwidth, which
// it does not reach by itself where the device's readahead is small, and to decide what stays. Of what it has
// passed, what is to be held, what a token reads first, and hot experts are left in memory, and the rest is
// paged out. Left to the kernel, the end of the file would be in memory, and a token begins with its other
// end.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"tensorcast/event"
	"tensorcast/prefetch/pages"
)

const (
	// findTime is how long a target that has mapped a file takes to begin to go through it.
	findTime = 250 * time.Millisecond
	// loadStall without progress ends a loading: it was none, or is none any more.
	loadStall = 500 * time.Millisecond
	// loadAhead bounds, in bytes, what is read ahead of it while memory is left; otherwise half of the window
	// does.
	loadAhead = 64 << 20
	// askAtOnce is how many pieces are asked about at a time.
	askAtOnce = 64
)

// loadPhase helps a target that loads its model, or may do so. The next phase helps it decode, once it has
// loaded the model or begins to decode.
type loadPhase struct{ f *followed }

// loading is how far the load has come.
type loading struct {
	files []loadFile
	file  *loadFile // that the target goes through; nil until that is known
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
	passed int     // pieces that the target has passed
}

// piece is a block of the schedule, or what lies between two.
type piece struct {
	pages.Range
	stays bool // in memory, when the target has passed it
}

func (p *loadPhase) name() Phase { return Load }

func (p *loadPhase) enter() error { return nil }

func (p *loadPhase) handle(e event.Event) error {
	s, err := p.f.observe(e)
	if err != nil {
		return err
	}
	if s.tokens > 0 { // the loop comes late: the target decodes already
		p.f.work.count(s)
	}
	return nil
}

func (p *loadPhase) tick() error {
	f := p.f
	if err := f.upkeep(); err != nil {
		return err
	}
	l, now := f.loading, f.now()
	if f.Decode != 0 {
		return p.end("it decodes")
	}
	if l.file == nil {
		if err := f.findLoading(); err != nil {
			return err
		}
		if l.file == nil {
			if now.Sub(l.begun) > findTime {
				return p.end("it was not seen to load it")
			}
			return nil
		}
		l.moved = now
		if err := f.levers.SetInOrder(true); err != nil {
			return err
		}
	}
	before := l.file.passed
	if err := l.file.findPassed(f.opts.Target.Touched); err != nil {
		return err
	}
	if l.file.passed > before {
		l.moved = now
	}
	if l.file.passed == len(l.file.pieces) || now.Sub(l.moved) > loadStall {
		return p.end("it went through the file")
	}
	if err := f.readLoading(); err != nil {
		return err
	}
	return f.evictLoaded(now)
}

func (p *loadPhase) pause() time.Duration { return p.f.pauseForBlock(true) }

func (p *loadPhase) covers() bool { return false }

// end ends the loading. Now it is asked whether there is something to win, and what is in memory is held as
// the plan wants.
func (p *loadPhase) end(how string) error {
	f := p.f
	f.log.Info("the target has loaded the model", "after", f.now().Sub(f.loading.begun), "staged", f.streamed)
	if err := f.endLoading(); err != nil {
		return err
	}
	if err := f.judgeWinnable(); err != nil {
		return err
	}
	if err := f.takeHold(); err != nil {
		return err
	}
	if f.mixture != nil {
		f.mixture.NoteLoaded()
	}
	return f.help(fmt.Sprintf("the target has loaded the model: %s", how))
}

// endLoading forgets the loading.
func (f *followed) endLoading() error {
	f.loading = nil
	return f.levers.SetInOrder(false)
}

// findLoading looks for a file of which the target has touched something, and not the end.
func (f *followed) findLoading() error {
	for i := range f.loading.files {
		file := &f.loading.files[i]
		if file.pieces == nil {
			file.pieces = f.cutFile(file.file)
		}
		if err := file.findPassed(f.opts.Target.Touched); err != nil {
			return err
		}
		if file.passed > 0 && file.passed < len(file.pieces) {
			f.loading.file = file
			return nil
		}
	}
	return nil
}

// cutFile cuts a file into pieces, and decides which of them stay.
func (f *followed) cutFile(file int) (pieces []piece) {
	soon := f.beginOfToken(f.window.bytes / 2)
	var blocks []piece
	for b, r := range f.schedule.Blocks {
		if r.File == file {
			blocks = append(blocks, piece{r, f.want[b] || soon[b]})
		}
	}
	slices.SortFunc(blocks, func(a, b piece) int { return cmp.Compare(a.Offset, b.Offset) })
	hot := f.findHotParts(file)
	at := int64(0)
	for _, b := range blocks {
		pieces = append(addGapWithHot(pieces, hot, file, at, b.Offset, f.block), b)
		at = b.End()
	}
	return addGapWithHot(pieces, hot, file, at, f.files[file].size, f.block)
}

// addGapWithHot is addGap where some parts of a file stay. These are in order, and do not overlap.
func addGapWithHot(pieces []piece, hot []pages.Range, file int, at, end, step int64) []piece {
	for _, r := range hot {
		from, to := max(r.Offset, at), min(r.End(), end)
		if from >= to {
			continue
		}
		pieces = addGap(pieces, file, at, from, step)
		first := len(pieces)
		pieces = addGap(pieces, file, from, to, step)
		for i := range pieces[first:] {
			pieces[first+i].stays = true
		}
		at = to
	}
	return addGap(pieces, file, at, end, step)
}

// addGap adds what lies between two offsets of a file, cut at multiples of step.
func addGap(pieces []piece, file int, at, end, step int64) []piece {
	for at < end {
		n := min(step-at%step, end-at)
		pieces = append(pieces, piece{pages.Range{File: file, Offset: at, Length: n}, false})
		at += n
	}
	return pieces
}

// findPassed finds out how far the target has come: it has passed whatever lies before something that it has
// touched. As long as nothing is known all of the file is looked at: of all that the target has touched only
// the last part may be left. Later it is looked a little ahead.
func (l *loadFile) findPassed(touched func([]uint64) ([]bool, error)) error {
	everywhere := l.passed == 0
	for first := l.passed; first < len(l.pieces) && (everywhere || first == l.passed); first += askAtOnce {
		some := l.pieces[first:min(first+askAtOnce, len(l.pieces))]
		ends := make([]uint64, len(some))
		for i, p := range some {
			ends[i] = l.base + uint64(p.End()-1)
		}
		are, err := touched(ends)
		if err != nil {
			return err
		}
		for i, is := range are {
			if is {
				l.passed = first + i + 1
			}
		}
	}
	return nil
}

// readLoading reads ahead of the target, in its order. The large folios that it finds then it maps by one
// entry each. What its own faults have mapped, page by page, has page tables from then on, which make
// streaming several times as dear (see package costs).
func (f *followed) readLoading() error {
	l := f.loading
	l.next = max(l.next, l.file.passed)
	ahead := int64(0)
	for _, p := range l.file.pieces[l.file.passed:l.next] {
		ahead += p.Length
	}
	most := max(min(f.memory.room.Bytes-l.kept-f.window.bytes, loadAhead), f.window.bytes/2)
	queued := false
	for ; l.next < len(l.file.pieces); l.next++ {
		p := l.file.pieces[l.next]
		if ahead > 0 && ahead+p.Length > most {
			break
		}
		read, ok, err := f.readAhead(p.Range)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if read > 0 {
			queued = true
			f.streamed += read
			f.meter.add(read)
		}
		ahead += p.Length
	}
	if !queued {
		return nil
	}
	return f.levers.Poll()
}

// evictLoaded pages out what the target has passed and what is not to stay, unless there is room for all.
func (f *followed) evictLoaded(begun time.Time) error {
	l, whole := f.loading, int64(0)
	for _, file := range l.files {
		whole += f.files[file.file].size
	}
	for ; l.swept < l.file.passed && f.now().Sub(begun) < tickSlice; l.swept++ {
		p := l.file.pieces[l.swept]
		if p.stays || f.memory.room.Bytes >= whole {
			l.kept += p.Length
			continue
		}
		if err := f.levers.PageOut(p.Range); err != nil {
			return err
		}
	}
	return nil
}
