package serve

// This file makes the target's own faults read little around themselves while what it needs next is read for it,
// see prefetch.Controller.Covers.

import (
	"io"
	"log/slog"
	"sync"

	"tensorcast/internal/proc"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/readahead"
)

// changesReadahead says whether that is to be done. A dry run changes nothing.
func (o *Options) changesReadahead() bool { return !o.Dry && o.Readahead != "" }

// faults is what is done about the target's faults.
type faults struct {
	target *readahead.Target // nil: nothing is to be done
	small  bool              // they were asked to read little

	// While a command is prepared, watching what it will map is made quick, see proc.KeepWatchReady. The command would
	// wait for that otherwise before it runs.
	hurrying sync.WaitGroup
	hurry    io.Closer // nil: it cannot be made quick, or need not be any more; valid after hurrying
}

// beginHurry begins to make the start of the watch quick.
func (f *faults) beginHurry(log *slog.Logger) {
	f.hurrying.Go(func() {
		var err error
		if f.hurry, err = proc.KeepWatchReady(); err != nil {
			log.Debug("what the target maps is noticed a little late", "error", err)
		}
	})
}

// endHurry undoes beginHurry, if that was called.
func (f *faults) endHurry() error {
	f.hurrying.Wait()
	if f.hurry == nil {
		return nil
	}
	err := f.hurry.Close()
	f.hurry = nil
	return err
}

// awaitWatch waits until the file with which a command maps its model cannot be missed.
func (s *server) awaitWatch() {
	if s.faults.target != nil {
		s.faults.target.AwaitWatch()
	}
	if err := s.faults.endHurry(); err != nil {
		s.opts.Log.Debug("the kernel counts events for nothing", "error", err)
	}
}

// adjustFaults lets the target's faults read little while that is better, and as much as before otherwise.
func (s *server) adjustFaults() error {
	f, small := &s.faults, s.controller.Covers()
	if f.target == nil || small == f.small {
		return nil
	}
	f.small = small
	if !small {
		f.target.Restore()
	} else if bases, err := modelBases(s.opts.PID); err != nil {
		s.opts.Log.Warn("cannot tell which model the target maps: "+
			"what its faults read around themselves is left as it is", "error", err)
	} else {
		f.target.Shrink(bases)
	}
	return s.pages.NoteSmallReadahead(f.target.IsSmall())
}

// modelBases lists the addresses at which a process maps the first bytes of its model's files.
func modelBases(pid int) (bases []uint64, err error) {
	m, err := models.MappedBy(pid)()
	if err != nil {
		return nil, err
	}
	for _, at := range m.Mapped {
		bases = append(bases, at.Base)
	}
	return bases, nil
}

// suspend undoes what was done to the target for a long time, in which it goes on without help.
func (s *server) suspend() error {
	f := &s.faults
	f.small = false
	if f.target != nil {
		f.target.Suspend()
		if err := s.pages.NoteSmallReadahead(f.target.IsSmall()); err != nil {
			return err
		}
	}
	return s.pages.Rest()
}
