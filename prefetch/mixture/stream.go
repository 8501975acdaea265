package mixture

// This file streams the experts of a prompt. A prompt of some hundred tokens chooses nearly all experts of each layer,
// so no router need be asked. What is not resident of the layers that come is read ahead in the order of use, in large
// ranges, and is paged out behind the target. What is resident stays, but for the least likely experts: their room is
// the window.
//
// llama.cpp cuts a batch into ubatches, 512 tokens each by default (llama_context::decode in llama-context.cpp). Each
// of them goes through all layers once, which is a pass here. The last layer may compute only the tokens whose logits
// are wanted: build_inp_out_ids in llama.cpp's graphs selects their rows before its feed-forward part. Such a layer's
// experts are read when its router has chosen.

import (
	"math"
	"slices"

	"tensorcast/event"
	"tensorcast/prefetch/pages"
)

const (
	// leastTouched is the share of a layer's experts that a pass has to be expected to choose to be streamed.
	leastTouched = 0.75
	// firstLocality is how many tokens choose as many different experts as one would if each chose by itself, until
	// that was seen. Neighbouring tokens choose alike. localityStep of what is seen is learned from each choice.
	firstLocality = 4
	localityStep  = 1.0 / 16
	// usualUbatch is llama.cpp's default for the tokens of a pass.
	usualUbatch = 512
	// The window has room for the tensor in use and the next one at least, and for one more if it takes a windowShare
	// of the room at most. It never takes more than half of the room.
	leastTensors, mostTensors = 2, 3
	windowShare               = 4
	// mostAhead is the longest range, in bytes, that is asked for at once.
	mostAhead = 8 << 20
	// scrapShare of a range may be in memory to be paged out before all of the range is read. Pages that were left over
	// would cut the large folios in which the rest is read.
	scrapShare = 8
)

// tensor is a weight that is cut into the experts of a layer.
type tensor struct {
	layer int         // its index
	part  int         // index in expert.slices
	whole pages.Range // all experts
	own   pages.Range // the whole pages of it that nobody else needs
}

// stream is how far the experts of a prompt are read. Tensor i of pass n has the number n*len(tensors) + i.
type stream struct {
	on     bool
	window int64 // bytes that may be staged; 0 unless it is on

	// What the target does.

	left  int   // tokens of the decode that no pass has begun with
	rows  int   // tokens of the pass under way
	layer int   // index of the layer that has chosen last in this pass; negative: none has
	base  int64 // number of the first tensor of the pass under way
	at    int64 // number of the tensor that is in use, or comes next

	// What is read.

	next   int64          // number of the tensor that is read next,
	rest   []rangeToRead  // what is left of it to be read,
	opened bool           // if that was begun
	end    int64          // number of the tensor behind those of the last pass that is expected
	staged []stagedTensor // in order
	bytes  int64          // of staged

	// What is known of the target.

	perToken  int     // experts that a token chooses of a layer
	locality  float64 // see firstLocality
	prompts   int     // decodes in a row that were prompts
	generates bool    // it has decoded few tokens
}

// rangeToRead is a part of a tensor.
type rangeToRead struct {
	pages.Range
	stays bool // its experts are resident, so that it is not paged out
}

// stagedTensor is one of which something is in memory that is to be paged out behind the target.
type stagedTensor struct {
	number int64
	bytes  int64 // that count for the window
}

// newStream begins with what a cycle tells: how many experts each layer chose in the decode that it was learned from.
func (m *Mixture) newStream() stream {
	s := stream{locality: firstLocality, layer: -1, perToken: math.MaxInt}
	most := 0
	for i := range m.layers {
		s.perToken, most = min(s.perToken, m.layers[i].chose), max(most, m.layers[i].chose)
	}
	for i := range m.layers {
		m.layers[i].few = 2*m.layers[i].chose < most
	}
	m.layers[len(m.layers)-1].few = true // until it is seen to choose for all tokens
	return s
}

// BeginDecode is told that the target begins to decode so many tokens; 0 if they are not what it usually decodes.
func (m *Mixture) BeginDecode(tokens int) {
	s := &m.stream
	if s.layer >= 0 { // the end of the decode before was not seen
		m.EndDecode()
	}
	s.left, s.layer = tokens, -1
	switch {
	case tokens > leastRows:
		s.prompts++
		if rows := min(tokens, usualUbatch); !s.on && m.isWorthStreaming(rows) {
			m.beginStream()
			s.end = int64(len(m.tensors))
		}
	case tokens > 0:
		s.prompts, s.generates = 0, true
		m.endStream()
	}
}

