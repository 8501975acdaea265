package prefetch

// This file looks for the model among the files that the target maps, to begin before the target has read
// anything: with a cycle that is stored, or with a guess.

import (
	"time"

	"tensorcast/pattern"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
)

// seek is the search for the model of which the target has read nothing yet.
type seek struct {
	began, last time.Time // when the target was asked first, and last
	otherSince  time.Time // when it was first seen to map other models than the stored cycle's
	mappedSince time.Time // when it was first seen to map a model, if that is to be guessed
	unmapped    bool      // it was seen before it had mapped one
	heard       time.Time // session.heard when the search began
	files       []loadFile
	over        bool // there is nothing to guess
	guessed     bool // what is followed was guessed, and the target has not read it yet
}

const (
	// The target is asked whether it has mapped its model in an interval that is a lookShare of the time
	// since it was asked first, within bounds. A program that has just been started maps its model soon, and
	// then goes through it at once.
	lookShare = 40
	leastLook = 5 * time.Millisecond
	mostLook  = 250 * time.Millisecond
	// loadTime is how long a target that maps another model may take to map the cycle's, too. The files of a
	// split model, or a draft model, come one by one.
	loadTime = 2 * time.Second
)

// seeksModel says whether a model that the target maps is waited for.
func (s *session) seeksModel() bool {
	if s.opts.Stored != nil {
		return true
	}
	mayGuess := s.opts.Target.Touched != nil && !s.opts.Lock && !s.opts.Strategy.Traits().OnlyStored
	return mayGuess && s.f == nil && !s.seek.over
}

// seekAgain begins the search anew, because the target has unmapped its model. A server that sleeps maps it again.
func (s *session) seekAgain() { s.seek = seek{heard: s.heard} }

// seekInterval is how often the target is asked.
func (s *session) seekInterval() time.Duration {
	if s.seek.began.IsZero() {
		return 0
	}
	return min(max(s.now().Sub(s.seek.began)/lookShare, leastLook), mostLook)
}

// seekModel begins with the stored cycle once the target maps its model, or with a guess once it loads one.
// The error is pattern.ErrOtherModel if the target maps only others than the stored cycle's.
func (s *session) seekModel() error {
	if !s.seeksModel() || s.now().Sub(s.seek.last) < s.seekInterval() {
		return nil
	}
	s.seek.last = s.now()
	if s.seek.began.IsZero() {
		s.seek.began = s.now()
	}
	if s.opts.Stored == nil {
		return s.guessModel()
	}
	m, err := s.opts.Target.Models()
	if err != nil || len(m.Files) == 0 {
		return err
	}
	cycle, err := s.opts.Stored.MatchFiles(m.Files)
	if err != nil {
		if s.seek.otherSince.IsZero() {
			s.seek.otherSince = s.now()
		}
		// If it computes, or has mapped another model for long, it is not going to map this one.
		if s.f != nil || s.now().Sub(s.seek.otherSince) >= loadTime {
			return err
		}
		return nil
	}
	s.opts.Stored = nil
	if s.f != nil {
		return nil // the target was faster: its cycle was learned
	}
	return s.followStored(cycle, m.Mapped)
}

// guessModel guesses the cycle of a model that the target has just mapped, or is seen to go through because
// it loads it. A target that computes, or had loaded its model before, is learned from.
func (s *session) guessModel() error {
	k := &s.seek
	if s.heard != k.heard {
		k.over = true
		return nil
	}
	m, err := s.opts.Target.Models()
	if err != nil {
		s.log.Debug("cannot tell which model the target maps", "error", err)
		return nil
	}
	if !m.IsWhole() {
		k.unmapped = true
		return nil
	}
	loads, err := s.isLoading(&m)
	if err != nil {
		return err
	}
	if !loads {
		k.over = s.now().Sub(k.mappedSince) >= loadTime
		return nil
	}
	k.over, k.files = true, nil
	cycle, err := pattern.Guess(m.Parts)
	if err != nil && s.knowsExperts(m) {
		cycle, err = pattern.GuessMixture(m.Parts)
	}
	if err != nil {
		s.log.Debug("no guess", "error", err)
		return nil
	}
	cycle.Files = m.Files
	k.guessed, s.work.guessed = true, true
	return s.followStored(cycle, m.Mapped)
}

// isLoading says whether the target has just mapped a model, or is seen to go through it. A target that had mapped its
// model when it was seen first may have loaded it long ago. What its tokens take without help has to be measured then.
func (s *session) isLoading(m *models.Model) (loads bool, err error) {
	k := &s.seek
	if k.mappedSince.IsZero() {
		k.mappedSince = s.now()
		for i, at := range m.Mapped {
			pieces := addGap(nil, 0, 0, m.Files[i].Size, pages.MinBlock)
			k.files = append(k.files, loadFile{base: at.Base, pieces: pieces})
		}
	}
	loads = k.unmapped
	for i := range k.files {
		f := &k.files[i]
		before := f.passed
		if err := f.findPassed(s.opts.Target.Touched); err != nil {
			return false, err
		}
		loads = loads || before > 0 && f.passed > before
	}
	return loads, nil
}
