package trace

// This file turns page-ins into rows of the pagein table. It finds the tensors and counts how often the
// same bytes were read from disk. A page-in waits until it is known whether its file is a model's
// (pendingPageIns), and which op was running (heldPageIn).

import (
	"math"
	"slices"
	"sort"
	"time"

	"tensorcast/event"
	"tensorcast/trace/tables"
)

const (
	countedPage = 4096     // bytes per counter, independent of the machine's page size
	countChunk  = 16 << 10 // counters allocated together, for 64 MiB of a file

	pendingRuns  = 1 << 16 // page-ins kept of files that are not known to be a model's
	pendingFiles = 4096
	heldPageIns  = 8192 // page-ins kept until their op arrives
)

// pageCounts counts how often each page of a file was read from disk. It takes 2 bytes per page,
// and only for those parts of the file that were read.
type pageCounts struct{ chunks [][]uint16 }

// add increments the counters of the pages in [from, to). It calls each, in order, for the pieces
// of that range that had the same count before, with that count.
func (c *pageCounts) add(from, to int64, each func(from, to int64, before int32) error) error {
	for at := from; at < to; {
		before := c.counter(at)
		end := at
		for end < to && *before == *c.counter(end) {
			end = min(to, (end/countedPage+1)*countedPage)
		}
		n := *before
		for p := at; p < end; p = (p/countedPage + 1) * countedPage {
			if n < math.MaxUint16 {
				*c.counter(p)++
			}
		}
		if err := each(at, end, int32(n)); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// counter returns the counter of the page that holds byte off of the file.
func (c *pageCounts) counter(off int64) *uint16 {
	page := off / countedPage
	chunk := int(page / countChunk)
	if missing := chunk + 1 - len(c.chunks); missing > 0 {
		c.chunks = append(c.chunks, make([][]uint16, missing)...)
	}
	if c.chunks[chunk] == nil {
		c.chunks[chunk] = make([]uint16, countChunk)
	}
	return &c.chunks[chunk][page%countChunk]
}

// pendingPageIns keeps page-ins of files that may turn out to be a model's, because the first pages of a
// model are read before its first op. Its size is bounded. If it is full, it drops the page-ins of the
// file whose latest page-in is the oldest, and counts them.
type pendingPageIns struct {
	files map[event.FileID]*pendingFile
	runs  int    // in all files
	clock uint64 // counts page-ins
	lost  uint64 // page-ins of files that were dropped altogether
}

type pendingFile struct {
	runs    []event.PageIn
	lastUse uint64 // value of pendingPageIns.clock at the latest page-in
	dropped uint64 // page-ins that there was no room for
}

// add keeps a page-in. If it continues the file's latest one, the two become one.
func (p *pendingPageIns) add(e event.PageIn) {
	f := p.file(e.File)
	p.clock++
	f.lastUse = p.clock
	if n := len(f.runs); n > 0 {
		r := &f.runs[n-1]
		if r.Offset+r.Bytes == e.Offset && r.PID == e.PID && r.TID == e.TID && r.Cause == e.Cause &&
			r.Decode == e.Decode {
			r.Bytes += e.Bytes
			return
		}
	}
	if p.runs >= pendingRuns {
		_, oldest := p.oldest(func(o *pendingFile) bool { return len(o.runs) > 0 })
		p.runs -= len(oldest.runs)
		oldest.dropped += uint64(len(oldest.runs))
		oldest.runs = nil
	}
	f.runs = append(f.runs, e)
	p.runs++
}

// file returns a file's entry. It makes one if there is none.
func (p *pendingPageIns) file(id event.FileID) *pendingFile {
	if f := p.files[id]; f != nil {
		return f
	}
	if p.files == nil {
		p.files = map[event.FileID]*pendingFile{}
	}
	if len(p.files) >= pendingFiles {
		id, oldest := p.oldest(func(*pendingFile) bool { return true })
		p.runs -= len(oldest.runs)
		p.lost += oldest.dropped + uint64(len(oldest.runs))
		delete(p.files, id)
	}
	f := &pendingFile{}
	p.files[id] = f
	return f
}

// oldest returns the file whose latest page-in is the oldest, of those that among accepts.
func (p *pendingPageIns) oldest(among func(*pendingFile) bool) (event.FileID, *pendingFile) {
	var (
		id    event.FileID
		found *pendingFile
	)
	for i, f := range p.files {
		if among(f) && (found == nil || f.lastUse < found.lastUse) {
			id, found = i, f
		}
	}
	return id, found
}

// take removes a file and returns its page-ins, and how many of them were dropped.
func (p *pendingPageIns) take(id event.FileID) (runs []event.PageIn, dropped uint64) {
	f := p.files[id]
	if f == nil {
		return nil, 0
	}
	p.runs -= len(f.runs)
	delete(p.files, id)
	return f.runs, f.dropped
}

// heldPageIn is a page-in that waits for the event of the op during which it happened.
type heldPageIn struct {
	part *modelPart
	event.PageIn
}

// readRate is how fast bytes are read: the most in some window of rateTime or more.
type readRate struct {
	began int64 // ns, of this window
	bytes int64 // read in it
	best  float64
}

// rateTime is long enough that what the disk has in a cache, or has read ahead, makes little of it.
const rateTime = int64(250 * time.Millisecond)

// add counts bytes that were read at a time, in ns. Times may go back a little: threads are told apart by the kernel.
func (w *readRate) add(at, bytes int64) {
	took := at - w.began
	switch {
	case w.began == 0 || took > 2*rateTime: // nothing was read for a while
		w.began, w.bytes = at, 0
	case took >= rateTime:
		w.best = max(w.best, float64(w.bytes)/time.Duration(took).Seconds())
		w.began, w.bytes = at, 0
	}
	w.bytes += bytes
}

func (r *Recorder) recordPageIn(e event.PageIn) error {
	p, known := r.files[e.File]
	if !known {
		r.pending.add(e)
		return nil
	}
	if p == nil || e.Bytes <= 0 || e.Offset < 0 {
		return nil
	}
	r.readRate.add(e.Time, e.Bytes)
	if err := r.notePageInsObserved(); err != nil {
		return err
	}
	if e.Seq != 0 && r.steps.isOpen(e.Decode) {
		if len(r.held) >= heldPageIns {
			if err := r.releasePageIns(func(*heldPageIn) (string, bool) { return "", true }); err != nil {
				return err
			}
		}
		r.held = append(r.held, heldPageIn{p, e})
		return nil
	}
	return r.writePageIn(p, &e, "")
}

// notePageInsObserved records that page-ins are observed.
func (r *Recorder) notePageInsObserved() error {
	if r.rereads == nil {
		r.rereads = &rereadAccount{}
	}
	if r.w == nil {
		return nil
	}
	return r.w.PageIns()
}

// releasePending writes the pending page-ins of a file if it has turned out to be a model's, else it
// forgets them.
func (r *Recorder) releasePending(id event.FileID) error {
	runs, dropped := r.pending.take(id)
	p := r.files[id]
	if p == nil || len(runs) == 0 && dropped == 0 {
		return nil
	}
	r.lost.pageIns += dropped
	if err := r.notePageInsObserved(); err != nil {
		return err
	}
	for i := range runs {
		if err := r.writePageIn(p, &runs[i], ""); err != nil {
			return err
		}
	}
	return nil
}

// releasePageInsOf writes the page-ins that waited for this op. It also writes those that waited for
// earlier ops of the decode, as page-ins of no op: ops that read no weights have no event.
func (r *Recorder) releasePageInsOf(o *event.Op) error {
	return r.releasePageIns(func(h *heldPageIn) (string, bool) {
		switch {
		case h.Decode != o.Decode || h.Seq > o.Seq:
			return "", false
		case h.Seq == o.Seq:
			return o.Name, true
		}
		return "", true
	})
}

// releasePageIns writes those held page-ins for which due returns true, with the op that it returns.
func (r *Recorder) releasePageIns(due func(*heldPageIn) (op string, ok bool)) error {
	if len(r.held) == 0 {
		return nil
	}
	var err error
	r.held = slices.DeleteFunc(r.held, func(h heldPageIn) bool {
		op, ok := due(&h)
		if !ok || err != nil {
			return false
		}
		err = r.writePageIn(h.part, &h.PageIn, op)
		return true
	})
	return err
}

func (r *Recorder) writePageIn(p *modelPart, e *event.PageIn, op string) error {
	row := tables.PageInRow{
		Timestamp: e.Time - r.begun, Step: r.numbers.get(e.Decode), File: p.name, PID: e.PID, Thread: e.TID,
		Cause: e.Cause, Op: op, Model: p.model.index,
	}
	// The last page extends beyond the end of the file.
	return p.pages.add(e.Offset, min(e.Offset+e.Bytes, p.file.Size), func(from, to int64, before int32) error {
		row.Rereads = before
		for at := from; at < to; at += row.Bytes {
			var end int64
			row.Tensor, row.Expert, end = p.pieceAt(at)
			row.Offset, row.Bytes = at, min(to, end)-at
			if r.opts.NoTokenIDs && row.Tensor >= 0 && isTokenEmbedding(r.rows[row.Tensor].Name) {
				row.Offset = r.rows[row.Tensor].Offset
			}
			r.rereads.addPageIn(&row)
			if r.w == nil {
				continue
			}
			if err := r.w.PageIn(&row); err != nil {
				return err
			}
		}
		return nil
	})
}

// isTokenEmbedding reports whether a tensor has a row for each token. Which of its pages are read reveals
// which tokens there were.
func isTokenEmbedding(tensor string) bool {
	return tensor == event.TokenEmbeddings || tensor == "per_layer_"+event.TokenEmbeddings
}

// pieceAt returns what byte off of the file belongs to, and where that piece ends. A piece is an
// expert's slice, a tensor, or metadata or padding (row -1). expert is -1 if it is no expert's slice.
func (p *modelPart) pieceAt(off int64) (row, expert int32, end int64) {
	l, ok := p.file.Locate(off)
	if !ok {
		tensors := p.file.Tensors
		next := sort.Search(len(tensors), func(i int) bool { return tensors[i].Offset > off })
		if next < len(tensors) {
			return -1, -1, tensors[next].Offset
		}
		return -1, -1, p.file.Size
	}
	t := l.Tensor
	end = t.End()
	if stride := t.ExpertStride(); stride > 0 && l.Expert >= 0 {
		end = min(end, t.Offset+int64(l.Expert+1)*stride)
	}
	return p.rows[t], int32(l.Expert), end
}
