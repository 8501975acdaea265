package mixture

// This file tests what is read before any expert was chosen.

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// aheadRecorder is a recorder that also reads ahead.
type aheadRecorder struct {
	recorder
	ahead  []pages.Range
	refuse int // the number of calls of ReadAhead after which too much is under way; 0: none
}

func (p *aheadRecorder) ReadAhead(r pages.Range) bool {
	if p.refuse > 0 && len(p.ahead) >= p.refuse {
		return false
	}
	p.ahead = append(p.ahead, r)
	return true
}

// newHotMixture is a mixture of two layers with eight experts. Each has two slices of a MiB. It has room for some of
// them.
func newHotMixture(levers *aheadRecorder, room int, known *Known) *Mixture {
	const mib = 1 << 20
	cycle := &pattern.Cycle{}
	for layer := range int64(2) {
		cycle.Reads = append(cycle.Reads,
			expertsRead(0, fmt.Sprintf("blk.%d.a", layer+3), layer*16*mib, mib, 8, 1),
			expertsRead(0, fmt.Sprintf("blk.%d.b", layer+3), layer*16*mib+8*mib, mib, 8, 1))
	}
	levers.there = map[pages.Range]int64{}
	m := New(cycle, nil, Options{
		Levers: levers, Keep: true, Refuse: func(string, ...any) {}, Now: time.Now, Known: known,
	})
	m.room, m.least = int64(room)*2*mib, 2*mib
	return m
}

// hotScores are of layers 3 and 4: experts 1, 2 and 6 of layer 3, and expert 5 of layer 4, were chosen most.
func hotScores() Scores {
	return Scores{
		3: {0.01, 0.5, 0.3, 0, 0.02, 0, 0.4, 0},
		4: {0, 0, 0, 0, 0, 0.9, 0, 0.03},
	}
}

// readHot reads what is hot, until nothing more is read, and returns what was read at each call.
func readHot(t *testing.T, m *Mixture, p *aheadRecorder, atRest bool) (calls [][]pages.Range) {
	t.Helper()
	for range 100 {
		before := len(p.ahead)
		if _, err := m.ReadHot(atRest); err != nil {
			t.Fatal(err)
		}
		if len(p.ahead) == before {
			return calls
		}
		calls = append(calls, p.ahead[before:])
	}
	t.Fatal("it reads on without end")
	return nil
}

// The likeliest experts that have room are read, the likeliest first, and neighbours of a tensor together. Less likely
// ones are not.
func TestReadHot(t *testing.T) {
	const mib = 1 << 20
	var p aheadRecorder
	m := newHotMixture(&p, 5, &Known{hotScores(), LastRun})
	calls := readHot(t, m, &p, true)
	want := []pages.Range{
		rangeOf(0, 21*mib, mib), rangeOf(0, 29*mib, mib), // layer 4, expert 5
		rangeOf(0, mib, 2*mib), rangeOf(0, 9*mib, 2*mib), // layer 3, experts 1 and 2
		rangeOf(0, 6*mib, mib), rangeOf(0, 14*mib, mib), // layer 3, expert 6
		rangeOf(0, 23*mib, mib), rangeOf(0, 31*mib, mib), // layer 4, expert 7
	}
	if got := slices.Concat(calls...); !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	if len(calls) < 2 {
		t.Errorf("all was begun in %d calls, want several", len(calls))
	}
	h := m.Hot()
	if *h != (Hot{LastRun, 5, 5, 0, 10 * mib, true}) || m.resident != 10*mib || m.HasHot() {
		t.Errorf("%+v, %d bytes are resident, want 5 experts of %d bytes, and the end", *h, m.resident, 10*mib)
	}
	if got, want := h.String(), "5 experts that the last run used most were read first, 10 MiB"; got != want {
		t.Errorf("in words: %q, want %q", got, want)
	}
	one := Hot{From: Imatrix, Experts: 1, Read: mib}
	const oneRead = "1 expert that the importance matrix counts most was read first, 1.0 MiB"
	if got, want := one.String(), oneRead; got != want {
		t.Errorf("in words: %q, want %q", got, want)
	}
}

// Without anything known nothing is read, and nothing is said of it. Where only what is being used may be in memory,
// nothing is read either.
func TestNothingHot(t *testing.T) {
	var p aheadRecorder
	m := newHotMixture(&p, 5, nil)
	if calls := readHot(t, m, &p, true); len(calls) > 0 || m.Hot() != nil || m.HasHot() {
		t.Errorf("read %v, %+v, want nothing", calls, m.Hot())
	}
	m = newHotMixture(&p, 5, &Known{hotScores(), LastRun})
	m.room = m.least
	if calls := readHot(t, m, &p, true); len(calls) > 0 {
		t.Errorf("without room: read %v, want nothing", calls)
	}
	m.opts.Keep = false
	if m.HasHot() {
		t.Error("where nothing is kept, experts are to be read first, want none")
	}
}

