package prefetch

// This file is the phase that learns what a token reads: from a decode of few tokens, or before any decode
// from a cycle that is stored or guessed.

import (
	"errors"
	"slices"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/follow"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/plan"
)

// learnPhase waits for the target. The next phase begins when a cycle is known: from observe, when a decode
// ends, or from seek, when the target maps a model.
type learnPhase struct {
	s *session
	// before is why the target was left alone until it unmapped its models; nil otherwise.
	before *StandBack
}

func (p *learnPhase) name() Phase { return Learn }

func (p *learnPhase) enter() error { return p.s.drop() }

func (p *learnPhase) handle(e event.Event) error {
	_, err := p.s.observe(e)
	return err
}

func (p *learnPhase) tick() error {
	if err := p.s.seekModel(); err != nil {
		return err
	}
	p.s.readsOther()
	return nil
}

func (p *learnPhase) pause() time.Duration { return p.s.pauseWhileLearning() }

// covers says what was so with the last cycle, so that faults do not change back and forth.
func (p *learnPhase) covers() bool { return p.s.begun && p.s.work.experts != nil }

// outsideShare times as much outside the model's file as in it leaves nothing to help with: norms are never
// copied.
const outsideShare = 8

var errOtherReads = errors.New("the target does not read what the pattern says")

// learnFrom takes the first whole decode of a context as the cycle of all its tokens: the warm-up, a prompt or the
// first generated token. What was learned from a large prompt is learned again from the first decode of few tokens.
// ended is when the decode ended.
func (s *session) learnFrom(d *follow.Decode, ended int64) error {
	l := d.Lesson
	plain := stepOf(d, ended)
	if l == nil {
		if s.f == nil && d.Context.Cycle != nil { // the one that was followed was given up
			return s.follow(d.Context, "a context whose cycle is known decodes", plain)
		}
		return nil
	}
	l.End()
	cycle := s.checkReads(l.Cycle())
	if cycle != nil && s.opts.Experts.Routes != nil {
		s.addExperts(cycle)
	}
	outside := l.Outside()
	copied, err := s.evictCopied(l.Copied, l.Cycle())
	if err != nil {
		return err
	}
	mostlyOutside := outside.Reads > 0 && (cycle == nil || outside.Bytes > outsideShare*plan.BytesOf(cycle))
	if mostlyOutside && (s.f == nil || s.seek.guessed) {
		var err error
		if s.opts.Target.Judge != nil {
			err = s.opts.Target.Judge() // it knows the target better
		}
		if err == nil {
			advice := ""
			if s.opts.Target.Advise != nil {
				advice = "if they do not fit in memory, " + s.opts.Target.Advise()
			}
			err = event.OutsideError(outside.Reads, outside.Bytes, advice)
		}
		return s.standBack(&StandBack{Reason: Outside, Err: err, Copied: copied})
	}
	if cycle == nil {
		return nil
	}
	guessed := s.seek.guessed
	s.seek.guessed = false
	x := d.Context
	before := x.Cycle
	x.Cycle, x.Bases, x.Rough = cycle, l.Bases, l.Rough
	switch stored := s.contexts.Stored; {
	case s.opts.Strategy.Traits().OnlyStored && stored == nil && s.contexts.Main == nil:
		x.Forget()
		return nil
	case s.f == nil:
		return s.follow(x, "a token's reads are known", plain)
	case stored != nil && (x == s.contexts.Main || s.contexts.Main == nil && follow.ShareFile(stored, x.Cycle)):
		return s.compareStored(x, stored, guessed)
	case x.Elsewhere: // the mapping that was made last is the one in use, as far as can be told
		return s.follow(x, "the model was mapped anew", plain)
	case x.Foreign && plan.BytesOf(x.Cycle) > s.f.schedule.Bytes:
		return s.follow(x, "another context reads more", plain)
	case x == s.contexts.Main && before != nil && !follow.SameReads(before, cycle):
		return s.follow(x, "a token reads something else than was learned from a prompt", plain)
	}
	return nil
}

// compareStored compares what a context reads with the stored or guessed cycle that is followed for it.
func (s *session) compareStored(x *follow.Context, stored *pattern.Cycle, guessed bool) error {
	s.contexts.Stored = nil
	if !follow.SameReads(stored, x.Cycle) {
		if s.opts.Strategy.Traits().OnlyStored {
			return s.standBack(&StandBack{Reason: Differs, Err: errOtherReads})
		}
		return s.follow(x, errOtherReads.Error(), step{})
	}
	s.contexts.Main = x
	if guessed {
		return s.judgeWinnable()
	}
	return nil
}

// follow begins to help a context whose cycle is known, instead of what was followed. plain is a step of it that had
// no help just now; without tokens if there was none.
func (s *session) follow(x *follow.Context, why string, plain step) error {
	another := s.f != nil
	if err := s.drop(); err != nil {
		return err
	}
	s.contexts.Follow(x)
	err := s.start(x.Cycle, x.Bases, why, plain)
	if err == nil && another { // it has no reads
		return s.giveUp(why)
	}
	return err
}

// followStored begins with a cycle that was stored or guessed, before the target has decoded. What the target
// then reads is compared with it once, and learned instead if it differs.
func (s *session) followStored(cycle *pattern.Cycle, at []models.Mapped) error {
	bases := map[int]uint64{}
	numbers := make([]int, len(at))
	var loading []loadFile
	for i, f := range at {
		var err error
		if numbers[i], err = s.openFile(f.Path, f.ID); err != nil {
			return err
		}
		if f.Base != 0 {
			bases[numbers[i]] = f.Base
			loading = append(loading, loadFile{file: numbers[i], base: f.Base})
		}
	}
	mine := cycle.Renumber(numbers)
	if err := s.checkStored(mine); err != nil {
		return err
	}
	s.contexts.Stored = mine
	s.work.stored = !s.seek.guessed
	why := "a stored pattern is of the model that the target maps"
	if s.seek.guessed {
		why = "the target loads a model whose order of reads can be guessed"
	}
	if s.opts.Target.Touched == nil || s.opts.Lock || s.contexts.Decoding() {
		loading = nil
	}
	return s.startLoading(mine, bases, loading, why)
}

// checkReads is a cycle without reads that are no weights of their file. It is nil if nothing is left that
// every token reads, or if that is more than a token can read.
func (s *session) checkReads(cycle *pattern.Cycle) *pattern.Cycle {
	if cycle == nil {
		return nil
	}
	var whole int64
	cycle.Reads = slices.DeleteFunc(cycle.Reads, func(r pattern.CycleRead) bool {
		f := &s.files[r.File]
		if !f.holds(&r) {
			s.refuse("the target reads what is no weight of its model file, it seems: it is left to it",
				"tensor", r.Tensor, "offset", r.Offset, "bytes", r.Length, "file size", f.size)
			return true
		}
		if !r.Gathers() && whole <= plan.MaxCycleBytes {
			whole += r.Length
		}
		return false
	})
	if whole > plan.MaxCycleBytes {
		s.refuse("the target reads more than any token of a model can: it is left alone")
		return nil
	}
	if whole == 0 {
		return nil
	}
	return cycle
}

// addExperts adds to a cycle those experts of its files that were not read, because they were computed
// elsewhere.
func (s *session) addExperts(cycle *pattern.Cycle) {
	m, err := s.models()
	if err != nil {
		return // those that were read are helped
	}
	for i, part := range m.Parts {
		file := slices.IndexFunc(s.files, func(k knownFile) bool { return k.id == m.Mapped[i].ID })
		if file >= 0 && part != nil {
			mixture.AddUnread(cycle, file, part)
		}
	}
}