// EndDecode is told that the target's decode is over. Where prompts follow each other the next one is read ahead.
func (m *Mixture) EndDecode() {
	s := &m.stream
	began := s.layer >= 0
	s.layer = -1
	switch n := int64(len(m.tensors)); {
	case !s.on:
	case began && m.isRepeated():
		s.base += n
		m.moveTo(s.base)
		s.end = s.base + n
	default:
		m.endStream()
	}
}

// isRepeated says whether a prompt is likely to be followed by another one.
func (m *Mixture) isRepeated() bool { return !m.stream.generates || m.stream.prompts > 1 }

// NoteRead is told that the target's op is over that reads experts of the tensor at an offset of a file.
func (m *Mixture) NoteRead(file int, offset int64) {
	s := &m.stream
	if !s.on || s.layer < 0 {
		return
	}
	l := &m.layers[s.layer]
	for i := l.first; i < l.first+l.tensors; i++ {
		if w := m.tensors[i].whole; w.File == file && w.Offset == offset {
			m.moveTo(max(s.at, s.base+int64(i)+1))
		}
	}
}

// IsStreaming says whether experts are read ahead without asking their router.
func (m *Mixture) IsStreaming() bool { return m.stream.on }

// Staged is how many bytes of experts are read ahead for a prompt, or wait to be paged out.
func (m *Mixture) Staged() int64 { return m.stream.bytes }

// keepable is how many bytes of experts may be resident.
func (m *Mixture) keepable() int64 { return m.room - m.stream.window }

// windowIn is how many bytes may be staged in a room; 0 if it is too small for that.
func (m *Mixture) windowIn(room int64) int64 {
	var largest int64
	for i := range m.tensors {
		largest = max(largest, m.tensors[i].whole.Length)
	}
	if leastTensors*largest > room/2 {
		return 0
	}
	return min(max(room/windowShare, leastTensors*largest), mostTensors*largest)
}

// isWorthStreaming says whether so many tokens, in one pass, are expected to choose most experts of each layer, and
// there is room to stream these. Where some experts are computed elsewhere nothing is streamed.
func (m *Mixture) isWorthStreaming(tokens int) bool {
	return tokens > leastRows && m.opts.Keep && m.opts.Routes == nil && m.resident < m.size && m.windowIn(m.room) > 0 &&
		m.expectTouched(tokens) >= leastTouched
}

// expectTouched is which share of a layer's experts so many tokens are expected to choose. If each of them chose k of n
// experts by itself, they would leave out (1-k/n)^tokens of these.
func (m *Mixture) expectTouched(tokens int) float64 {
	left := 1 - float64(m.stream.perToken)/float64(len(m.layers[0].experts))
	return 1 - math.Pow(max(left, 0), float64(tokens)/m.stream.locality)
}

// learnLocality learns from a choice how alike tokens choose. If they chose all of the layer's experts, that is only
// bounded.
func (m *Mixture) learnLocality(l *layer, chosen, rows int) {
	s, n := &m.stream, float64(len(l.experts))
	if rows <= leastRows || s.perToken <= 0 || s.perToken >= len(l.experts) {
		return
	}
	all := chosen >= len(l.experts)
	left := max(1-float64(chosen)/n, 1/(2*n))
	alike := max(float64(rows)*math.Log(1-float64(s.perToken)/n)/math.Log(left), 1)
	if all {
		s.locality = min(s.locality, alike)
		return
	}
	s.locality += localityStep * (alike - s.locality)
}

// beginStream begins to stream, from the first layer on. The least likely experts make room for the window.
func (m *Mixture) beginStream() {
	s := &m.stream
	s.on, s.window = true, m.windowIn(m.room)
	s.base, s.at, s.next, s.end = 0, 0, 0, 0
	s.rest, s.opened, s.staged, s.bytes = nil, false, nil, 0
	m.MakeRoom()
}

// endStream pages out what is staged, and streams no more.
func (m *Mixture) endStream() {
	s := &m.stream
	if !s.on {
		return
	}
	s.at = math.MaxInt64
	m.evictPassed()
	m.forgetStream()
}

// forgetStream leaves what is staged as it is, and streams no more.
func (m *Mixture) forgetStream() {
	s := &m.stream
	s.on, s.window = false, 0
	s.rest, s.opened, s.staged, s.bytes = nil, false, nil, 0
}

