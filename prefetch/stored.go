package prefetch

// This file begins with a cycle before the target has read anything, stored or guessed: it looks for the model among the files that the target maps.

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// Model is the files of the models that a target maps.
type Model struct {
	Files  []pattern.CycleFile
	Mapped []Mapped     // of the same files
	Parts  []*gguf.File // of the same files
}

// Mapped is a file as a target maps it.
type Mapped struct {
	Path string       // where this process can open it
	ID   event.FileID // as stat tells it, see event.FileSeen
	Base uint64       // address in the target of the file's first byte
}

// seek is the search for the model of which the target has read nothing yet.
type seek struct {
	began, last time.Time // when the target was asked first, and last
	otherSince  time.Time // when it was first seen to map other models than the stored cycle's
	mapped      time.Time // when it was first seen to map a model, if that is to be guessed,
	files       []loadFile
	over        bool // there is nothing to guess
}

// A target is asked whether it has mapped its model by now in an interval that is a lookShare of the time since it was asked first, within bounds: a program that has just
// been started maps it soon, and then goes through it at once.
const (
	lookShare = 40
	leastLook = 5 * time.Millisecond
	mostLook  = 250 * time.Millisecond
)

// loadTime is how long a target that maps another model may take to map the cycle's too: files of a split model, or a draft model, come one by one.
const loadTime = 2 * time.Second

// seeks says whether a model that the target maps is waited for.
func (c *Controller) seeks() bool {
	return c.opts.Stored != nil || c.opts.Touched != nil && !c.opts.Lock && !c.onlyStored() && c.help == nil && !c.seek.over
}

// lookInterval is how often.
func (c *Controller) lookInterval() time.Duration {
	if c.seek.began.IsZero() {
		return 0
	}
	return min(max(c.now().Sub(c.seek.began)/lookShare, leastLook), mostLook)
}

// look begins with the stored cycle once the target maps the cycle's model, or with a guess once it loads one. The error is pattern.ErrOtherModel if it maps only
// others than the stored cycle's.
func (c *Controller) look() error {
	if !c.seeks() || c.now().Sub(c.seek.last) < c.lookInterval() {
		return nil
	}
	c.seek.last = c.now()
	if c.seek.began.IsZero() {
		c.seek.began = c.now()
	}
	if c.opts.Stored == nil {
		return c.lookToGuess()
	}
	m, err := c.opts.Models()
	if err != nil || len(m.Files) == 0 {
		return err
	}
	cycle, err := c.opts.Stored.In(m.Files)
	if err != nil {
		if c.seek.otherSince.IsZero() {
			c.seek.otherSince = c.now()
		}
		if c.help != nil || c.now().Sub(c.seek.otherSince) >= loadTime { // it computes already, or is not going to map another file
			return err
		}
		return nil
	}
	c.opts.Stored = nil
	if c.help != nil {
		return nil // the target was faster: its cycle was learned
	}
	return c.Use(cycle, m.Mapped)
}

// lookToGuess guesses the cycle of a model that the target has just mapped, or is seen to go through, as it loads it. One that computes, or had loaded its model before, is
// learned from.
func (c *Controller) lookToGuess() error {
	s := &c.seek
	if !c.heard.IsZero() {
		s.over = true
		return nil
	}
	m, err := c.opts.Models()
	if err != nil {
		c.opts.Log.Debug("cannot tell which model the target maps", "error", err)
		return nil
	}
	if !m.whole() {
		return nil
	}
	if s.mapped.IsZero() {
		s.mapped = c.now()
		for i, at := range m.Mapped {
			s.files = append(s.files, loadFile{base: at.Base, pieces: gap(nil, 0, 0, m.Files[i].Size, pages.MinBlock)})
		}
	}
	loads := s.mapped.After(s.began)
	for i := range s.files {
		f := &s.files[i]
		before := f.at
		if err := f.pass(c.opts.Touched); err != nil {
			return err
		}
		loads = loads || before > 0 && f.at > before
	}
	if !loads {
		s.over = c.now().Sub(s.mapped) >= loadTime
		return nil
	}
	s.over, s.files = true, nil
	cycle, err := pattern.Guess(m.Parts)
	if err != nil {
		c.opts.Log.Debug("no guess", "error", err)
		return nil
	}
	cycle.Files = m.Files
	c.guessed, c.sum.Guessed = true, true
	return c.Use(cycle, m.Mapped)
}

// whole says whether these are all files of one model.
func (m Model) whole() bool {
	for _, p := range m.Parts {
		if count, _ := p.Uint("split.count"); max(count, 1) != uint64(len(m.Parts)) {
			return false
		}
	}
	return len(m.Parts) > 0
}

// MappedModels returns a function that lists the GGUF files which the process pid maps at the time, in the order of their addresses. It is not safe for
// concurrent use.
func MappedModels(pid int) func() (Model, error) {
	others := map[proc.FileID]bool{} // files that are no models
	type read struct {
		path string
		of   fs.FileInfo
		file pattern.CycleFile
		part *gguf.File
	}
	models := map[proc.FileID]read{} // those that were read: a target keeps the same ones for long, and they are asked for often
	return func() (Model, error) {
		var m Model
		mappings, err := proc.Mappings(pid)
		if err != nil {
			return m, err
		}
		seen := map[proc.FileID]bool{}
		for _, mapping := range mappings {
			if mapping.Executable || seen[mapping.File] || others[mapping.File] {
				continue
			}
			seen[mapping.File] = true
			at := mapping.Locate(pid)
			known, ok := models[at.ID]
			if now, err := os.Stat(at.Path); ok && err == nil && known.path == at.Path && os.SameFile(now, known.of) && now.Size() == known.of.Size() && now.ModTime().Equal(known.of.ModTime()) {
				m.add(known.file, Mapped{at.Path, event.FileID(at.ID), mapping.Start - mapping.Offset}, known.part)
				continue
			}
			part, err := OpenPart(at.Path, event.FileID(at.ID))
			if errors.Is(err, gguf.ErrNotGGUF) {
				others[mapping.File] = true
				continue
			}
			if err != nil {
				return m, err
			}
			files, err := pattern.FilesOf(part)
			if err != nil {
				return m, err
			}
			models[at.ID] = read{at.Path, part.Files[0].Info(), files[0], part.Files[0]}
			m.add(files[0], Mapped{at.Path, event.FileID(at.ID), mapping.Start - mapping.Offset}, part.Files[0])
		}
		return m, nil
	}
}

func (m *Model) add(file pattern.CycleFile, at Mapped, part *gguf.File) {
	m.Files, m.Mapped, m.Parts = append(m.Files, file), append(m.Mapped, at), append(m.Parts, part)
}

// silence is how long the target is not heard of before it is asked, as often, whether it still maps what is followed: it may have executed another program, or unloaded the
// model, even in the middle of a decode.
const silence = 2 * time.Second

// checkMapped gives up what the target maps no more.
func (c *Controller) checkMapped() error {
	now := c.now()
	if c.opts.Models == nil || now.Sub(c.heard) < silence || now.Sub(c.mapsAt) < silence {
		return nil
	}
	c.mapsAt = now
	m, err := c.models()
	if err != nil {
		return err
	}
	for _, base := range c.help.bases {
		if base != 0 && !slices.ContainsFunc(m.Mapped, func(at Mapped) bool { return at.Base == base }) {
			c.contexts = newContexts(c.contexts.file)
			return c.giveUp("the target maps the model no more")
		}
	}
	return nil
}
