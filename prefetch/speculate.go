package prefetch

// This file reads experts before their router has chosen them, by what a Guesser says of it, while the disk has nothing else to do. What has been chosen comes first.

import (
	"cmp"
	"math"
	"slices"
	"time"

	"tensorcast/event"
	"tensorcast/prefetch/pages"
)

// Routers are those of a mixture that a Guesser is for.
type Routers struct {
	Blocks  []int32 // the numbers of their layers in the model, in the order of use; a Guesser counts layers by the indices of this
	Experts int     // the most that a layer has
	Chosen  int     // how many of them a token is sent to
	Path    string  // where this process can open the file that has the first expert; the model may have others
	File    event.FileID
}

// Guesser says which experts routers are likely to choose next. The predictors of package moe are such, and say how the calls follow each other. None of its calls may take long:
// whoever has them made keeps a processor meanwhile.
type Guesser interface {
	// Begin starts a token, whose id is negative if it is not known.
	Begin(id int32)
	// Observe tells what a layer has chosen, the highest score first.
	Observe(layer int, chosen []int32)
	// Scores writes the natural logarithms of the odds that a layer chooses each of its experts when it comes next.
	Scores(layer int, scores []float32)
}

// InputGuesser is a Guesser that also goes by what routers and attention read, where it is told that (event.RouterInput).
type InputGuesser interface {
	Guesser
	// Attention tells what the attention of a layer reads: Scores of that layer are better from then on.
	Attention(layer int, input []float32)
	// Router tells what the router of a layer reads.
	Router(layer int, input []float32)
	// Learn learns from what was told of a layer. It may take longer than the others.
	Learn(layer int)
}

const (
	// Experts are guessed that are more likely to be chosen than not (log-odds above leastScore), of the next layer, and where there is time left of those up to mostAhead.
	leastScore = 0
	mostAhead  = 2
	// mostGuessed is how many experts a layer may have to be guessed at.
	mostGuessed = 1024
	// guessPiece is read at a time, up to guessTick in a tick, as what is chosen meanwhile waits for that, and up to guessUnder before some of it has arrived.
	guessPiece, guessTick, guessUnder = 512 << 10, 1 << 20, 4 << 20
	// idleShare of the times that the disk was idle after a layer's choice were shorter than is expected. An expectation moves by a part of idleStep of what was seen.
	idleShare = 0.1
	idleStep  = 0.125
	mostIdle  = time.Second
	// leastRated is what is read at once to tell the disk's bandwidth from it.
	leastRated = 256 << 10
	// leastPause is how often to look at least whether the disk is idle.
	leastPause = 250 * time.Microsecond
	// roomShare is by what part of it the room for experts changes until a new trial is due.
	roomShare = 4
	// unknownToken is the id of a token that was not observed.
	unknownToken = -1
)

// speculation is what is guessed of a mixture's choices, and read for that.
type speculation struct {
	trial   trial
	guesser Guesser      // nil until a token's choice tells what it is for, or where there is none
	inputs  InputGuesser // the same, if it goes by what routers read; else nil
	decode  uint32       // that the guesser was told of last
	scores  []float32

	queue []guess // to be read, in this order
	ahead int     // layers ahead that were guessed

	demand      []pages.Range // what was read at once and may be under way
	demandBytes int64         // of this, as it was asked for
	since       time.Time     // when that was; zero: the last choice was not followed
	idle        time.Time     // since when all of it has arrived; zero: it has not
	under       []pages.Range // what was read for guesses and may be under way
	lookAt      time.Time     // when to look next; zero: at the next tick

	rate    float64   // that the disk delivers, in bytes per ns; 0: not known
	gaps    []float64 // by layer: how long the disk is idle until the next one has chosen, in ns; negative: not known
	could   int64     // bytes that could have been read for guesses while the guesser learned
	counted bool      // those of the present layer are in it
	reads   int64     // experts.read when it began to learn

	early  int64   // bytes that were read before they were chosen
	used   int64   // of experts that were chosen then
	before int64   // early, a token ago
	lately float64 // of a token, mean of the last ones
	size   int64   // the room for experts when a trial was made last
}

// guess is an expert that is likely to be chosen.
type guess struct {
	layer *expertLayer
	*expert
}

// guesserFor makes a guesser, once it is known how many experts a token chooses. It says whether there is one.
func (c *Controller) guesserFor(chosen int) bool {
	x := c.help.experts
	if x.guesser != nil {
		return true
	}
	r := Routers{Blocks: make([]int32, len(x.layers)), Chosen: chosen}
	if file := x.layers[0].experts[0].reads[0].File; file < len(c.known) {
		r.Path, r.File = c.known[file].path, c.known[file].id
	}
	for number, at := range x.index {
		r.Blocks[at] = number
		r.Experts = max(r.Experts, len(x.layers[at].experts))
	}
	if r.Experts <= mostGuessed {
		x.guesser = c.opts.Guess(r)
	}
	if x.guesser == nil {
		x.trial.mode = SpeculateOff
		return false
	}
	x.inputs, _ = x.guesser.(InputGuesser)
	x.scores, x.gaps = make([]float32, r.Experts), slices.Repeat([]float64{-1}, len(x.layers))
	return true
}