// enterLayer is told that a layer chooses for so many tokens. It says whether the layer's experts are streamed.
func (m *Mixture) enterLayer(at int, e *event.Selected, chosen int) (streamed bool) {
	s, l := &m.stream, &m.layers[at]
	if at <= s.layer || s.layer < 0 {
		m.beginPass(e.IDRows)
	}
	s.layer = at
	if k := len(e.IDs) / e.IDRows; k < len(l.experts) { // the warm-up chooses all
		s.perToken = k
	}
	m.learnLocality(l, chosen, e.IDRows)
	if !s.on {
		return false
	}
	m.moveTo(max(s.at, s.base+int64(l.first)))
	few := l.few
	if l.few = 2*e.IDRows < s.rows; few && !l.few {
		m.rewindTo(s.base + int64(l.first))
	}
	return !l.few
}

// rewindTo has reading go on with a tensor that was passed over. What was read of those behind it gives way.
func (m *Mixture) rewindTo(number int64) {
	s := &m.stream
	if s.next <= number {
		return
	}
	first := slices.IndexFunc(s.staged, func(t stagedTensor) bool { return t.number >= number })
	if first < 0 {
		first = len(s.staged)
	}
	for _, t := range s.staged[first:] {
		if t.bytes > 0 {
			m.evictStaged(t.number)
		}
		s.bytes -= t.bytes
	}
	s.staged = s.staged[:first]
	s.next, s.rest, s.opened = number, nil, false
}

// beginPass begins a pass of so many tokens, and expects those that follow it.
func (m *Mixture) beginPass(rows int) {
	s, n := &m.stream, int64(len(m.tensors))
	s.rows, s.left = rows, max(s.left-rows, 0)
	switch is := m.isWorthStreaming(rows); {
	case !is:
		m.endStream()
		return
	case !s.on:
		m.beginStream()
	case s.layer >= 0: // the pass before is over
		s.base += n
	}
	m.moveTo(max(s.at, s.base))
	passes := 1 + int64(s.left/rows)
	if m.isWorthStreaming(s.left % rows) {
		passes++
	}
	if m.isRepeated() {
		passes++
	}
	s.end = s.base + passes*n
}

// moveTo is told which tensor the target uses now, or next. What it has read by itself is to be paged out as well.
func (m *Mixture) moveTo(at int64) {
	s := &m.stream
	s.at = at
	for ; s.next < at; s.next++ {
		if !s.opened {
			s.staged = append(s.staged, stagedTensor{number: s.next})
		}
		s.rest, s.opened = nil, false
	}
}

// passLayer notes what a layer has chosen whose experts are streamed.
func (m *Mixture) passLayer(at int, ids []int32, e *event.Selected) {
	l := &m.layers[at]
	m.endIdle(m.opts.Now())
	m.now, m.unread = at, false
	m.clock++
	m.settlePredicted(l, ids)
	m.total.chosen += int64(len(ids))
	late := m.stream.next <= m.stream.base+int64(l.first) && !m.stream.opened
	for _, id := range ids {
		x := &l.experts[id]
		x.chosenAt = m.clock
		if late && !x.resident {
			m.total.missed++
		}
	}
	m.noteChoice(l, e, ids, false)
	m.observeChoice(at, *e)
}

// StreamAhead pages out what a prompt has passed, and reads ahead of it as far as the window goes. It returns how many
// bytes it asked for.
func (m *Mixture) StreamAhead() (read int64, err error) {
	s := &m.stream
	if !s.on {
		return 0, nil
	}
	m.evictPassed()
	for {
		if !s.opened && !m.openNext() {
			break
		}
		n, done, err := m.readRest()
		read += n
		if err != nil {
			return read, err
		}
		if !done {
			break
		}
		s.opened = false
		s.next++
	}
	m.total.read += read
	if read == 0 {
		return 0, nil
	}
	return read, m.levers.Poll()
}

// openNext finds out what of the next tensor is to be read; false if none comes next.
func (m *Mixture) openNext() bool {
	s, n := &m.stream, int64(len(m.tensors))
	for s.next < s.end && m.layers[m.tensors[s.next%n].layer].few {
		s.staged = append(s.staged, stagedTensor{number: s.next})
		s.next++
	}
	if s.next >= s.end {
		return false
	}
	t := &m.tensors[s.next%n]
	if t.part == 0 {
		m.shareRoom(&m.layers[t.layer])
	}
	s.rest = m.cutTensor(t)
	s.staged = append(s.staged, stagedTensor{number: s.next})
	s.opened = true
	return true
}

// cutTensor cuts a tensor into ranges of experts that are resident, and ranges of others.
func (m *Mixture) cutTensor(t *tensor) (ranges []rangeToRead) {
	experts := m.layers[t.layer].experts
	for i := range experts {
		e := &experts[i]
		if t.part >= len(e.slices) {
			continue
		}
		r, stays := e.slices[t.part], e.resident || e.bytes == 0
		if n := len(ranges); n > 0 && ranges[n-1].stays == stays {
			ranges[n-1].Length = r.End() - ranges[n-1].Offset
			continue
		}
		ranges = append(ranges, rangeToRead{r, stays})
	}
	return ranges
}

