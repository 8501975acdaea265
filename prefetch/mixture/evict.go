package mixture

// This file decides which experts give way, and pages out what a fault of the target has read around itself.

import "container/heap"

const (
	// scoreMemory is about how many tokens a layer's choices are remembered for.
	scoreMemory = 64
	// maxScore is when scores are scaled down.
	maxScore = 1e200
	// neverScore is the chance, in a token, of an expert that was not chosen lately.
	neverScore = 1e-4
	// mostStrayRest is how many choices pass at most between two looks for strays. In each look the kernel
	// walks what it remembers of the pages that were there, which takes as long as asking for reads does.
	mostStrayRest = 64
)

// addChoice notes a layer's choice, of one token.
func (l *layer) addChoice(ids []int32) {
	l.step *= 1 + 1.0/scoreMemory
	for _, id := range ids {
		l.experts[id].score += l.step
	}
	if l.step > maxScore {
		for e := range l.experts {
			l.experts[e].score /= l.step
		}
		l.step = 1
	}
}

// chance is how likely an expert is to be chosen when its layer comes next.
func (l *layer) chance(e *expert) float64 {
	if e.predicted > 0 {
		return e.predicted
	}
	return min(e.score/l.step/scoreMemory+neverScore, 1)
}

// tokensUntil is after how many tokens an expert is expected to be chosen, where its layer comes after a part
// of a token.
func (l *layer) tokensUntil(e *expert, part float64) float64 { return 1/l.chance(e) - 1 + part }

// partUntil is what part of a token passes until a layer chooses next.
func (m *Mixture) partUntil(at int) float64 {
	n := len(m.layers)
	return float64((at-m.now-1+n)%n) / float64(n)
}

// MakeRoom has those experts give way that are expected to be chosen last, until the others fit.
func (m *Mixture) MakeRoom() {
	for m.resident > m.keepable() {
		e := m.nextVictim()
		if e == nil || !m.evict(e) {
			return
		}
	}
}

// waiting are experts that give way next. To find them takes as long for one as for many.
type waiting struct {
	experts []*expert // in the order in which they give way
	at      uint64    // the clock when they were found
}

const (
	// waitingShare of the room has the experts that are found at once, at least.
	waitingShare = 32
	// They are found again in each of so many parts of a token: which layers come soon changes within it.
	waitingParts = 4
)

// nextVictim is the expert that is expected to be chosen last; nil if none may give way.
func (m *Mixture) nextVictim() *expert {
	w := &m.waiting
	if (m.clock-w.at)*waitingParts >= uint64(len(m.layers)) {
		w.experts = nil
	}
	for pass := range 2 {
		for len(w.experts) > 0 {
			e := w.experts[0]
			w.experts = w.experts[1:]
			if e.resident && e.chosenAt <= w.at && e.chosenAt != m.clock && (e.predicted == 0 || pass > 0) {
				return e
			}
		}
		all := func(*layer, *expert) bool { return true }
		w.experts, _ = m.findVictims(max(m.resident-m.keepable(), m.room/waitingShare), all)
		w.at = m.clock
	}
	return nil
}

// findVictims finds experts of so many bytes that are expected to be chosen last, of those that are resident,
// not in use, and may be taken. enough says that they have as many bytes.
func (m *Mixture) findVictims(bytes int64, may func(*layer, *expert) bool) (found []*expert, enough bool) {
	if bytes <= 0 {
		return nil, true
	}
	var all victims
	for i := range m.layers {
		l := &m.layers[i]
		part := m.partUntil(i)
		for j := range l.experts {
			if e := &l.experts[j]; e.resident && e.bytes > 0 && e.chosenAt != m.clock && may(l, e) {
				all = append(all, victim{e, l.tokensUntil(e, part)})
			}
		}
	}
	heap.Init(&all)
	for bytes > 0 && len(all) > 0 {
		e := heap.Pop(&all).(victim).e
		found = append(found, e)
		bytes -= e.bytes
	}
	return found, bytes <= 0
}

// victim is an expert that may give way, and after how many tokens it is expected to be chosen.
type victim struct {
	e     *expert
	until float64
}

// victims are a heap with the expert on top that is expected last. Of thousands few have to give way. To sort
// all of them for each choice would take longer than the rest of it.
type victims []victim

func (v victims) Len() int           { return len(v) }
func (v victims) Less(i, j int) bool { return v[i].until > v[j].until }
func (v victims) Swap(i, j int)      { v[i], v[j] = v[j], v[i] }
func (v *victims) Push(x any)        { *v = append(*v, x.(victim)) }
func (v *victims) Pop() any {
	last := (*v)[len(*v)-1]
	*v = (*v)[:len(*v)-1]
	return last
}

// evict has an expert paged out. It returns false if too much is waiting for that.
func (m *Mixture) evict(e *expert) bool {
	for _, r := range e.owned {
		if !m.levers.Evict(r) {
			return false
		}
	}
	e.resident, e.evictedAt = false, m.clock
	m.resident -= e.bytes
	return true
}

// strays says when to look for pages of experts that nobody chose. A fault of the target reads around itself.
type strays struct {
	layer  int    // index of the layer that is looked at,
	expert int    // and the first expert that was not yet
	at     uint64 // the clock at which to look next
	rest   uint64 // the last pause between two looks, in choices
}

// straySample is how many experts are looked at at once while there are no strays.
const straySample = 16

// lookForStrays looks in the layer that chose before, if some of its experts were left to the target.
// Otherwise it looks at some experts of one layer after the other, the more rarely the longer there was none.
func (m *Mixture) lookForStrays(before int, unread bool) error {
	if unread && before != m.now {
		return m.evictStrays(m.layers[before].experts)
	}
	s := &m.strays
	if m.clock < s.at {
		return nil
	}
	if s.expert >= len(m.layers[s.layer].experts) || s.layer == m.now { // the present one's are about to be used
		s.layer, s.expert = (s.layer+1)%len(m.layers), 0
	}
	if s.layer == m.now {
		s.layer = (s.layer + 1) % len(m.layers)
	}
	found := m.total.strays
	rest := m.layers[s.layer].experts[s.expert:]
	some := rest[:min(straySample, len(rest))]
	if err := m.evictStrays(some); err != nil {
		return err
	}
	if m.total.strays > found { // where one is there are more
		if err := m.evictStrays(rest[len(some):]); err != nil {
			return err
		}
		some = rest
	}
	s.expert += len(some)
	s.rest = min(2*max(s.rest, 1), mostStrayRest)
	if m.total.strays > found {
		s.rest = 1
	}
	s.at = m.clock + s.rest
	return nil
}

// evictStrays pages out what is in memory of experts that should not be. What was to be paged out within the last
// token may still wait for that.
func (m *Mixture) evictStrays(experts []expert) error {
	for i := range experts {
		e := &experts[i]
		if e.resident || e.bytes == 0 || e.evictedAt != 0 && e.evictedAt+uint64(len(m.layers)) > m.clock {
			continue
		}
		for _, r := range e.owned {
			n, err := m.levers.ResidentBytes(r)
			if err != nil {
				return err
			}
			if n > 0 && m.levers.Evict(r) {
				m.total.strays += n
				e.evictedAt = m.clock
			}
		}
	}
	return nil
}
