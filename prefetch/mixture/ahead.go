package mixture

// This file reads experts before their router has chosen them, while the disk has nothing else to do. One
// rule admits such reads: the disk must be idle for long enough until the next layer chooses, as it was
// measured to be. What was chosen always comes first.

import (
	"time"

	"tensorcast/prefetch/pages"
)

const (
	// readPiece is read at a time, up to readTick in a tick, because what is chosen meanwhile waits for that.
	// No more than mostUnder is under way, in bytes.
	readPiece, readTick, mostUnder = 512 << 10, 1 << 20, 4 << 20
	// idleShare of the times that the disk was idle after a layer's choice were shorter than is expected. An
	// expectation moves by a part of idleStep of what was seen.
	idleShare, idleStep = 0.1, 0.125
	mostIdle            = time.Second
	// leastRated is how many bytes have to be read at once to tell the disk's bandwidth from it.
	leastRated = 256 << 10
	// Pause is how long to wait at most until it is looked again whether the disk is idle, leastPause how
	// long at least.
	Pause, leastPause = time.Millisecond, 250 * time.Microsecond
)

// ahead is what is predicted, and read for that.
type ahead struct {
	predictor Predictor      // nil until a token's choice tells what it is for
	inputs    InputPredictor // the same, if it goes by what routers read; else nil
	none      bool           // there is no predictor
	decode    uint32         // that the predictor was told of last
	scores    []float32

	queue  []*expert // of one layer, to be read, in this order
	queued *layer    // that layer

	demand      []pages.Range // what was read because it was chosen, and may be under way
	demandBytes int64         // of this, as it was asked for
	asked       time.Time     // when all that a layer chose was asked for; zero: that was not followed
	idle        time.Time     // since when all of it has arrived; zero: it has not
	under       []pages.Range // what was read because it was predicted, and may be under way
	lookAt      time.Time     // when to look next; zero: at the next tick

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

// beginIdle notes that all that a layer has chosen was asked for.
func (m *Mixture) beginIdle(now time.Time) {
	a := &m.ahead
	if a.predictor == nil {
		return
	}
	a.asked = now
	if len(a.demand) == 0 {
		a.idle = now
	} else if a.rate > 0 {
		a.lookAt = now.Add(a.timeFor(a.demandBytes))
	}
}

// endIdle notes that the next layer has chosen. It moves the expectation of how long the disk was idle: a
// running quantile, of which idleShare of what was seen is below.
func (m *Mixture) endIdle(now time.Time) {
	a := &m.ahead
	if !a.asked.IsZero() {
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
	}
	a.forgetReads()
}

// forgetReads forgets what is being read.
func (a *ahead) forgetReads() {
	a.demand, a.under, a.demandBytes = a.demand[:0], a.under[:0], 0
	a.asked, a.idle, a.lookAt = time.Time{}, time.Time{}, time.Time{}
}

// PauseFor is how long to wait until the disk may be idle, and something can be read ahead.
func (m *Mixture) PauseFor(now time.Time) time.Duration {
	if m.ahead.lookAt.IsZero() {
		return Pause
	}
	return min(max(m.ahead.lookAt.Sub(now), leastPause), Pause)
}

// ReadPredicted reads as much of what is predicted as the disk is expected to deliver until the next layer
// has chosen, once it has nothing else to do. free says that nothing else is to be read: all other weights
// are in memory.
func (m *Mixture) ReadPredicted(free bool) error {
	a := &m.ahead
	if a.asked.IsZero() {
		return nil
	}
	now := m.opts.Now()
	if idle, err := m.isDiskIdle(now); err != nil || !idle {
		return err
	}
	if !free || m.room <= m.least {
		return nil
	}
	var err error
	if a.under, err = m.keepUnderWay(a.under); err != nil {
		return err
	}
	var under int64
	for _, r := range a.under {
		under += r.Length
	}
	a.lookAt = time.Time{}
	for read := int64(0); read < readTick && under+readPiece <= mostUnder && len(a.queue) > 0; {
		e := a.queue[0]
		if a.timeFor(under+readPiece) > m.idleLeft(m.opts.Now()) {
			return nil
		}
		if !e.resident && !m.admit(e) {
			a.queue = a.queue[1:]
			continue
		}
		piece := e.pendingPiece()
		n, err := m.readNow(piece, true)
		if err != nil {
			return err
		}
		read += piece.Length
		a.read += n
		e.early += n
		if n > 0 {
			a.under = append(a.under, piece)
			under += piece.Length
		}
		if e.pending -= piece.Length; e.pending <= 0 {
			e.pending = 0
			a.queue = a.queue[1:]
		}
	}
	if len(a.queue) > 0 {
		a.lookAt = now.Add(a.timeFor(under / 2))
	}
	return nil
}

// isDiskIdle says whether all that was chosen has arrived. It also tells the disk's bandwidth from that.
func (m *Mixture) isDiskIdle(now time.Time) (bool, error) {
	a := &m.ahead
	if !a.idle.IsZero() {
		return true, nil
	}
	var err error
	if a.demand, err = m.keepUnderWay(a.demand); err != nil {
		return false, err
	}
	took := now.Sub(a.asked)
	if len(a.demand) > 0 {
		if !now.Before(a.lookAt) {
			a.lookAt = now.Add(max(took/4, leastPause))
		}
		return false, nil
	}
	if took > 0 && a.demandBytes >= leastRated {
		rate := float64(a.demandBytes) / float64(took)
		if a.rate == 0 {
			a.rate = rate
		}
		a.rate += idleStep * (rate - a.rate)
	}
	a.idle = now
	return true, nil
}

// keepUnderWay keeps those ranges that have not arrived.
func (m *Mixture) keepUnderWay(all []pages.Range) ([]pages.Range, error) {
	left := all[:0]
	for _, r := range all {
		arrived, err := m.levers.HasArrived(r)
		if err != nil {
			return nil, err
		}
		if !arrived {
			left = append(left, r)
		}
	}
	return left, nil
}

// timeFor is how long the disk takes for bytes, as far as is known.
func (a *ahead) timeFor(bytes int64) time.Duration {
	if a.rate <= 0 {
		return mostIdle
	}
	return time.Duration(float64(bytes) / a.rate)
}

// idleLeft is how long the disk is expected to be idle.
func (m *Mixture) idleLeft(now time.Time) time.Duration {
	return time.Duration(m.ahead.idleFor[m.now]) - now.Sub(m.ahead.idle)
}

// pendingPiece is what is to be read next of an expert.
func (e *expert) pendingPiece() pages.Range {
	at := -e.pending
	for _, r := range e.slices {
		at += r.Length
	}
	for _, r := range e.slices {
		if at < r.Length {
			return pages.Range{File: r.File, Offset: r.Offset + at, Length: min(readPiece, r.Length-at)}
		}
		at -= r.Length
	}
	return pages.Range{}
}

// admit makes room for a predicted expert, if those that have to give way for it are less likely to be chosen
// than it is when their layer comes.
func (m *Mixture) admit(e *expert) bool {
	over := m.resident + e.bytes - m.room
	victims, enough := m.findVictims(over, func(l *layer, v *expert) bool { return l.chance(v) < e.predicted })
	if !enough {
		return false
	}
	for _, v := range victims {
		if !m.evict(v) {
			return false
		}
	}
	e.resident, e.pending = true, 0
	for _, r := range e.slices {
		e.pending += r.Length
	}
	m.resident += e.bytes
	return true
}

// settlePredicted drops what was predicted of a layer, which has chosen now. It says whether some of it may
// have been begun to be read.
func (m *Mixture) settlePredicted(l *layer, ids []int32) (begun bool) {
	a := &m.ahead
	if a.predictor == nil {
		return false
	}
	if a.queued == l {
		a.queue = a.queue[:0]
	}
	for _, id := range ids {
		a.used += l.experts[id].early
	}
	for i := range l.experts {
		e := &l.experts[i]
		e.early, e.predicted = 0, 0
		begun = begun || e.pending > 0
	}
	return begun
}

// evictPending pages out what was begun to be read for predictions of a layer, and is not read to its end.
func (m *Mixture) evictPending(l *layer) {
	for i := range l.experts {
		if e := &l.experts[i]; e.pending > 0 && !m.evict(e) {
			e.pending = 0 // it counts as resident, and is looked at before its use
		}
	}
}

// forgetPredicted forgets what was predicted, and what was being read.
func (m *Mixture) forgetPredicted() {
	m.ahead.queue = nil
	m.ahead.forgetReads()
	for i := range m.layers {
		for j := range m.layers[i].experts {
			e := &m.layers[i].experts[j]
			e.predicted, e.early = 0, 0
		}
	}
}

// earlyShare of the mean of what is read early is replaced at each token.
const earlyShare = 1.0 / 16

// EndToken notes that a token has ended.
func (m *Mixture) EndToken() {
	a := &m.ahead
	a.perToken += (float64(a.read-a.readBefore) - a.perToken) * earlyShare
	a.readBefore = a.read
}

// EarlyPerToken is about how many bytes were read before they were chosen, for a token, lately.
func (m *Mixture) EarlyPerToken() int64 { return int64(m.ahead.perToken) }