// guess tells the guesser what a layer, by its index, has chosen, and asks it for the next one.
func (c *Controller) guess(at int, e event.Selected) {
	x := c.help.experts
	if x.trial.mode == "" {
		x.trial = newTrial(c.opts.Speculate)
		if c.opts.Guess == nil {
			x.trial.mode = SpeculateOff
		}
	}
	if e.IDRows != 1 || len(e.IDs) >= len(x.layers[at].experts) { // a prompt, or the warm-up
		x.trial.interrupt()
		c.dropGuesses()
		return
	}
	if !x.trial.watches() || !c.guesserFor(len(e.IDs)) {
		return
	}
	x.token(e.Decode)
	x.guesser.Observe(at, e.IDs)
	x.expect(1)
	if x.inputs != nil {
		x.inputs.Learn(at)
	}
}

// token begins a token, unless that was done.
func (x *experts) token(decode uint32) {
	if x.decode != decode {
		x.decode = decode
		x.guesser.Begin(unknownToken)
	}
}

// routerInput tells the guesser what a layer is about to compute with.
func (c *Controller) routerInput(e event.RouterInput) {
	h := c.help
	if h == nil || h.experts == nil || h.experts.inputs == nil || c.watch.aside || h.decode == 0 || h.decode != e.Decode || h.tid != e.TID || e.Rows != 1 {
		return
	}
	x := h.experts
	at, known := x.index[e.Layer]
	if !known || !x.trial.watches() {
		return
	}
	x.token(e.Decode)
	switch e.Point {
	case event.PointRouter:
		x.inputs.Router(at, e.Values)
	case event.PointAttention:
		x.inputs.Attention(at, e.Values)
		if at == x.after(1) {
			x.expect(1)
		}
	}
}

// WantsInputs says whether an event.RouterInput is of use now.
func (c *Controller) WantsInputs() bool {
	h := c.help
	return h != nil && h.experts != nil && h.experts.inputs != nil && !c.watch.aside && h.experts.trial.watches()
}

// after is the index of the layer so many behind the one whose experts are under way.
func (x *experts) after(ahead int) int { return (x.now + ahead) % len(x.layers) }

// expect asks what the layer so many ahead is likely to choose, and queues what is missing of that, the likeliest first.
func (x *experts) expect(ahead int) {
	at := x.after(ahead)
	l := &x.layers[at]
	x.ahead = ahead
	x.unqueue(l)
	x.guesser.Scores(at, x.scores)
	first := len(x.queue)
	for i := range l.experts {
		e := &l.experts[i]
		e.guessed = 0
		if score := x.scores[i]; score > leastScore {
			e.guessed = 1 / (1 + math.Exp(-float64(score)))
			if !e.away && (!e.there || e.rest > 0) {
				x.queue = append(x.queue, guess{l, e})
			}
		}
	}
	slices.SortStableFunc(x.queue[first:], func(a, b guess) int { return cmp.Compare(b.guessed, a.guessed) })
	if ahead == 1 && first > 0 { // what was guessed of later layers is later
		x.queue = append(slices.Clone(x.queue[first:]), x.queue[:first]...)
	}
}

func (x *experts) unqueue(l *expertLayer) {
	x.queue = slices.DeleteFunc(x.queue, func(g guess) bool { return g.layer == l })
}

// chose notes that a layer has chosen: what was idle is so no more. It moves the expectation of how long the disk was.
func (x *experts) chose(now time.Time) {
	if !x.since.IsZero() {
		gap := 0.0
		if !x.idle.IsZero() {
			gap = float64(min(now.Sub(x.idle), mostIdle))
		}
		switch q, step := &x.gaps[x.now], idleStep*max(gap, x.gaps[x.now]); {
		case *q < 0:
			*q = gap
		case gap < *q:
			*q -= min((1-idleShare)*step, *q-gap)
		default:
			*q += min(idleShare*step, gap-*q)
		}
	}
	x.unfollow()
}

// unfollow forgets what is being read.
func (x *experts) unfollow() {
	x.demand, x.under, x.demandBytes, x.counted = x.demand[:0], x.under[:0], 0, false
	x.since, x.idle, x.lookAt = time.Time{}, time.Time{}, time.Time{}
}

// demands notes that n bytes of a range were read at once.
func (x *experts) demands(r pages.Range, n int64) {
	if n > 0 && x.guesser != nil && x.trial.watches() {
		x.demand = append(x.demand, r)
		x.demandBytes += n
	}
}

