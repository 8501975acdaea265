package mixture

// This file knows the experts of a model, and follows what routers choose of them.

import (
	"slices"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// Levers are what a mixture needs of the page cache.
type Levers interface {
	pages.AheadReader
	pages.DemandReader
	pages.Reclaimer
	// ReadAhead is as in pages.AheadReader.
	ReadAhead(r pages.Range) bool
}

// Routes knows which experts are computed elsewhere, so that the target does not read them. Its call must not
// take long.
type Routes interface {
	// Elsewhere says whether an expert is computed elsewhere. Layers have the numbers that they have in the
	// model.
	Elsewhere(layer, expert int32) bool
}

// Options of a Mixture.
type Options struct {
	Levers Levers
	// Keep says that experts stay in memory as long as there is room. Otherwise only those being used do.
	Keep bool
	// Routes is nil if no expert is computed elsewhere.
	Routes Routes
	// Predict makes a predictor once it is known how many experts a token chooses. nil, or a nil result,
	// means that experts are read only when they were chosen.
	Predict func(Routers) Predictor
	// Known is what is known of the experts before any was chosen; nil: nothing is.
	Known *Known
	// IsBorrowed says that all of a range is in memory, and that another control group pays for it. An expert of
	// which that is so costs nothing, and is never paged out. nil: none is.
	IsBorrowed func(pages.Range) bool
	// Refuse is told, at most once by what it keeps itself, that the target says something impossible.
	Refuse func(what string, args ...any)
	Now    func() time.Time
}

// Mixture is all experts of a model.
type Mixture struct {
	opts   Options
	levers Levers

	layers []layer       // in the order of use
	index  map[int32]int // of layers, by their number in the model
	size   int64         // bytes of all experts, without what blocks that every token reads have of them
	least  int64         // bytes that have to be in memory while they are used: what two layers choose
	exact  bool          // least is what a batch chose; until then it is what the warm-up chose, which is all
	room   int64         // bytes that may be in memory

	resident int64 // bytes that are in memory, as far as is known
	last     choice
	now      int    // index of the layer whose experts are under way
	clock    uint64 // counts choices
	unread   bool   // some of what was chosen last was left to the target
	doubted  uint64 // until this clock it is looked whether what is believed to be in memory is there, see Doubt

	waiting waiting
	strays  strays
	total   totals
	ahead   ahead
	hot     hot

	tensors []tensor // of all layers, in the order of use
	stream  stream
}

// layer is what one router chooses from.
type layer struct {
	experts []expert
	tensors int     // that are cut into experts
	first   int     // index of the first of these in Mixture.tensors
	chose   int     // experts, in the decode that the cycle was learned from
	few     bool    // it chooses for some tokens of a prompt only
	step    float64 // what a choice adds to a score: it grows, so that choices of long ago count less
}

// expert is the slices of a layer's tensors that belong together.
type expert struct {
	slices []pages.Range // one of each tensor, in the order of use
	// owned are the whole pages of them that nobody else needs. Neighbours share pages, and blocks that every
	// token reads begin within slices. Pages that have to stay for reads (see
	// pages.DemandReader.SlicePieceBytes) are left out.
	owned []pages.Range
	bytes int64 // of slices, without what the blocks have of them; 0 if another control group pays for all of it

	score     float64 // sum of the steps of the choices that had it
	resident  bool    // in memory, as far as is known
	chosenAt  uint64  // the clock when it was chosen last
	evictedAt uint64  // the clock when it was paged out last
	elsewhere bool    // it is computed elsewhere: the target does not read it
	hot       bool    // it is one of those that were to be read first

	predicted float64 // the chance that its layer chooses it next, where a predictor takes that to be likely; else 0
	early     int64   // bytes that were read for that
}

// choice is what a router chose.
type choice struct {
	decode uint32
	ids    []int32 // in order
}

// totals add up over the life of a Mixture.
type totals struct {
	chosen, missed int64 // experts that were chosen, and those of them that were not in memory
	read           int64 // bytes that were read for them
	strays         int64 // bytes that the target's faults read around themselves, and that were paged out
}

const (
	// maxExperts bounds how many experts a layer may have, whatever a target says. llama.cpp's own bound is
	// 512.
	maxExperts = 4096
	// margin is left free, in bytes. What gives way is paged out behind the reads that need its room, and
	// faults of the target read around themselves. With 12 MiB tokens were no faster.
	margin = 24 << 20
)

// leastRows is the largest batch of which it is learned what has to be in memory: one of slots or of a draft, which
// comes again and again, and no prompt.
const leastRows = 32

// New finds the experts in a cycle; nil if it has none. blocks are those of the schedule, which every token
// reads.
func New(cycle *pattern.Cycle, blocks []pages.Range, opts Options) *Mixture {
	found := findExperts(cycle, blocks, opts.Levers.SlicePieceBytes)
	if len(found.layers) == 0 {
		return nil
	}
	m := &Mixture{opts: opts, levers: opts.Levers, layers: found.layers, index: found.index, least: 2 * found.most,
		tensors: found.tensors}
	m.clock = 1 // what was never chosen is not in use
	for i := range m.layers {
		for j := range m.layers[i].experts {
			e := &m.layers[i].experts[j]
			if opts.IsBorrowed != nil && !slices.ContainsFunc(e.slices, func(r pages.Range) bool {
				return !opts.IsBorrowed(r)
			}) {
				e.bytes = 0
			}
			m.size += e.bytes
		}
	}
	m.stream = m.newStream()
	m.begin()
	return m
}

// Size is how many bytes all experts have, without what the schedule's blocks have of them.
func (m *Mixture) Size() int64 { return m.size }

// Least is how many bytes have to be in memory while they are used: what two layers choose.
func (m *Mixture) Least() int64 { return m.least }

// Resident is how many bytes of experts are in memory, as far as is known.
func (m *Mixture) Resident() int64 { return m.resident }

// SetRoom says how many bytes there are for experts: what other weights leave, less what is left free.
func (m *Mixture) SetRoom(bytes int64) {
	m.room = m.least
	if m.opts.Keep {
		m.room = RoomFor(bytes, m.least)
	}
	if s := &m.stream; s.on {
		if s.window = m.windowIn(m.room); s.window == 0 {
			m.endStream()
		}
	}
}

// RoomFor is how many bytes of experts are kept where other weights leave so many, and where so many have to be in
// memory while they are used.
func RoomFor(left, least int64) int64 { return max(left-margin, least) }

// Select is told which experts a layer is about to read, and reads what is missing of them. It returns how
// many bytes it asked for.
func (m *Mixture) Select(e event.Selected) (read int64, err error) {
	at, known := m.index[e.Layer]
	if !known || len(e.IDs) == 0 || !m.isPossible(at, &e) {
		return 0, nil
	}
	l := &m.layers[at]
	ids := slices.Clone(e.IDs)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if m.opts.Routes != nil {
		// When experts are computed elsewhere, the op is met again with the others only. That is no new
		// choice.
		if at == m.now && e.Decode == m.last.decode && containsAll(m.last.ids, ids) {
			return 0, nil
		}
		m.last.decode, m.last.ids = e.Decode, append(m.last.ids[:0], ids...)
		m.releaseElsewhere(l, e.Layer)
		ids = slices.DeleteFunc(ids, func(id int32) bool { return l.experts[id].elsewhere })
	}
	if m.enterLayer(at, &e, len(ids)) {
		m.passLayer(at, ids, &e)
		return 0, nil
	}
	before, unread, total := m.now, m.unread, m.total.read
	m.endIdle(m.opts.Now())
	m.now, m.unread = at, false
	m.clock++
	m.settlePredicted(l, ids)
	if err := m.readChosen(l, ids); err != nil {
		return m.total.read - total, err
	}
	if m.ahead.predictor != nil {
		m.ahead.asked = m.opts.Now()
	}
	m.noteChoice(l, &e, ids, m.total.read > total)
	if e.IDRows <= leastRows && !m.hot.warmup {
		m.learnLeast(l, ids)
	}
	m.MakeRoom()
	if !m.stream.on { // then it looks for them behind the target
		if err := m.lookForStrays(before, unread); err != nil {
			return m.total.read - total, err
		}
	}
	m.observeChoice(at, e)
	return m.total.read - total, nil
}

// isPossible checks what a target says that it chose.
func (m *Mixture) isPossible(at int, e *event.Selected) bool {
	if e.IDRows <= 0 || len(e.IDs)%e.IDRows != 0 {
		m.opts.Refuse("the target says that it reads experts of a part of a token",
			"layer", e.Layer, "experts", len(e.IDs), "tokens", e.IDRows)
		return false
	}
	for _, id := range e.IDs {
		if id < 0 || int(id) >= len(m.layers[at].experts) {
			m.opts.Refuse("the target says that it reads an expert that its model has not",
				"layer", e.Layer, "expert", id)
			return false
		}
	}
	return true
}

// containsAll says whether all of some ids are among others, both in order and once each.
func containsAll(others, some []int32) bool {
	for _, id := range some {
		if _, found := slices.BinarySearch(others, id); !found {
			return false
		}
	}
	return true
}

// releaseElsewhere finds out which experts of a layer are computed elsewhere, and has these paged out.
func (m *Mixture) releaseElsewhere(l *layer, number int32) {
	for i := range l.experts {
		e := &l.experts[i]
		if e.elsewhere = m.opts.Routes.Elsewhere(number, int32(i)); e.elsewhere && e.resident {
			m.evict(e)
		}
	}
}

// learnLeast notes what a token chooses of a layer. That varies a little between layers, whose tensors may be
// of different types.
func (m *Mixture) learnLeast(l *layer, ids []int32) {
	var bytes int64
	for _, id := range ids {
		bytes += l.experts[id].bytes
	}
	if bytes *= 2; !m.exact || bytes > m.least {
		m.least, m.exact = bytes, true
	}
}

// doubtTokens is for how many tokens all that is chosen is looked at when the kernel may have taken some of it. Most
// experts that are used at all are chosen in as many.
const doubtTokens = 4

// sampleEvery choices one slice is looked at while nothing says that the kernel takes any.
const sampleEvery = 5

// Doubt says that the kernel may have taken experts: memory was short, or something that was kept is gone. For a
// while all that is chosen is looked at. Otherwise one slice of some choices is, because asking for a slice that is
// there costs as much time as a part of reading it.
func (m *Mixture) Doubt() { m.doubted = m.clock + doubtTokens*uint64(len(m.layers)) }

// readChosen reads what is missing of experts, in the order in which the target is going to touch them:
// tensor by tensor. What is known to be missing comes first. Then some of what is believed to be in memory is
// looked at, as the kernel may have taken it, see Doubt. What a prompt chooses beyond the room is left to the
// target: it would take the place of what is read before.
func (m *Mixture) readChosen(l *layer, ids []int32) error {
	missing, resident, fresh := m.sortChosen(l, ids)
	if fresh > margin/2 {
		m.MakeRoom()
	}
	for tensor := range l.tensors {
		for _, e := range missing {
			if tensor < len(e.slices) {
				m.levers.Announce(e.slices[tensor])
			}
		}
	}
	for tensor := range l.tensors {
		for _, e := range missing {
			if tensor < len(e.slices) {
				if err := m.readMissing(e, e.slices[tensor]); err != nil {
					return err
				}
			}
		}
	}
	return m.checkResident(l, resident)
}

// readMissing reads a slice of an expert that is not in memory. What of it is there nevertheless
// is asked for unless it was paged out from here.
func (m *Mixture) readMissing(e *expert, r pages.Range) (err error) {
	n := r.Length
	switch isGone := e.evictedAt != 0 && e.evictedAt+uint64(len(m.layers)) < m.clock; {
	case m.clock < m.doubted || !isGone:
		n, err = m.readNow(r, true)
	case m.levers.IsReading(r):
		n = 0
	default:
		err = m.levers.ReadNow(r)
	}
	m.total.read += n
	m.noteDemand(r, n)
	return err
}

// checkResident looks at slices of chosen experts that are believed to be in memory, and reads what of them is not.
func (m *Mixture) checkResident(l *layer, resident []*expert) error {
	isDoubtful := m.clock < m.doubted
	if len(resident) == 0 || !isDoubtful && m.clock%sampleEvery != 0 {
		return nil
	}
	sample := int(m.clock / sampleEvery % uint64(len(resident)*l.tensors))
	for tensor := range l.tensors {
		for i, e := range resident {
			isSampled := tensor*len(resident)+i == sample
			if tensor >= len(e.slices) || !isSampled && !isDoubtful {
				continue
			}
			n, err := m.readNow(e.slices[tensor], false)
			if err != nil {
				return err
			}
			if n > 0 {
				m.Doubt()
			}
			m.total.read += n
			m.noteDemand(e.slices[tensor], n)
		}
	}
	return nil
}

// sortChosen separates chosen experts that are missing from those that are believed to be resident. The
// missing ones count as resident from now on; fresh is how many bytes they add.
func (m *Mixture) sortChosen(l *layer, ids []int32) (missing, resident []*expert, fresh int64) {
	m.total.chosen += int64(len(ids))
	var bytes int64
	for _, id := range ids {
		e := &l.experts[id]
		e.chosenAt = m.clock
		if e.resident {
			resident = append(resident, e)
			bytes += e.bytes
		}
	}
	for _, id := range ids {
		e := &l.experts[id]
		if e.resident {
			continue
		}
		m.total.missed++
		bytes += e.bytes
		if bytes > max(m.room, m.least) {
			m.unread = true
			continue
		}
		missing = append(missing, e)
		e.resident = true
		m.resident += e.bytes
		fresh += e.bytes
	}
	return missing, resident, fresh
}

// readNow reads what of a range is not in memory, and returns how many bytes that is. Pages that are in
// memory may be about to be paged out. So a range that was evicted is asked for even if all of it is still
// there.
func (m *Mixture) readNow(r pages.Range, evicted bool) (bytes int64, err error) {
	if m.levers.IsReading(r) { // it was chosen a moment ago, too
		return 0, nil
	}
	resident, err := m.levers.ResidentBytes(r)
	if err != nil || resident >= r.Length && !evicted {
		return 0, err
	}
	return max(r.Length-resident, 0), m.levers.ReadNow(r)
}

// FindResident finds out which experts are in memory. Those of which only a part is there are paged out.
func (m *Mixture) FindResident() error {
	m.forgetStream()
	m.resident = 0
	for i := range m.layers {
		for j := range m.layers[i].experts {
			e := &m.layers[i].experts[j]
			e.resident = true
			some := false
			for _, r := range e.owned {
				n, err := m.levers.ResidentBytes(r)
				if err != nil {
					return err
				}
				e.resident = e.resident && n >= r.Length
				some = some || n > 0
			}
			if e.resident {
				m.resident += e.bytes
				continue
			}
			if some {
				for _, r := range e.owned {
					m.levers.Evict(r)
				}
			}
		}
	}
	m.MakeRoom()
	m.Doubt()
	return nil
}

// Forget takes no expert to be in memory: the target is left to itself.
func (m *Mixture) Forget() {
	m.forgetStream()
	m.resident = 0
	for i := range m.layers {
		for j := range m.layers[i].experts {
			e := &m.layers[i].experts[j]
			e.resident, e.predicted, e.early = false, 0, 0
		}
	}
	m.forgetPredicted()
	m.forgetHot()
}
