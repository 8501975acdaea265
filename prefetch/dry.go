package prefetch

// This file plans without helping.

import (
	"errors"

	"tensorcast/internal/proc"
)

// ErrPlanned is the error of Handle and Tick that ends a dry run (Options.Dry): Summary and Parts tell what would be held.
var ErrPlanned = errors.New("a dry run ends with the plan")

// dry ends a dry run: what is planned to be held counts as held.
func (c *Controller) dry() error {
	h := c.help
	f := &c.known[h.schedule.Blocks[0].File]
	disk, err := c.opts.Dry(proc.Place{Path: f.path, ID: proc.FileID(f.id)}, h.schedule.Blocks)
	if err != nil {
		c.opts.Log.Warn("cannot measure the disk", "error", err)
	}
	c.meter.best = disk
	if !c.sum.Stored { // it was learned from a token that waited for the disk
		for i := range h.nanos {
			h.nanos[i] = -1
		}
	}
	h.held, h.heldBytes = h.want, h.wantBytes
	c.shareRoom()
	return ErrPlanned
}
