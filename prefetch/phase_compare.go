package prefetch

// This file is the phase that leaves the target alone for some tokens, and compares them with those that had
// help. It is here that help is given up because it does not win.

import (
	"fmt"
	"slices"
	"time"

	"tensorcast/event"
)

const (
	// againTokens are measured in a later comparison, after asideTokens. Then the page cache is as the target
	// alone makes it, because it has touched all of the model once.
	againTokens = 3
	asideTokens = 1
	// farGain is how many times as long one token of a mixture has to take without help to be enough.
	farGain = 2
	// expertTokens pass besides until help for experts is taken not to win. Those that were kept serve the
	// tokens without help, too, until others have taken their place.
	expertTokens = 32
)

// comparePhase measures tokens without help: one before anything is held, several later. The next phase
// helps, or stands back if help does not win.
type comparePhase struct {
	f       *followed
	first   int64   // ns, a token that was measured before the phase began; 0: none was
	skip    int     // tokens that are not counted, because what was before still shows in them
	wait    int     // tokens that help may still take to show that it wins, see expertTokens
	without []int64 // ns, tokens without help
}

func (p *comparePhase) name() Phase { return Compare }

// enter leaves the target alone. What was held counts as held no more: the target's own faults take its
// memory.
func (p *comparePhase) enter() error {
	f := p.f
	if len(f.compared.with) == 0 {
		if p.first != 0 {
			return p.endToken(p.first)
		}
		return nil
	}
	p.skip = asideTokens
	if err := f.releaseAll(); err != nil {
		return err
	}
	for b := range f.held {
		f.lose(b)
	}
	f.window.forgetStaged()
	if f.mixture != nil {
		p.wait = expertTokens
		f.mixture.Forget()
	}
	return nil
}

func (p *comparePhase) handle(e event.Event) error {
	token, err := p.f.observe(e)
	if err != nil || token == 0 {
		return err
	}
	return p.endToken(token)
}

func (p *comparePhase) tick() error { return p.f.upkeep() }

func (p *comparePhase) pause() time.Duration { return p.f.pauseForBlock(false) }

// covers is false for a dense model, whose faults then read what is needed next: tokens without help would be
// slower, and the comparison unfair.
func (p *comparePhase) covers() bool { return p.f.begun && !p.f.isUnseen() && p.f.mixture != nil }

// endToken notes a token without help, of so many ns, and ends the comparison once there are enough.
func (p *comparePhase) endToken(nanos int64) error {
	if p.skip > 0 {
		p.skip--
		return nil
	}
	p.without = append(p.without, nanos)
	f, w := p.f, &p.f.compared
	first := len(w.with) == 0
	if !first && len(p.without) < againTokens && !p.isFarSlower() {
		return nil
	}
	w.plain, w.certain = middle(p.without), !first
	why := fmt.Sprintf("a token takes %s without help", describePlain(w.plain))
	if !first {
		with := middle(w.with)
		if float64(with)*leastGain >= float64(w.plain) {
			if p.wait > 0 {
				p.wait--
				p.without = p.without[1:]
				return nil
			}
			return f.standBack(&StandBack{Reason: NoWin, With: time.Duration(with), Without: time.Duration(w.plain)})
		}
		w.next = min(2*w.next, maxNext)
		why = fmt.Sprintf("help wins: a token takes %s with it, %s without",
			describePlain(with), describePlain(w.plain))
	}
	w.begin()
	if err := f.takeHold(); err != nil {
		return err
	}
	return f.help(why)
}

// isFarSlower says whether tokens without help take so much longer that no more of them need be measured.
// Where nothing was measured before, one that takes clearGain times as long is enough, as it is before
// anything is held. Of a mixture each costs several with help. There one that takes farGain times as long is
// enough, or more that all take clearGain times as long: what was kept still serves them, so they would take
// no less later.
func (p *comparePhase) isFarSlower() bool {
	gain := clearGain
	switch {
	case p.f.mixture != nil && len(p.without) == 1:
		gain = farGain
	case p.f.mixture == nil && p.f.compared.plain > 0:
		return false
	}
	return float64(slices.Min(p.without)) > gain*float64(middle(p.f.compared.with))
}
