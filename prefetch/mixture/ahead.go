package mixture

// This file reads experts before their router has chosen them. One rule admits such a read: the disk must be idle
// for as long as it takes, until the next layer chooses, as it was measured to be. What was chosen always comes
// first.

import (
	"time"

	"tensorcast/prefetch/pages"
)

const (
	// idleShare of the times that the disk was idle after a layer's choice were shorter than is expected. An
	// expectation moves by a part of idleStep of what was seen.
	idleShare, idleStep = 0.1, 0.125
	mostIdle            = time.Second
	// leastRated is how many bytes have to be read at once to tell the disk's bandwidth from it.
	leastRated = 256 << 10
	// earlyShare of the mean of what is read early is replaced at each token.
	earlyShare = 1.0 / 16
)

// ahead is what is predicted, and read for that.
type ahead struct {
	predictor Predictor      // nil until a token's choice tells what it is for
	inputs    InputPredictor // the same, if it goes by what routers read; else nil
	none      bool           // there is no predictor
	decode    uint32         // that the predictor was told of last
	scores    []float32
	queue     []*expert // of the next layer, to be read, the likeliest first

	demand      []pages.Range // what was read because it was chosen, and may be under way
	demandBytes int64         // of this, as it was asked for
	asked       time.Time     // when all that a layer chose was asked for; zero: that was not followed
	idle        time.Time     // since when all of it has arrived; zero: it has not
	under       int64         // bytes that were asked for since, because they were predicted

	rate    float64   // bytes per ns that the disk delivers; 0: not known
	idleFor []float64 // by layer: how long the disk is idle until the next layer has chosen, in ns; negative: not known

	read, used int64   // bytes that were read before they were chosen; of these, of experts that were chosen then
	readBefore int64   // read, when the last token ended
	perToken   float64 // of read, a running mean
}

// noteDemand notes that n bytes of a range were read because they were chosen.
func (m *Mixture) noteDemand(r pages.Range, n int64) {
	if a := &m.ahead; n > 0 && a.predictor != nil {
		a.demand = append(a.demand, r)
		a.demandBytes += n
	}
}

// endIdle notes that the next layer has chosen. It moves the expectation of how long the disk was idle: a running
// quantile, of which idleShare of what was seen is below.
func (m *Mixture) endIdle(now time.Time) {
	a := &m.ahead
	if a.asked.IsZero() {
		return
	}
	idle := 0.0
	if !a.idle.IsZero() {
		idle = float64(min(now.Sub(a.idle), mostIdle))
	}
	switch q, step := &a.idleFor[m.now], idleStep*max(idle, a.idleFor[m.now]); {
	case *q < 0:
		*q = idle
	case idle < *q:
		*q -= min((1-idleShare)*step, *q-idle)
	default:
		*q += min(idleShare*step, idle-*q)
	}
	m.forgetPredicted()
}

// forgetPredicted forgets what is to be read ahead, and what is under way.
func (m *Mixture) forgetPredicted() {
	a := &m.ahead
	a.queue, a.demand, a.demandBytes, a.under = a.queue[:0], a.demand[:0], 0, 0
	a.asked, a.idle = time.Time{}, time.Time{}
}

// ReadPredicted reads as much of what is predicted as the disk is expected to deliver until the next layer has chosen,
// once it has nothing else to do. free says that nothing else is to be read: all other weights are in memory.
func (m *Mixture) ReadPredicted(free bool) error {
	a := &m.ahead
	if a.asked.IsZero() {
		return nil
	}
	now := m.opts.Now()
	if idle, err := m.isDiskIdle(now); err != nil || !idle || !free || m.room <= m.least {
		return err
	}
	for ; len(a.queue) > 0; a.queue = a.queue[1:] {
		e := a.queue[0]
		takes := float64(a.under+e.bytes) / a.rate // ns; without bound if the rate is not known
		if takes > a.idleFor[m.now]-float64(now.Sub(a.idle)) {
			return nil
		}
		if e.resident || !m.makeRoomFor(e) {
			continue
		}
		e.resident = true
		m.resident += e.bytes
		a.under += e.bytes
		for _, r := range e.slices {
			n, err := m.readNow(r, true)
			if err != nil {
				return err
			}
			a.read += n
			e.early += n
		}
	}
	return nil
}

// UntilIdle is how long it takes until the disk is expected to have delivered all that was chosen. waits says whether
// something is to be read then by ReadPredicted.
func (m *Mixture) UntilIdle() (until time.Duration, waits bool) {
	a := &m.ahead
	if a.asked.IsZero() || !a.idle.IsZero() || len(a.queue) == 0 {
		return 0, false
	}
	if a.rate > 0 {
		until = time.Duration(float64(a.demandBytes) / a.rate)
	}
	return until - m.opts.Now().Sub(a.asked), true
}

// isDiskIdle says whether all that was chosen has arrived. It also tells the disk's bandwidth from that.
func (m *Mixture) isDiskIdle(now time.Time) (bool, error) {
	a := &m.ahead
	if !a.idle.IsZero() {
		return true, nil
	}
	for ; len(a.demand) > 0; a.demand = a.demand[1:] {
		if arrived, err := m.levers.HasArrived(a.demand[0]); err != nil || !arrived {
			return false, err
		}
	}
	if took := now.Sub(a.asked); took > 0 && a.demandBytes >= leastRated {
		rate := float64(a.demandBytes) / float64(took)
		if a.rate == 0 {
			a.rate = rate
		}
		a.rate += idleStep * (rate - a.rate)
	}
	a.idle = now
	return true, nil
}

// makeRoomFor makes room for a predicted expert, if those that have to give way for it are less likely to be chosen
// than it is when their layer comes.
func (m *Mixture) makeRoomFor(e *expert) bool {
	less := func(l *layer, v *expert) bool { return l.chance(v) < e.predicted }
	victims, enough := m.findVictims(m.resident+e.bytes-m.room, less)
	if !enough {
		return false
	}
	for _, v := range victims {
		if !m.evict(v) {
			return false
		}
	}
	return true
}

// settlePredicted drops what was predicted of a layer, which has chosen now. An expert that was read for nothing gives
// way like any other that is seldom chosen.
func (m *Mixture) settlePredicted(l *layer, ids []int32) {
	for _, id := range ids {
		m.ahead.used += l.experts[id].early
	}
	for i := range l.experts {
		l.experts[i].early, l.experts[i].predicted = 0, 0
	}
}

// EndToken notes that a token has ended.
func (m *Mixture) EndToken() {
	a := &m.ahead
	a.perToken += (float64(a.read-a.readBefore) - a.perToken) * earlyShare
	a.readBefore = a.read
}

// EarlyPerToken is about how many bytes were read before they were chosen, for a token, lately.
func (m *Mixture) EarlyPerToken() int64 { return int64(m.ahead.perToken) }
