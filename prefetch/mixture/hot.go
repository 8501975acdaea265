package mixture

// This file begins with what is known of a mixture's experts before its routers have chosen any: those that were chosen
// most are read first, into what room there is.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/event"
	"tensorcast/prefetch/pages"
)

const (
	// hotAtOnce is how many bytes of hot experts may be under way while the target computes: what a router chooses
	// meanwhile waits for them, for a millisecond or two. hotAtRest is the same while nobody waits. It keeps a disk
	// busy from one look to the next.
	hotAtOnce = 2 << 20
	hotAtRest = 8 << 20
	// hotRun is how many bytes of neighbours are read together with an expert.
	hotRun = 4 << 20
	// hotBatch is how many bytes give way at once, because looking for what is chosen last takes as long for one
	// expert as for many.
	hotBatch = 16 << 20
	// hotStall without progress ends reading first: the disk is busy all the time, or the kernel takes what is read
	// before it arrives. Whoever calls ReadHot does so often, as long as there may be something to read.
	hotStall = 30 * time.Second
)

// Scores say how likely a token is to choose each expert, from 0 to 1: by the number of the layer in the model, and by
// expert.
type Scores map[int32][]float32

// Source is where scores are from.
type Source string

// All sources of scores.
const (
	LastRun Source = "last run" // the last run of the same model
	Imatrix Source = "imatrix"  // an importance matrix of llama.cpp, which counts choices
)

// Known is what is known of experts before any was chosen.
type Known struct {
	Scores Scores
	From   Source
}

// Hot says what was read of experts because they had been chosen most, before this target chose any.
type Hot struct {
	From    Source `json:"from"`
	Wanted  int    `json:"wanted"`     // experts that had room, in memory or not
	Experts int    `json:"experts"`    // of these, that were read
	Loaded  int    `json:"loaded"`     // of these, that stayed in memory when the target loaded its model
	Read    int64  `json:"read_bytes"` // for all of these, beside Summary.Read
	Over    bool   `json:"over"`       // no more are to be read
}

// String says in words what was read.
func (h *Hot) String() string {
	which := "that the last run used most"
	if h.From == Imatrix {
		which = "that the importance matrix counts most"
	}
	what, were := "experts", "were"
	if h.Experts == 1 {
		what, were = "expert", "was"
	}
	line := fmt.Sprintf("%s %s %s %s read first, %s", humanize.Comma(int64(h.Experts)), what, which, were,
		humanize.IBytes(uint64(max(h.Read, 0))))
	if h.Loaded > 0 {
		line += fmt.Sprintf("; %s of them stayed in memory when the model was loaded", humanize.Comma(int64(h.Loaded)))
	}
	return line
}

// Hot says what was read first; nil if nothing was known of the experts.
func (m *Mixture) Hot() *Hot {
	if m.opts.Known == nil {
		return nil
	}
	about := m.hot.Hot
	return &about
}

// hot is what is read first, and how far that has come.
type hot struct {
	Hot
	warmup  bool // see SetWarmup
	planned bool
	queue   []place   // of experts that are to be read, the likeliest first
	moved   time.Time // when something was read last, or could be for the first time
	choices int       // that routers have made, beside the warm-up's

	demand []pages.Range // what the last choice reads, and may be under way
	under  []hotRead     // what was read first, and may be under way
	bytes  int64         // of these
}

// place is where an expert is: the indices of its layer, and of itself there.
type place struct{ layer, id int }

// hotRead is a read that was begun.
type hotRead struct {
	pages.Range
	bytes int64
}

// begin has scores begin with what is known. Layers of other numbers, or with other numbers of experts, are left out.
func (m *Mixture) begin() {
	if m.opts.Known == nil {
		return
	}
	m.hot.From = m.opts.Known.From
	for number, scores := range m.opts.Known.Scores {
		at, known := m.index[number]
		if !known || len(scores) != len(m.layers[at].experts) {
			continue
		}
		l := &m.layers[at]
		for i, p := range scores {
			if p > 0 { // and not NaN
				l.experts[i].score = min(float64(p), 1) * scoreMemory * l.step
			}
		}
	}
}

// Scores are how likely the experts are to be chosen, as far as that is known by now. They are nil if no token has
// chosen any.
func (m *Mixture) Scores() Scores {
	if m.hot.choices == 0 {
		return nil
	}
	all := Scores{}
	for number, at := range m.index {
		l := &m.layers[at]
		scores := make([]float32, len(l.experts))
		for i := range l.experts {
			scores[i] = float32(min(l.experts[i].score/l.step/scoreMemory, 1))
		}
		all[number] = scores
	}
	return all
}

