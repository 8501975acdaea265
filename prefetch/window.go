package prefetch

// This file is the window: what is not held is read ahead of the target, and paged out behind it.

import "slices"

// window owns the visits that are streamed. Visit i of token n is number n*len(stream) + i.
type window struct {
	bytes  int64   // that may be staged
	stream []Visit // in order
	next   int64   // number of the visit to stage next
	staged []stage
	ahead  int64    // bytes of staged
	last   position // of the first read of the visit staged last

	streamed int64 // bytes read ahead, ever
	late     int   // visits that the target reached first
}

// stage is a visit that was read ahead, or met in memory, and is to be paged out once it is over.
type stage struct {
	block int
	end   position // behind its last read
}

// restream lists what is to be streamed, after held has changed. What is held now is not the window's any more.
func (w *window) restream(s *Schedule, held []bool, f *follower) {
	w.stream = s.streamed(held)
	w.next = 0
	w.staged = slices.DeleteFunc(w.staged, func(st stage) bool {
		if !held[st.block] {
			return false
		}
		w.ahead -= s.Blocks[st.block].Length
		return true
	})
	w.skip(f)
}

// at is the visit that a number stands for, and the positions of its first read and behind its last.
func (w *window) at(number int64, f *follower) (v Visit, from, end position) {
	token := position(number / int64(len(w.stream)))
	v = w.stream[number%int64(len(w.stream))]
	return v, token*position(f.reads) + position(v.From), token*position(f.reads) + position(v.To) + 1
}

// skip passes over visits that are over, or staged.
func (w *window) skip(f *follower) {
	if len(w.stream) == 0 {
		return
	}
	w.next = max(w.next, f.token(f.now)*int64(len(w.stream)))
	for {
		if _, from, end := w.at(w.next, f); end > f.now && (len(w.staged) == 0 || from > w.last) {
			return
		}
		w.next++
	}
}

func (w *window) isStaged(block int) bool {
	return slices.ContainsFunc(w.staged, func(st stage) bool { return st.block == block })
}

// evict pages out the visits that are over. A block on the border of two weights may be staged for a later visit too:
// it stays for that one.
func (w *window) evict(s *Schedule, f *follower, pages Pages) error {
	var over []int
	w.staged = slices.DeleteFunc(w.staged, func(st stage) bool {
		if st.end > f.now {
			return false
		}
		w.ahead -= s.Blocks[st.block].Length
		over = append(over, st.block)
		return true
	})
	for _, b := range over {
		if w.isStaged(b) {
			continue
		}
		if err := pages.PageOut(s.Blocks[b]); err != nil {
			return err
		}
	}
	return nil
}

// fill reads ahead of the target as far as the window goes.
func (w *window) fill(s *Schedule, f *follower, pages Pages) error {
	if len(w.stream) == 0 {
		return nil
	}
	queued := false
	for {
		v, from, end := w.at(w.next, f)
		length := s.Blocks[v.Block].Length
		if w.ahead > 0 && w.ahead+length > w.bytes {
			break
		}
		// What is over was read by the target itself: it only waits to be paged out.
		if end > f.now {
			if !pages.ReadAhead(s.Blocks[v.Block]) {
				break
			}
			queued = true
			w.streamed += length
		} else {
			w.late++
		}
		w.staged = append(w.staged, stage{v.Block, end})
		w.last = from
		w.ahead += length
		w.next++
	}
	if !queued {
		return nil
	}
	return pages.Poll()
}
