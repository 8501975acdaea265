package serve

// This file has what the target's own faults read around themselves made small, where it is a mixture of experts: most of that would be experts that nobody asked for. In a dense model it is
// what is needed next, so tokens without help would be slower for it, and the comparison with them unfair: there it is done only where the user names the way.

import (
	"tensorcast/internal/proc"
	"tensorcast/prefetch"
	"tensorcast/prefetch/readahead"
)

// newReadahead prepares for that; nil for a dry run, which changes nothing.
func (v *server) newReadahead(process *proc.Process) *readahead.Target {
	if v.o.Dry || v.o.Readahead == "" {
		return nil
	}
	return readahead.New(process, v.o.Readahead, v.o.Guardian, v.o.Log)
}

// readLessWhenLoaded does so as soon as the target has loaded its model: until then mappings come and go.
func (v *server) readLessWhenLoaded() {
	if v.less == nil || v.controller.Loading() {
		return
	}
	v.less()
	v.less = nil
}

// readAsBefore undoes that for good: the target goes on without help.
func (v *server) readAsBefore(pages *prefetch.KernelPages) error {
	if v.readahead == nil {
		return nil
	}
	v.readahead.End()
	return pages.Unmarked(false)
}

// readLess makes it small, once it is known what is followed.
func (v *server) readLess(models func() (prefetch.Model, error), pages *prefetch.KernelPages) {
	if v.readahead == nil || v.o.Readahead == readahead.Auto && v.controller.Summary().Experts == nil {
		return
	}
	m, err := models()
	if err != nil {
		v.o.Log.Warn("cannot tell which model the target maps: what its faults read around themselves is left as it is", "error", err)
		return
	}
	var bases []uint64
	for _, at := range m.Mapped {
		bases = append(bases, at.Base)
	}
	if v.readahead.Begin(bases); v.readahead.Little() {
		if err := pages.Unmarked(true); err != nil {
			v.o.Log.Debug("large folios are read two at a time", "error", err)
		}
	}
}