// SetWarmup says whether the choices that come are those of llama.cpp's warm-up. It sends each token to all experts,
// which says nothing about what tokens choose, and how much of that has to be in memory.
func (m *Mixture) SetWarmup(is bool) { m.hot.warmup = is }

// noteChoice notes that a layer has chosen experts, each of them once in ids, for which something was read or not.
func (m *Mixture) noteChoice(l *layer, e *event.Selected, ids []int32, read bool) {
	h := &m.hot
	if !h.warmup {
		h.choices++
		for row := range slices.Chunk(e.IDs, len(e.IDs)/e.IDRows) {
			l.addChoice(row)
		}
	}
	if h.demand = h.demand[:0]; !read || !m.HasHot() {
		return
	}
	for _, id := range ids {
		if x := &l.experts[id]; x.resident {
			h.demand = append(h.demand, x.slices...)
		}
	}
}

// HasHot says whether ReadHot may have something to read.
func (m *Mixture) HasHot() bool { return m.opts.Known != nil && m.opts.Keep && !m.hot.Over }

// forgetHot forgets what is to be read first, and what is under way. If there is still something to read, that is found
// anew.
func (m *Mixture) forgetHot() {
	h := &m.hot
	h.planned, h.queue, h.demand, h.under, h.bytes = false, nil, nil, nil, 0
}

// endHot ends reading first.
func (m *Mixture) endHot() {
	m.forgetHot()
	m.hot.Over = true
}

