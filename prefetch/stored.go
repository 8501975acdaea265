package prefetch

// This file begins with a cycle that was stored: it looks for the model among the files that the target maps.

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
)

// Model is the files of the models that a target maps.
type Model struct {
	Files  []pattern.CycleFile
	Mapped []Mapped // of the same files
}

// Mapped is a file as a target maps it.
type Mapped struct {
	Path string       // where this process can open it
	ID   event.FileID // as stat tells it, see event.FileSeen
	Base uint64       // address in the target of the file's first byte
}

// lookInterval is how often a target is asked whether it has mapped its model by now.
const lookInterval = 100 * time.Millisecond

// loadTime is how long a target that maps another model may take to map the cycle's too: files of a split model, or a draft model, come one by one.
const loadTime = 2 * time.Second

// look begins with the stored cycle once the target maps the cycle's model. The error is pattern.ErrOtherModel if it maps only others.
func (c *Controller) look() error {
	if c.opts.Stored == nil || c.now().Sub(c.looked) < lookInterval {
		return nil
	}
	c.looked = c.now()
	m, err := c.opts.Models()
	if err != nil || len(m.Files) == 0 {
		return err
	}
	cycle, err := c.opts.Stored.In(m.Files)
	if err != nil {
		if c.otherSince.IsZero() {
			c.otherSince = c.now()
		}
		if c.help != nil || c.now().Sub(c.otherSince) >= loadTime { // it computes already, or is not going to map another file
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

// MappedModels returns a function that lists the GGUF files which the process pid maps at the time, in the order of their addresses. It is not safe for
// concurrent use.
func MappedModels(pid int) func() (Model, error) {
	others := map[proc.FileID]bool{} // files that are no models
	type read struct {
		path string
		of   fs.FileInfo
		file pattern.CycleFile
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
				m.Files = append(m.Files, known.file)
				m.Mapped = append(m.Mapped, Mapped{at.Path, event.FileID(at.ID), mapping.Start - mapping.Offset})
				continue
			}
			part, err := openPart(at.Path, event.FileID(at.ID))
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
			models[at.ID] = read{at.Path, part.Files[0].Info(), files[0]}
			m.Files = append(m.Files, files[0])
			m.Mapped = append(m.Mapped, Mapped{at.Path, event.FileID(at.ID), mapping.Start - mapping.Offset})
		}
		return m, nil
	}
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