// asked notes that all that a layer has chosen was asked for.
func (x *experts) asked(now time.Time) {
	if x.guesser == nil || !x.trial.watches() {
		return
	}
	x.since = now
	if len(x.demand) == 0 {
		x.idle = now
	} else if x.rate > 0 {
		x.lookAt = now.Add(time.Duration(float64(x.demandBytes) / x.rate))
	}
}

// settle drops what was guessed of a layer, which has chosen now. It says whether it may have been begun to be read.
func (x *experts) settle(l *expertLayer, ids []int32) (begun bool) {
	if x.guesser == nil {
		return false
	}
	x.unqueue(l)
	for _, id := range ids {
		x.used += l.experts[id].early
	}
	for i := range l.experts {
		e := &l.experts[i]
		e.early, e.guessed = 0, 0
		begun = begun || e.rest > 0
	}
	return begun
}

// refute pages out what was read for guesses of a layer that are not read to their end.
func (c *Controller) refute(l *expertLayer) {
	for i := range l.experts {
		if e := &l.experts[i]; e.rest > 0 && !c.evict(e) {
			e.rest = 0 // it counts as being there, and is looked at before its use
		}
	}
}

// dropGuesses drops all that was guessed.
func (c *Controller) dropGuesses() {
	x := c.help.experts
	if x.guesser == nil {
		return
	}
	for i := range x.layers {
		c.refute(&x.layers[i])
	}
	x.forgetGuesses()
}

// forgetGuesses forgets what was guessed, and what was being read.
func (x *experts) forgetGuesses() {
	x.queue = nil
	x.unfollow()
	for i := range x.layers {
		for j := range x.layers[i].experts {
			e := &x.layers[i].experts[j]
			e.guessed, e.early = 0, 0
		}
	}
}

// speculate reads of what is guessed as much as the disk is expected to deliver until the next layer has chosen, once it has nothing else to do.
func (c *Controller) speculate() error {
	h := c.help
	x := h.experts
	if x == nil || x.since.IsZero() || h.decode == 0 || h.begun == 0 {
		return nil
	}
	now := c.now()
	if idle, err := c.idles(now); err != nil || !idle {
		return err
	}
	if h.heldBytes < h.schedule.Bytes || x.room <= x.least { // something of the trunk is to be read, or there is room for what is being used only
		return nil
	}
	if !x.trial.active() {
		x.count(now)
		return nil
	}
	var err error
	if x.under, err = c.underWay(x.under); err != nil {
		return err
	}
	var under int64
	for _, r := range x.under {
		under += r.Length
	}
	x.lookAt = time.Time{}
	for read := int64(0); read < guessTick && under+guessPiece <= guessUnder; {
		g := x.likeliest()
		if g == nil {
			return nil
		}
		if x.takes(under+guessPiece) > x.left(c.now()) {
			return nil
		}
		if !g.there && !c.admit(*g) {
			x.queue = x.queue[1:]
			continue
		}
		piece := g.piece()
		n, err := c.readNow(piece, true)
		if err != nil {
			return err
		}
		read += piece.Length
		x.early += n
		g.expert.early += n
		if n > 0 {
			x.under = append(x.under, piece)
			under += piece.Length
		}
		if g.rest -= piece.Length; g.rest <= 0 {
			g.rest = 0
			x.queue = x.queue[1:]
		}
	}
	x.lookAt = now.Add(x.takes(under / 2))
	return nil
}

// idles says whether all that was read at once has arrived.
func (c *Controller) idles(now time.Time) (bool, error) {
	x := c.help.experts
	if !x.idle.IsZero() {
		return true, nil
	}
	var err error
	if x.demand, err = c.underWay(x.demand); err != nil {
		return false, err
	}
	if took := now.Sub(x.since); len(x.demand) > 0 {
		if !now.Before(x.lookAt) {
			x.lookAt = now.Add(max(took/4, leastPause))
		}
		return false, nil
	} else if took > 0 && x.demandBytes >= leastRated {
		rate := float64(x.demandBytes) / float64(took)
		if x.rate == 0 {
			x.rate = rate
		}
		x.rate += idleStep * (rate - x.rate)
	}
	x.idle = now
	return true, nil
}

// underWay are those of some ranges that have not arrived.
func (c *Controller) underWay(all []pages.Range) ([]pages.Range, error) {
	left := all[:0]
	for _, r := range all {
		arrived, err := c.pages.Arrived(r)
		if err != nil {
			return nil, err
		}
		if !arrived {
			left = append(left, r)
		}
	}
	return left, nil
}

// takes is how long the disk takes for bytes, as far as is known.
func (x *experts) takes(bytes int64) time.Duration {
	if x.rate <= 0 {
		return mostIdle
	}
	return time.Duration(float64(bytes) / x.rate)
}