// shareRoom keeps experts of a layer that a pass is about to read, as long as there is room, and up to the layer's part
// of it. They lie together, so that what is streamed does, too. Where one prompt follows the other a layer gives up
// what it has beyond its part: what was left in memory when help began is of a few layers, and the disk would have
// nothing to read while the target computes with these.
func (m *Mixture) shareRoom(l *layer) {
	var all, have int64
	for i := range l.experts {
		all += l.experts[i].bytes
		if l.experts[i].resident {
			have += l.experts[i].bytes
		}
	}
	part := int64(float64(m.keepable()) * float64(all) / float64(m.size))
	if s := &m.stream; s.prompts > 1 && !s.generates {
		for i := len(l.experts) - 1; i >= 0 && have > part; i-- {
			if e := &l.experts[i]; e.resident {
				e.resident = false
				have -= e.bytes
				m.resident -= e.bytes
			}
		}
	}
	for i := range l.experts {
		e := &l.experts[i]
		if e.resident || e.bytes == 0 {
			continue
		}
		if have+e.bytes > part || m.resident+e.bytes > m.keepable() {
			return
		}
		e.resident = true
		have += e.bytes
		m.resident += e.bytes
	}
}

// readRest reads what is left of the tensor that was opened, as far as the window has room. It is done if nothing is
// left.
func (m *Mixture) readRest() (read int64, done bool, err error) {
	s := &m.stream
	for len(s.rest) > 0 {
		first := &s.rest[0]
		r := cutAhead(first.Range, m.levers.BlockBytes())
		if !first.stays && s.bytes > 0 && s.bytes+r.Length > s.window {
			return read, false, nil
		}
		there, err := m.levers.ResidentBytes(r)
		if err != nil {
			return read, false, err
		}
		isScrap := !first.stays && there > 0 && there < r.Length/scrapShare
		own := trimToPages(intersect(r, m.tensors[s.next%int64(len(m.tensors))].own))
		if isScrap && own.Length > 0 && !m.levers.IsReading(r) {
			if err := m.levers.PageOut(own); err != nil {
				return read, false, err
			}
		}
		if there < r.Length {
			if !m.levers.ReadAhead(r) {
				return read, false, nil
			}
			read += r.Length - there
		}
		if !first.stays {
			s.bytes += r.Length
			s.staged[len(s.staged)-1].bytes += r.Length
		}
		if first.Offset, first.Length = r.End(), first.End()-r.End(); first.Length <= 0 {
			s.rest = s.rest[1:]
		}
	}
	return read, true, nil
}

// cutAhead is the part of a range, from its beginning, that is asked for at once: whole blocks where there are some,
// and otherwise what lies before the next block.
func cutAhead(r pages.Range, block int64) pages.Range {
	end := r.End()
	if before := (r.Offset + block - 1) / block * block; before > r.Offset {
		end = min(end, before)
	} else if whole := end / block * block; whole > r.Offset {
		end = min(whole, r.Offset+max(mostAhead, block))
	}
	return pages.Range{File: r.File, Offset: r.Offset, Length: end - r.Offset}
}

// intersect is what two ranges of a file have in common.
func intersect(a, b pages.Range) pages.Range {
	first, end := max(a.Offset, b.Offset), min(a.End(), b.End())
	return pages.Range{File: a.File, Offset: first, Length: max(end-first, 0)}
}

// evictPassed has what is not resident paged out of the tensors that the target has passed.
func (m *Mixture) evictPassed() {
	s := &m.stream
	for len(s.staged) > 0 && s.staged[0].number < s.at {
		if !m.evictStaged(s.staged[0].number) {
			return
		}
		s.bytes -= s.staged[0].bytes
		s.staged = s.staged[1:]
	}
}

// evictStaged has what is not resident of a tensor paged out. It returns false if too much waits for that.
func (m *Mixture) evictStaged(number int64) bool {
	t := &m.tensors[number%int64(len(m.tensors))]
	for _, r := range m.cutTensor(t) {
		own := trimToPages(intersect(r.Range, t.own))
		if !r.stays && own.Length > 0 && !m.levers.Evict(own) {
			return false
		}
	}
	for i := range m.layers[t.layer].experts {
		if e := &m.layers[t.layer].experts[i]; !e.resident {
			e.evictedAt = m.clock
		}
	}
	return true
}
