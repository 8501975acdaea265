package prefetch

// This file holds blocks in memory, as many as the room allows, and gives them back when it shrinks.

import (
	"slices"
	"time"
)

// helping is all that belongs to one cycle while its target is being helped. To give up is to release what is held and to drop the whole of it.
type helping struct {
	schedule *Schedule
	follower
	window
	held      []bool // by block
	heldBytes int64
	bases     map[int]uint64 // by file: where the target maps its first byte; 0 is not known yet
	toHold    []int          // blocks, in the order of holding
	advised   int            // how many of toHold are being read
	holding   bool           // toHold is being worked off; else the target is followed
	toDrop    []int          // blocks that the target had read before it was followed, to be paged out
	dropped   bool           // toDrop was made
	spare     []int64        // what could be held besides, at the last looks
}

const (
	// holdsAhead is how many blocks are being read while one is waited for: the disk's bandwidth needs several.
	holdsAhead = 16
	// slice bounds how long one tick works on what can wait.
	slice = 4 * time.Millisecond
	// slack is how far what is held may be above its budget before it is given back, half of the least that is left free.
	slack = 6 << 20
	// spareChecks is how many looks in a row must find room before more is held.
	spareChecks = 10
)

func newHelping(s *Schedule) *helping {
	return &helping{schedule: s, follower: newFollower(s), held: make([]bool, len(s.Blocks)), bases: map[int]uint64{}, holding: true}
}

// input is what the strategy decides from, in a room.
func (c *Controller) input(room int64) Input {
	return Input{Schedule: c.help.schedule, Compute: c.help.compute(), Held: c.help.held, Room: room, Window: c.help.window.bytes, Disk: c.meter.best}
}

// holdSome reads the blocks to hold, several at a time, and locks or keeps them in order.
func (c *Controller) holdSome() error {
	h := c.help
	begun := c.now()
	for len(h.toHold) > 0 && c.now().Sub(begun) < slice {
		for h.advised < min(len(h.toHold), holdsAhead) {
			b := h.schedule.Blocks[h.toHold[h.advised]]
			there, err := c.pages.Resident(b)
			if err != nil {
				return err
			}
			if !c.pages.ReadAhead(b) {
				break
			}
			c.meter.add(max(b.Length-there, 0))
			h.advised++
		}
		if err := c.pages.Poll(); err != nil {
			return err
		}
		if err := c.hold(h.toHold[0]); err != nil {
			return err
		}
		h.toHold = h.toHold[1:]
		h.advised = max(h.advised-1, 0)
	}
	if len(h.toHold) > 0 {
		return nil
	}
	c.opts.Log.Info("held in memory", "bytes", h.heldBytes)
	h.holding = false
	if c.opts.Strategy.Streams() && !h.dropped {
		h.dropped = true
		for b, held := range h.held {
			if !held {
				h.toDrop = append(h.toDrop, b)
			}
		}
	}
	if c.followed.IsZero() {
		c.followed = c.now()
	}
	c.restream()
	return nil
}

func (c *Controller) hold(block int) error {
	r := c.help.schedule.Blocks[block]
	lever := c.pages.Lock
	if c.opts.Strategy.Lever() == LeverKeep {
		lever = c.pages.Keep
	}
	if err := lever(r); err != nil {
		return err
	}
	c.help.held[block] = true
	c.help.heldBytes += r.Length
	return nil
}

// giveBack releases a block and frees its pages.
func (c *Controller) giveBack(block int) error {
	r := c.help.schedule.Blocks[block]
	if err := c.pages.Release(r); err != nil {
		return err
	}
	c.help.held[block] = false
	c.help.heldBytes -= r.Length
	return c.pages.PageOut(r)
}

func (c *Controller) restream() {
	if c.opts.Strategy.Streams() {
		c.help.window.restream(c.help.schedule, c.help.held, &c.help.follower)
	}
}

// dropSome pages out what the target had read by itself before it was followed.
func (c *Controller) dropSome() error {
	h := c.help
	begun := c.now()
	for len(h.toDrop) > 0 && c.now().Sub(begun) < slice {
		if b := h.toDrop[0]; !h.held[b] && !h.isStaged(b) {
			if err := c.pages.PageOut(h.schedule.Blocks[b]); err != nil {
				return err
			}
		}
		h.toDrop = h.toDrop[1:]
	}
	return nil
}

// adjust follows limits that change and a target that grows: what is held beyond the budget is given back at once, room that
// has come free is used.
func (c *Controller) adjust() error {
	if err := c.checkRoom(); err != nil {
		return err
	}
	h := c.help
	if h.holding {
		return c.stopHolding()
	}
	in := c.input(c.room.Bytes)
	budget := c.opts.Strategy.Plan(in).Budget
	if h.heldBytes > budget+slack {
		h.spare = nil
		in.Room -= minBlock
		for _, b := range c.opts.Strategy.Plan(in).Release {
			if err := c.giveBack(b); err != nil {
				return err
			}
		}
		c.sum.Shrunk++
		c.opts.Log.Info("gave memory back", "held", h.heldBytes, "room", c.room.Bytes, "bounded by", c.room.Level)
		c.restream()
		return nil
	}
	// The counters are blurred: what was free for a while is free.
	h.spare = append(h.spare, budget-h.heldBytes)
	if len(h.spare) < spareChecks {
		return nil
	}
	least := slices.Min(h.spare)
	h.spare = nil
	if least < 4*minBlock {
		return nil
	}
	in.Room -= budget - h.heldBytes - (least - minBlock)
	h.toHold = c.opts.Strategy.Plan(in).Hold
	h.holding, h.advised = true, 0
	c.opts.Log.Info("holding more", "held", h.heldBytes, "bytes", least)
	return nil
}

// stopHolding ends the holding of more where the budget has shrunk meanwhile.
func (c *Controller) stopHolding() error {
	h := c.help
	budget := c.opts.Strategy.Plan(c.input(c.room.Bytes)).Budget
	if h.heldBytes <= budget {
		return nil
	}
	c.sum.Shrunk++
	h.toHold, h.advised = nil, 0
	for b := len(h.held) - 1; b >= 0 && h.heldBytes > budget; b-- {
		if !h.held[b] {
			continue
		}
		if err := c.giveBack(b); err != nil {
			return err
		}
	}
	return nil
}
