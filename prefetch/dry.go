package prefetch

// This file plans without helping.

import (
	"errors"

	"tensorcast/internal/proc"
)

// ErrPlanned is the error of Handle and Tick that ends a dry run (Options.Dry): Summary and Parts tell what
// would be held.
var ErrPlanned = errors.New("a dry run ends with the plan")

// endDry ends a dry run: what is planned to be held counts as held.
func (f *followed) endDry() error {
	at := &f.files[f.schedule.Blocks[0].File]
	disk, err := f.opts.Dry(proc.Place{Path: at.path, ID: at.id}, f.schedule.Blocks)
	if err != nil {
		f.log.Warn("cannot measure the disk", "error", err)
	}
	f.meter.best = disk
	if !f.work.stored { // the cycle was learned from a token that waited for the disk
		for i := range f.Seen.Least {
			f.Seen.Least[i] = -1
		}
	}
	f.held, f.heldBytes = f.want, f.wantBytes
	f.shareRoom()
	return ErrPlanned
}
