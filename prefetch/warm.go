package prefetch

// This file reads back what fits in memory after others took it, while the target computes nothing. So the
// next request to a server that was idle for long finds it there.

import (
	"time"

	"tensorcast/prefetch/pages"
)

const (
	// warmTime is how often it is looked whether something is missing, if that takes less than one part in
	// judgeShare of it.
	warmTime = 2 * time.Second
	// warmMost is how long the pause may grow while what was read back is taken again: somebody else needs
	// the memory more often.
	warmMost = 5 * time.Minute
	// warmShare times as long as it took to read back nothing is read back again.
	warmShare = 20
)

// warmth is what a target that fits reads, and what of it is missing.
type warmth struct {
	s       *session
	parts   []pages.Range // what tokens read, in the order of use
	missing []pages.Range // of these, when it was looked last
	bytes   []int64       // of each of these, that were not in memory
	pause   time.Duration
	at      time.Time // when to look next
}

// newWarmth is for what is being followed.
func newWarmth(f *followed) *warmth {
	w := &warmth{s: f.session, pause: warmTime, at: f.now().Add(warmTime)}
	type start struct {
		file   int
		offset int64
	}
	seen := map[start]bool{}
	for i := range f.cycle.Reads {
		r := &f.cycle.Reads[i]
		if seen[start{r.File, r.Offset}] || r.Gathers() && !r.Experts { // of rows a token reads next to nothing
			continue
		}
		seen[start{r.File, r.Offset}] = true
		end := min(r.End(), f.files[r.File].size)
		for at := r.Offset &^ (pages.PageSize - 1); at < end; {
			next := min(at-at%f.block+f.block, (end+pages.PageSize-1)&^(pages.PageSize-1))
			w.parts = append(w.parts, pages.Range{File: r.File, Offset: at, Length: next - at})
			at = next
		}
	}
	return w
}

// isCold says whether something of the model is missing. It is not, as long as it was looked a moment ago.
func (w *warmth) isCold() (bool, error) {
	s, begun := w.s, w.s.now()
	if begun.Before(w.at) {
		return false, nil
	}
	w.missing, w.bytes = w.missing[:0], w.bytes[:0]
	for _, r := range w.parts {
		resident, err := s.levers.ResidentBytes(r)
		if err != nil {
			return false, err
		}
		end := min(r.End(), s.files[r.File].size) // the last page may end behind the file
		if bytes := end - r.Offset - resident; bytes > 0 {
			w.missing, w.bytes = append(w.missing, r), append(w.bytes, bytes)
		}
	}
	if len(w.missing) == 0 {
		w.pause = max(w.pause/2, warmTime)
	}
	w.at = s.now().Add(max(w.pause, judgeShare*s.now().Sub(begun)))
	return len(w.missing) > 0, nil
}

// readBack reads what is missing, as long as idle says that the target computes nothing and memory is not
// short.
func (w *warmth) readBack(idle func() bool) error {
	s, begun, advised := w.s, w.s.now(), 0
	for i, r := range w.missing {
		if change := s.opts.Memory.PollChange(); change.ShortReason != "" || !idle() {
			break
		}
		for advised = max(advised, i); advised < min(len(w.missing), i+holdsAhead); advised++ {
			if _, ok, err := s.readAhead(w.missing[advised]); err != nil {
				return err
			} else if !ok {
				break
			}
		}
		if err := s.levers.Poll(); err != nil {
			return err
		}
		if err := s.levers.Keep(r); err != nil { // it may be unreadable: then the target does not read it, or ends
			s.log.Debug("a part of the model is not read back", "error", err)
			continue
		}
		s.work.warmed += w.bytes[i]
	}
	// What is taken again soon is read back less and less often.
	w.pause = min(max(2*w.pause, warmShare*s.now().Sub(begun)), warmMost)
	w.at = s.now().Add(w.pause)
	return nil
}