// left is how long the disk is expected to be idle.
func (x *experts) left(now time.Time) time.Duration {
	return time.Duration(x.gaps[x.now]) - now.Sub(x.idle)
}

// count notes what could be read for guesses, once for each choice.
func (x *experts) count(now time.Time) {
	if x.counted {
		return
	}
	x.counted = true
	var bytes int64
	for _, g := range x.queue {
		bytes += g.bytes
	}
	x.could += min(bytes, int64(float64(max(x.left(now), 0))*x.rate))
}

// worth says whether that is enough to win something: who reads less than a share of the bytes earlier cannot have tokens faster by this share.
func (x *experts) worth() bool {
	read := x.read - x.reads
	return read > 0 && float64(x.could) >= (leastGain-1)*float64(read)
}

// likeliest is the guess to read next; nil if there is none.
func (x *experts) likeliest() *guess {
	for len(x.queue) == 0 {
		if x.ahead >= min(mostAhead, len(x.layers)-1) {
			return nil
		}
		x.expect(x.ahead + 1)
	}
	return &x.queue[0]
}

// piece is what is to be read next of an expert.
func (e *expert) piece() pages.Range {
	at := -e.rest
	for _, r := range e.reads {
		at += r.Length
	}
	for _, r := range e.reads {
		if at < r.Length {
			return pages.Range{File: r.File, Offset: r.Offset + at, Length: min(guessPiece, r.Length-at)}
		}
		at -= r.Length
	}
	return pages.Range{}
}

// admit makes room for an expert that is guessed, if those that have to give way for it are less likely to be chosen when their layer comes than it is.
func (c *Controller) admit(g guess) bool {
	x := c.help.experts
	var victims []*expert
	for over := x.there + g.bytes - x.room; over > 0; {
		var last *expert
		latest := -1.0
		for i := range x.layers {
			l := &x.layers[i]
			part := x.part(i)
			for j := range l.experts {
				e := &l.experts[j]
				if !e.there || e.used == x.clock || l.chance(e) >= g.guessed || slices.Contains(victims, e) {
					continue
				}
				if next := l.next(e, part); next > latest {
					last, latest = e, next
				}
			}
		}
		if last == nil {
			return false
		}
		victims = append(victims, last)
		over -= last.bytes
	}
	for _, v := range victims {
		if !c.evict(v) {
			return false
		}
	}
	g.there, g.rest = true, 0
	for _, r := range g.reads {
		g.rest += r.Length
	}
	x.there += g.bytes
	return true
}

// tried notes a token with help, of nanos.
func (c *Controller) tried(nanos int64) {
	x := c.help.experts
	if x == nil {
		return
	}
	x.lately += (float64(x.early-x.before) - x.lately) / lastTokens
	x.before = x.early
	if change := x.room - x.size; max(change, -change) > x.size/roomShare {
		x.size = x.room
		x.trial.soon()
	}
	phase, active := x.trial.phase, x.trial.active()
	if x.trial.token(nanos, x.worth) {
		c.opts.Log.Info("compared tokens with and without reads of experts that are likely to be chosen", "gain", x.trial.gain, "pairs", len(x.trial.pairs), "are read", x.trial.wins)
	}
	if x.trial.phase == learning && phase != learning {
		x.could, x.reads = 0, x.read
	}
	if active && !x.trial.active() {
		c.dropGuesses()
	}
}

// guessPause is how long to wait until the disk may be idle, and something can be read for guesses.
func (c *Controller) guessPause() time.Duration {
	if c.help == nil || c.help.experts == nil {
		return c.busyPause()
	}
	if c.help.experts.lookAt.IsZero() {
		return expertPause
	}
	return min(max(c.help.experts.lookAt.Sub(c.now()), leastPause), expertPause)
}

// Speculated says what was read of experts before a router had chosen them. Sizes are bytes.
type Speculated struct {
	State  string  `json:"state"`      // off, on, not tried yet, learning, trying, won, no win, too little to win
	Read   int64   `json:"read_bytes"` // beside Experts.Read
	Used   int64   `json:"used_bytes"` // of these, of experts that their layer then chose
	Trials int     `json:"trials"`     // that were made
	Gain   float64 `json:"gain"`       // how many times faster tokens were in the last one; 0 before
}

// after adds what had been done before.
func (s *Speculated) after(before *Speculated) *Speculated {
	if s == nil || before == nil {
		return cmp.Or(s, before)
	}
	s.Read += before.Read
	s.Used += before.Used
	s.Trials += before.Trials
	return s
}

// speculated is what was done; nil if nothing was to be.
func (x *experts) speculated() *Speculated {
	t := &x.trial
	if t.mode == "" || t.mode == SpeculateOff {
		return nil
	}
	return &Speculated{State: t.state(), Read: x.early, Used: x.used, Trials: t.count, Gain: t.gain}
}
