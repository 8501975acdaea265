package prefetch

// This file accounts for what is read beyond what has to be.

// Beyond says, in bytes, why more is read for a token than what of the model has no room: each byte of memory that does not hold a part of the model costs a byte of the disk for each
// token, and so does each byte that is read twice.
type Beyond struct {
	// Memory that holds nothing for long, at the end of the help.
	Window   int64 `json:"window"`    // what is read ahead and not yet paged out
	Reserve  int64 `json:"reserve"`   // left free for the target's growth, and because counters are blurred
	LeftFree int64 `json:"left_free"` // left free besides, as the kernel took what was kept
	Own      int64 `json:"own"`       // of this process, if Options.Own tells it: the target's group pays for what of it was taken since it was joined
	Unused   int64 `json:"unused"`    // room for which no block was chosen, or which was taken and not read again yet
	// Bytes per token.
	Twice int64 `json:"twice"` // of streamed blocks that a token needs again later, by the plan
	Taken int64 `json:"taken"` // that were kept or read ahead, and that the kernel took before their use, so they were read again
	Swept int64 `json:"swept"` // that the target read around its misses, or that was in memory otherwise, and was paged out unused
}

// beyond accounts for a cycle that is being helped.
func (c *Controller) beyond() (b Beyond) {
	h := c.help
	b.Window, b.Reserve, b.LeftFree = h.window.bytes, c.room.Margin(), c.squeeze.margin
	b.Unused = max(min(c.room.Bytes, h.schedule.Bytes)-b.Window-h.heldBytes, 0)
	for block, r := range h.schedule.Blocks {
		if !h.held[block] {
			b.Twice += int64(h.schedule.uses[block]-1) * r.Length
		}
	}
	if n := int64(c.sum.Tokens); n > 0 {
		b.Taken, b.Swept = c.sum.Taken/n, c.swept/n
	}
	return b
}
