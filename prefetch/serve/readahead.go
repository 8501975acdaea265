package serve

// This file has what the target's own faults read around themselves made small while what it needs next is read for
// it, see prefetch.Controller.Covers.

import (
	"io"
	"sync"

	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/readahead"
)

// lessens says whether that is to be done: a dry run changes nothing.
func (o *Options) lessens() bool { return !o.Dry && o.Readahead != "" }

// newReadahead prepares for that; nil if it is not to be done.
func (v *server) newReadahead(process *proc.Process) *readahead.Target {
	if !v.o.lessens() {
		return nil
	}
	return readahead.New(process, v.o.Readahead, v.o.Guardian, v.o.Log)
}

// ease makes the start of readahead's watch quick.
type ease struct {
	begun sync.WaitGroup
	watch io.Closer // nil: it cannot be done; valid after begun
}

// easeWatch begins to, while a command is prepared: it would wait otherwise before it runs.
func (v *server) easeWatch() {
	if !v.o.lessens() {
		return
	}
	v.eased.begun.Go(func() {
		var err error
		if v.eased.watch, err = proc.EaseWatch(); err != nil {
			v.o.Log.Debug("what the target maps is noticed a little late", "error", err)
		}
	})
}

// endEase ends that.
func (v *server) endEase() error {
	v.eased.begun.Wait()
	if v.eased.watch == nil {
		return nil
	}
	err := v.eased.watch.Close()
	v.eased.watch = nil
	return err
}

// watched waits until the file with which a command maps its model cannot be missed.
func (v *server) watched() {
	if v.readahead != nil {
		v.readahead.AwaitWatch()
	}
	if err := v.endEase(); err != nil {
		v.o.Log.Debug("the kernel counts events for nothing", "error", err)
	}
}

// handle takes the target's next event. Between a token with help and one without its faults change at once.
func (v *server) handle(ev event.Event) error {
	if err := v.controller.Handle(ev); err != nil {
		return err
	}
	return v.follow()
}

// follow has the target's faults read little while that is better, and as much as before else.
func (v *server) follow() error {
	covers := v.controller.Covers()
	if v.readahead == nil || covers == v.covered {
		return nil
	}
	v.covered = covers
	if !covers {
		v.readahead.Restore()
	} else if bases, err := v.bases(); err != nil {
		v.o.Log.Warn("cannot tell which model the target maps: what its faults read around themselves is left as it is", "error", err)
	} else {
		v.readahead.Shrink(bases)
	}
	return v.pages.NoteSmallReadahead(v.readahead.IsSmall())
}

// bases are where the target maps the first bytes of its model's files.
func (v *server) bases() (bases []uint64, err error) {
	m, err := models.MappedBy(v.o.PID)()
	if err != nil {
		return nil, err
	}
	for _, at := range m.Mapped {
		bases = append(bases, at.Base)
	}
	return bases, nil
}

// rest undoes it for a long time: the target goes on without help.
func (v *server) rest() error {
	v.covered = false
	if v.readahead != nil {
		v.readahead.Suspend()
		if err := v.pages.NoteSmallReadahead(v.readahead.IsSmall()); err != nil {
			return err
		}
	}
	return v.pages.Rest()
}
