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
	// strangeSteps without one of a class that was seen with help end a comparison that says nothing.
	strangeSteps = 24
	// expertTokens pass besides until help for experts is taken not to win. Those that were kept serve the
	// tokens without help, too, until others have taken their place.
	expertTokens = 32
)

// comparePhase measures tokens without help: one before anything is held, several later. The next phase
// helps, or stands back if help does not win.
type comparePhase struct {
	f       *followed
	first   step   // one that was measured before the phase began; without tokens if none was
	skip    int    // steps that are not counted, because what was before still shows in them
	wait    int    // steps that help may still take to show that it wins, see expertTokens
	without []step // without help
}

func (p *comparePhase) name() Phase { return Compare }

// enter leaves the target alone. What was held counts as held no more: the target's own faults take its
// memory.
func (p *comparePhase) enter() error {
	f := p.f
	if len(f.compared.with) == 0 {
		if p.first.tokens > 0 {
			return p.endStep(p.first)
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
	s, err := p.f.observe(e)
	if err != nil {
		return err
	}
	if begun, is := e.(event.DecodeBegin); is && p.isFirst() && begun.Tokens > generatedTokens &&
		p.f.Decode == begun.Decode && !begun.Warmup {
		return p.help("a prompt begins: it takes long, and help is compared later")
	}
	if s.tokens == 0 {
		return nil
	}
	return p.endStep(s)
}

// isFirst says whether nothing had help yet, and nothing was measured.
func (p *comparePhase) isFirst() bool { return len(p.f.compared.with) == 0 && len(p.without) == 0 }

func (p *comparePhase) tick() error { return p.f.upkeep() }

func (p *comparePhase) pause() time.Duration { return p.f.pauseForBlock(false) }

// covers is false for a dense model, whose faults then read what is needed next: tokens without help would be
// slower, and the comparison unfair.
func (p *comparePhase) covers() bool { return p.f.begun && !p.f.isUnseen() && p.f.mixture != nil }

// endStep notes a step without help, and ends the comparison once there are enough of a class that was seen with help.
func (p *comparePhase) endStep(s step) error {
	if p.skip > 0 && !p.isSlowPrompt(s) {
		p.skip--
		return nil
	}
	p.without = append(p.without, s)
	f, w := p.f, &p.f.compared
	if len(w.with) == 0 {
		w.plain[s.class()], w.certain = s, false
		return p.help(fmt.Sprintf("%s takes %s without help", describeClass(s.class()), describeTime(s.nanos)))
	}
	class := mostFrequent(slices.DeleteFunc(slices.Clone(p.without), func(s step) bool {
		nanos, _ := w.takes(s.class())
		return nanos == 0
	}))
	switch {
	case class == 0 && len(p.without) < strangeSteps:
		return nil
	case class == 0:
		w.next = min(2*w.next, maxNext)
		return p.help("no decode without help was like one with it")
	case p.weightOf(class) < againTokens && !p.isFarSlower(class):
		return nil
	}
	plain := middle(p.nanosOf(class))
	with, tokens := w.takes(class)
	for _, one := range p.without { // steps of other classes need not be measured again
		w.plain[one.class()] = step{one.tokens, middle(p.nanosOf(one.class()))}
	}
	w.certain = true
	if float64(with)*leastGain >= float64(plain) {
		if p.wait > 0 {
			p.wait -= s.weight()
			p.without = p.without[1:]
			return nil
		}
		return f.standBack(&StandBack{
			Reason: NoWin, With: time.Duration(with), Without: time.Duration(plain), Tokens: tokens,
		})
	}
	w.next = min(2*w.next, maxNext)
	return p.help(fmt.Sprintf("help wins: %s takes %s with it, %s without",
		describeClass(class), describeTime(with), describeTime(plain)))
}

// isSlowPrompt says whether a prompt without help takes so much longer that it is enough. What was held still serves
// the first one, so that later ones would take no less.
func (p *comparePhase) isSlowPrompt(s step) bool {
	with, _ := p.f.compared.takes(s.class())
	return s.tokens > generatedTokens && with > 0 && float64(s.nanos) > clearGain*float64(with)
}

// help ends the comparison, and helps.
func (p *comparePhase) help(why string) error {
	p.f.compared.begin()
	if err := p.f.takeHold(); err != nil {
		return err
	}
	return p.f.help(why)
}

// nanosOf are the times of the steps of a class without help.
func (p *comparePhase) nanosOf(class int) (all []int64) {
	for _, s := range p.without {
		if s.class() == class {
			all = append(all, s.nanos)
		}
	}
	return all
}

// weightOf is for how many steps those of a class without help stand, see step.weight.
func (p *comparePhase) weightOf(class int) (sum int) {
	for _, s := range p.without {
		if s.class() == class {
			sum += s.weight()
		}
	}
	return sum
}

// isFarSlower says whether steps of a class without help take so much longer that no more of them need be measured.
// Where nothing was measured before, one that takes clearGain times as long is enough, as it is before anything is
// held. Of a mixture each costs several with help. There one that takes farGain times as long is enough, or more that
// all take clearGain times as long: what was kept still serves them, so they would take no less later.
func (p *comparePhase) isFarSlower(class int) bool {
	gain, without := clearGain, p.nanosOf(class)
	switch {
	case p.f.mixture != nil && len(without) == 1:
		gain = farGain
	case p.f.mixture == nil && (p.f.compared.plain[class].nanos > 0 || p.f.mayFitAlone()):
		return false
	}
	with, _ := p.f.compared.takes(class)
	return float64(slices.Min(without)) > gain*float64(with)
}