// After the target was left to itself for a while, what is missing by then is read.
func TestHotGoesOn(t *testing.T) {
	var p aheadRecorder
	m := newHotMixture(&p, 4, &Known{hotScores(), LastRun})
	p.refuse = 4 // of two experts
	readHot(t, m, &p, true)
	m.Forget()
	p.refuse = 0
	kept := &m.layers[0].experts[2]
	kept.resident = true
	m.resident = kept.bytes
	first := len(p.ahead)
	readHot(t, m, &p, true)
	want := slices.Concat(m.layers[1].experts[5].slices, m.layers[0].experts[1].slices, m.layers[0].experts[6].slices)
	if got := p.ahead[first:]; !slices.Equal(got, want) || m.Hot().Wanted != 4 || m.HasHot() {
		t.Errorf("read %v, %+v; want %v of 4 experts, and the end", got, *m.Hot(), want)
	}
}

// What a router has chosen comes first: nothing is read while it is under way, and little while the target computes.
func TestHotAfterDemand(t *testing.T) {
	var p aheadRecorder
	m := newHotMixture(&p, 5, &Known{hotScores(), LastRun})
	chosen := m.layers[0].experts[3].slices
	p.underWay = slices.Clone(chosen)
	if _, err := m.Select(event.Selected{Decode: 1, Layer: 3, IDs: []int32{3}, IDRows: 1}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.read, chosen) {
		t.Fatalf("read %v for a choice, want %v", p.read, chosen)
	}
	if calls := readHot(t, m, &p, true); len(calls) > 0 {
		t.Errorf("read %v while the chosen expert is under way, want nothing", calls)
	}
	first := m.layers[1].experts[5].slices
	p.underWay = slices.Clone(first)
	if calls := readHot(t, m, &p, false); !slices.Equal(slices.Concat(calls...), first) {
		t.Errorf("read %v while the target computes, want %v, and no more while that is under way", calls, first)
	}
	p.underWay = nil
	if readHot(t, m, &p, false); m.Hot().Experts != 4 { // the chosen one has the fifth place
		t.Errorf("%+v, want 4 experts read beside the chosen one", m.Hot())
	}
}

// Where the disk has something else to do all the time, it is given up. Nobody need look often then.
func TestHotStalls(t *testing.T) {
	var p aheadRecorder
	m := newHotMixture(&p, 5, &Known{hotScores(), LastRun})
	clock := time.Unix(1000, 0)
	m.opts.Now = func() time.Time { return clock }
	p.underWay = m.layers[0].experts[3].slices
	if _, err := m.Select(event.Selected{Decode: 1, Layer: 3, IDs: []int32{3}, IDRows: 1}); err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{0, hotStall, time.Second} {
		if !m.HasHot() {
			t.Errorf("it was given up in less than %v", hotStall)
		}
		clock = clock.Add(after)
		readHot(t, m, &p, true)
	}
	if m.HasHot() || m.Hot().Experts != 0 {
		t.Errorf("after more than %v: %+v, want the end", hotStall, *m.Hot())
	}
}

// Experts that are in memory and not hot give way. Hot ones that are in memory are not read.
func TestHotInsteadOfOthers(t *testing.T) {
	var p aheadRecorder
	m := newHotMixture(&p, 4, &Known{hotScores(), LastRun})
	for _, id := range []int{1, 3, 5, 7} { // as a warm-up leaves them
		e := &m.layers[0].experts[id]
		e.resident = true
		m.resident += e.bytes
	}
	readHot(t, m, &p, true)
	var resident []string
	for i := range m.layers {
		for id := range m.layers[i].experts {
			if m.layers[i].experts[id].resident {
				resident = append(resident, fmt.Sprintf("%d.%d", i, id))
			}
		}
	}
	if want := []string{"0.1", "0.2", "0.6", "1.5"}; !slices.Equal(resident, want) || m.Hot().Experts != 3 {
		t.Errorf("resident are %v, %+v; want %v, of which 3 were read", resident, m.Hot(), want)
	}
	var gone []pages.Range
	for _, id := range []int{3, 5, 7} {
		gone = append(gone, m.layers[0].experts[id].owned...)
	}
	slices.SortFunc(p.evicted, pages.CompareRanges)
	slices.SortFunc(gone, pages.CompareRanges)
	if !slices.Equal(p.evicted, gone) {
		t.Errorf("paged out %v, want %v", p.evicted, gone)
	}
}