// planHot finds the likeliest experts that have so many bytes together, and queues what is missing of them.
func (m *Mixture) planHot(room int64) {
	h := &m.hot
	h.planned, h.Wanted = true, 0
	type candidate struct {
		place
		chance float64
		e      *expert
	}
	var all []candidate
	for i := range m.layers {
		l := &m.layers[i]
		for j := range l.experts {
			e := &l.experts[j]
			if e.hot = false; e.score > 0 && e.bytes > 0 && !e.elsewhere {
				all = append(all, candidate{place{i, j}, l.chance(e), e})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(b.chance, a.chance) })
	free := room
	for _, c := range all {
		if free -= c.e.bytes; free < 0 {
			break
		}
		h.Wanted++
		c.e.hot = true
		if !c.e.resident {
			h.queue = append(h.queue, c.place)
		}
	}
}

// HotSlices are the slices of the likeliest experts that have room together, in the order of the files, where so many
// bytes are needed for something else meanwhile. Nothing else is hot from then on.
func (m *Mixture) HotSlices(leave int64) (all []pages.Range) {
	if !m.HasHot() || m.room-leave <= m.least {
		return nil
	}
	if !m.hot.planned {
		m.planHot(m.room - leave)
	}
	for i := range m.layers {
		for j := range m.layers[i].experts {
			if e := &m.layers[i].experts[j]; e.hot {
				all = append(all, e.slices...)
			}
		}
	}
	sortRanges(all)
	return all
}

// NoteLoaded notes that the target has loaded its model, of which HotSlices stayed in memory as far as FindResident has
// found them.
func (m *Mixture) NoteLoaded() {
	h := &m.hot
	h.queue = slices.DeleteFunc(h.queue, func(at place) bool {
		e := &m.layers[at.layer].experts[at.id]
		if e.resident {
			h.Experts++
			h.Loaded++
			h.Read += e.bytes
		}
		return e.resident
	})
}

// ReadHot begins to read the likeliest experts that are missing, the likeliest first, each with those of its neighbours
// in the file that are to be read as well. It reads nothing while something that a router has chosen is under way, and
// no more at once than the target would wait for a moment. atRest says that nobody waits for the disk. It returns how
// many bytes it asked for. Poll of the levers is needed afterwards.
func (m *Mixture) ReadHot(atRest bool) (read int64, err error) {
	h := &m.hot
	if !m.HasHot() {
		return 0, nil
	}
	now := m.opts.Now()
	if h.moved.IsZero() || m.stream.on { // what a prompt reads comes first
		h.moved = now
	}
	if m.stream.on {
		return 0, nil
	}
	if now.Sub(h.moved) > hotStall {
		m.endHot()
	}
	if h.Over || m.room <= m.least {
		return 0, nil
	}
	if !h.planned {
		m.planHot(m.room)
	}
	if idle, err := m.hasDemandArrived(); err != nil || !idle {
		return 0, err
	}
	most := int64(hotAtOnce)
	if atRest {
		most = hotAtRest
	}
	if err := m.collectHot(); err != nil {
		return 0, err
	}
	before := h.Read
	for len(h.queue) > 0 && h.bytes < most {
		at := h.queue[0]
		if l := &m.layers[at.layer]; l.experts[at.id].resident || l.experts[at.id].elsewhere {
			h.queue = h.queue[1:]
			continue
		}
		begun, err := m.readRun(m.findRun(at, min(hotRun, most-h.bytes)))
		if err != nil {
			return h.Read - before, err
		}
		if !begun {
			break
		}
		h.moved = now
	}
	if len(h.queue) == 0 && len(h.under) == 0 {
		m.endHot()
	}
	return h.Read - before, nil
}

// hasDemandArrived says whether all that the last choice reads has arrived.
func (m *Mixture) hasDemandArrived() (bool, error) {
	h := &m.hot
	for ; len(h.demand) > 0; h.demand = h.demand[1:] {
		if arrived, err := m.levers.HasArrived(h.demand[0]); err != nil || !arrived {
			return false, err
		}
	}
	return true, nil
}

// collectHot forgets what has arrived of what was read first.
func (m *Mixture) collectHot() error {
	h := &m.hot
	for ; len(h.under) > 0; h.under = h.under[1:] {
		if arrived, err := m.levers.HasArrived(h.under[0].Range); err != nil || !arrived {
			return err
		}
		h.bytes -= h.under[0].bytes
	}
	return nil
}

// findRun is an expert and those neighbours in its layer that are to be read as well: of at most so many bytes
// together, but the expert itself in any case. first and end are their numbers.
func (m *Mixture) findRun(at place, most int64) (l *layer, first, end int) {
	l = &m.layers[at.layer]
	first, end = at.id, at.id+1
	most -= l.experts[at.id].bytes
	wanted := func(id int) bool {
		e := &l.experts[id]
		return e.hot && !e.resident && !e.elsewhere && e.bytes <= most
	}
	for {
		switch {
		case end < len(l.experts) && wanted(end):
			most -= l.experts[end].bytes
			end++
		case first > 0 && wanted(first-1):
			first--
			most -= l.experts[first].bytes
		default:
			return l, first, end
		}
	}
}

// readRun begins to read the experts first to end of a layer, one of their tensors after the other. begun is false if
// it could not, because too much is under way. If there is no more room, nothing else is to be read.
func (m *Mixture) readRun(l *layer, first, end int) (begun bool, err error) {
	h := &m.hot
	bytes, least := int64(0), 1.0
	for i := first; i < end; i++ {
		bytes += l.experts[i].bytes
		least = min(least, l.chance(&l.experts[i]))
	}
	if enough, waits := m.makeRoomForHot(bytes, least); waits {
		return false, nil
	} else if !enough {
		h.queue = nil
		return false, nil
	}
	for tensor := range l.experts[first].slices {
		r, last := l.experts[first].slices[tensor], l.experts[end-1].slices[tensor]
		r.Length = last.End() - r.Offset
		resident, err := m.levers.ResidentBytes(r)
		if err != nil {
			return false, err
		}
		// Pages that are in memory may be about to be paged out. To ask for them keeps them.
		if !m.levers.ReadAhead(r) {
			return false, nil // what was begun of these experts is not lost: it counts when they are read again
		}
		missing := max(r.Length-resident, 0)
		h.under, h.bytes, h.Read = append(h.under, hotRead{r, missing}), h.bytes+missing, h.Read+missing
	}
	for i := first; i < end; i++ {
		e := &l.experts[i]
		e.resident = true
		m.resident += e.bytes
		h.Experts++
	}
	return true, nil
}

// makeRoomForHot has experts give way that are not hot and less likely to be chosen, until so many bytes fit. enough
// says that they do. waits says that too much is waiting to be paged out.
func (m *Mixture) makeRoomForHot(bytes int64, chance float64) (enough, waits bool) {
	over := m.resident + bytes - m.keepable()
	if over <= 0 {
		return true, false
	}
	victims, _ := m.findVictims(over+hotBatch, func(l *layer, e *expert) bool { return !e.hot && l.chance(e) < chance })
	for _, e := range victims {
		if !m.evict(e) {
			return false, true
		}
	}
	return m.resident+bytes <= m.keepable(), false
}