// An expert that is in memory does not give way to one that is as likely, only to a likelier one.
func TestHotAsLikely(t *testing.T) {
	for last, want := range map[float32]int{0.3: 1, 0.29: 2} { // experts that are read beside the one in memory
		var p aheadRecorder
		m := newHotMixture(&p, 2, &Known{Scores{3: {0.5, 0, 0.3, 0, last, 0, 0, 0}}, LastRun})
		kept := &m.layers[0].experts[4]
		kept.resident = true
		m.resident = kept.bytes
		readHot(t, m, &p, true)
		if h := m.Hot(); h.Experts != want || kept.resident != (want == 1) || m.HasHot() {
			t.Errorf("beside a resident expert with the score %v, which stays: %v, %+v; want %d read, and the end",
				last, kept.resident, h, want)
		}
	}
}

// Where too much is under way, or waits to be paged out, it goes on later.
func TestHotWaits(t *testing.T) {
	var p aheadRecorder
	m := newHotMixture(&p, 3, &Known{hotScores(), LastRun})
	p.refuse = 1
	readHot(t, m, &p, true)
	if m.Hot().Experts != 0 || !m.HasHot() {
		t.Errorf("%+v with a full queue, want nothing read, and no end", m.Hot())
	}
	p.refuse = 0
	for _, id := range []int{0, 3, 5} {
		e := &m.layers[0].experts[id]
		e.resident = true
		m.resident += e.bytes
	}
	p.evicted, p.full = []pages.Range{{}}, 1
	before := m.resident
	readHot(t, m, &p, true)
	if m.resident != before || !m.HasHot() {
		t.Errorf("%d bytes are resident while nothing can be paged out, want %d as before, and no end",
			m.resident, before)
	}
	p.full = 0
	if readHot(t, m, &p, true); m.Hot().Experts != 3 || m.HasHot() {
		t.Errorf("%+v in the end, want 3 experts read, and the end", m.Hot())
	}
}

// Scores are as they were begun with, as far as they fit the model. What is impossible is left out.
func TestBeginWithScores(t *testing.T) {
	nan := float32(math.NaN())
	var p aheadRecorder
	m := newHotMixture(&p, 4, &Known{Scores{
		3: {nan, -1, 0, 0.25, 2, float32(math.Inf(1)), 0.5, 0},
		4: {1, 1, 1}, 9: {1, 1, 1, 1, 1, 1, 1, 1}, -1: nil,
	}, LastRun})
	if m.Scores() != nil {
		t.Errorf("scores %v before any choice, want none", m.Scores())
	}
	for id, want := range []float64{0, 0, 0, 0.25, 1, 1, 0.5, 0} {
		got := m.layers[0].chance(&m.layers[0].experts[id])
		if want = min(want+neverScore, 1); math.Abs(got-want) > 1e-6 {
			t.Errorf("expert %d is chosen with chance %v, want %v", id, got, want)
		}
		if e := &m.layers[1].experts[id]; e.score != 0 {
			t.Errorf("expert %d of layer 4 has score %v, want 0", id, e.score)
		}
	}
}

// What is kept is how often a token chose each expert. The warm-up, which chooses all, does not count. What is begun
// with counts on.
func TestScoresKept(t *testing.T) {
	var p aheadRecorder
	m := newHotMixture(&p, 16, nil)
	choose := func(m *Mixture, decode int, ids ...int32) {
		t.Helper()
		e := event.Selected{Decode: uint32(decode), Layer: 3, IDs: ids, IDRows: 1}
		if _, err := m.Select(e); err != nil {
			t.Fatal(err)
		}
	}
	m.SetWarmup(true)
	choose(m, 1, 0, 1, 2, 3, 4, 5, 6, 7)
	m.SetWarmup(false)
	if s := m.Scores(); s != nil || m.least != 2<<20 {
		t.Errorf("scores %v after the warm-up, want none; the least room is %d, want that of before", s, m.least)
	}
	for token := range 1000 {
		id := int32(2)
		if token%4 == 3 {
			id = 5
		}
		choose(m, token+2, id)
	}
	s := m.Scores()
	if len(s) != 2 || len(s[3]) != 8 || s[3][0] != 0 || math.Abs(float64(s[3][2])-0.74) > 0.03 ||
		math.Abs(float64(s[3][5])-0.25) > 0.03 || slices.Max(s[4]) != 0 {
		t.Errorf("scores %v, want about 0.75 of expert 2 and 0.25 of expert 5 of layer 3, and 0 of the others", s)
	}
	again := newHotMixture(&p, 16, &Known{s, LastRun})
	choose(again, 1, 7)
	if s := again.Scores(); math.Abs(float64(s[3][2])-0.74) > 0.03 || s[3][7] == 0 {
		t.Errorf("scores %v after one more choice, want about those of before", s)
	}
}
