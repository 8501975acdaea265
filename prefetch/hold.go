package prefetch

// This file holds blocks in memory, as many as the room allows, gives them back when it shrinks, and notices when the kernel takes them.

import (
	"errors"
	"slices"
	"time"

	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// helping is all that belongs to one cycle while its target is being helped. To give up is to release what is held and to drop the whole of it.
type helping struct {
	cycle    *pattern.Cycle
	schedule *Schedule
	block    int64 // in which the schedule was cut
	unit     int64 // in which the pages were best read then
	follower
	window
	glance    glance
	want      []bool // by block: to be held, when the target has passed it, or while it is idle
	wantBytes int64
	bad       []bool // by block: it cannot be read
	held      []bool // by block: in memory, as far as is known
	heldBytes int64
	seen      []time.Time    // by block: when all of it was last seen in memory
	bases     map[int]uint64 // by file: where the target maps its first byte; 0 is not known yet
	spare     []int64        // what could be held besides, at the last looks
	rested    time.Time      // when the last decode ended
	toHold    []int          // while the target rests: blocks that are wanted, to be read
	advised   int            // how many of toHold are being read
	looked    time.Time      // while the target rests: when what is held was last looked at
	sweepAt   time.Time      // when to sweep next,
	sweepNext int            // from which block on,
	unswept   int            // and how many blocks in a row had nothing to sweep
	routed    int64          // bytes of experts, of which tokens read some
	experts   *experts       // nil if the model has none, or they are left to the target
}

const (
	// holdsAhead is how many blocks are being read while one is waited for: the disk's bandwidth needs several.
	holdsAhead = 16
	// slice bounds how long one tick works on what can wait.
	slice = 4 * time.Millisecond
	// slack is how far what is wanted may be above its budget before it is given back, half of the least that is left free.
	slack = 6 << 20
	// spareChecks is how many looks in a row must find room before more is held.
	spareChecks = 10
	// rest is how long the target computes nothing before it is taken to wait for somebody.
	rest = 20 * time.Millisecond
	// seenFor is how long a block that was seen in memory is taken to be there.
	seenFor = 20 * time.Millisecond
	// restLook is how often what is held is looked at while the target rests.
	restLook = 500 * time.Millisecond
	// little is taken by reclaim now and then, in takenTime. More, or more than a takenShare of what is held, says that too little is left free.
	little     = 8 << 20
	takenShare = 32
	takenTime  = 500 * time.Millisecond
	// marginShare of the room bounds the margin, easeRate is how many bytes it falls in a second.
	marginShare = 8
	easeRate    = 4 << 20
)

// squeeze is what the kernel takes of what is kept though there should be room: reads of the target around its misses, and whoever takes memory and gives it back at once, need
// some for moments. A margin is left free for them. It grows with what is taken, and falls slowly while nothing is.
type squeeze struct {
	taken   int64     // bytes, since since
	since   time.Time //
	missing int64     // bytes that were taken, and are not explained yet
	margin  int64     // bytes left free
	eased   time.Time // when the margin fell last
}

func newHelping(s *Schedule) *helping {
	n := len(s.Blocks)
	return &helping{
		schedule: s, follower: newFollower(s), window: window{visits: s.Visits, early: make([]position, n)}, glance: newGlance(s), want: make([]bool, n), bad: make([]bool, n), held: make([]bool, n), seen: make([]time.Time, n), bases: map[int]uint64{},
	}
}

// input is what the strategy decides from, in a room.
func (c *Controller) input(room int64) Input {
	if c.opts.Lock {
		room = min(room, c.room.Lockable+c.help.window.bytes)
	}
	if x := c.help.experts; x != nil { // what is being used has to be in memory
		room -= x.least
	}
	return Input{Schedule: c.help.schedule, Held: c.help.want, Room: room, Window: c.help.window.bytes}
}

// wantMore adds blocks to those that are to be held. They are when the target has passed them: then they are in memory anyway.
func (h *helping) wantMore(blocks []int) {
	for _, b := range blocks {
		if !h.want[b] && !h.bad[b] {
			h.want[b] = true
			h.wantBytes += h.schedule.Blocks[b].Length
		}
	}
}

// adopt holds a block that the target has passed, so that it is in memory. If some of it is not any more, that is left for the next visit, unless it is to be locked.
func (c *Controller) adopt(block int) error {
	h := c.help
	r := h.schedule.Blocks[block]
	if c.opts.Lock {
		if ok, err := c.read(block, c.pages.Lock); !ok || err != nil {
			return err
		}
	} else if there, err := c.pages.Resident(r); err != nil || there < r.Length {
		return err
	}
	c.hold(block)
	return nil
}

// read applies a lever that reads a block. A block that cannot be read is not wanted any more, which is told once: the target may never read that page of it.
func (c *Controller) read(block int, lever func(pages.Range) error) (ok bool, err error) {
	err = lever(c.help.schedule.Blocks[block])
	if !errors.Is(err, pages.ErrUnreadable) {
		return err == nil, err
	}
	c.help.bad[block] = true
	c.help.unwant(block)
	if !c.unreadable {
		c.unreadable = true
		c.opts.Log.Warn("a part of the model is left to the target", "error", err)
	}
	return false, nil
}

func (c *Controller) hold(block int) {
	h := c.help
	h.held[block], h.seen[block] = true, c.now()
	h.heldBytes += h.schedule.Blocks[block].Length
	if c.followed.IsZero() {
		c.followed = c.now()
	}
}

// takeHold makes of what the target alone left in memory what the plan wants: blocks that are wanted, and there, are held from now on. What is neither wanted nor
// about to be used is paged out: it would take the room of what is.
func (c *Controller) takeHold() error {
	h := c.help
	c.shareRoom()
	if err := c.takeExperts(); err != nil {
		return err
	}
	if c.opts.Lock { // that would read what is missing, and wait for it
		return nil
	}
	soon, bytes := make([]bool, len(h.held)), int64(0)
	for _, v := range h.visits { // a token begins next
		if b := v.Block; !h.want[b] && !soon[b] {
			if bytes += h.schedule.Blocks[b].Length; bytes > h.window.bytes {
				break
			}
			soon[b] = true
		}
	}
	for b, r := range h.schedule.Blocks {
		there, err := c.pages.Resident(r)
		if err != nil {
			return err
		}
		switch {
		case h.want[b] && there >= r.Length:
			c.hold(b)
		case !h.want[b] && there > 0 && !soon[b]:
			if err := c.pages.PageOut(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// lose notes that a block is not held any longer.
func (h *helping) lose(block int) {
	if h.held[block] {
		h.held[block] = false
		h.heldBytes -= h.schedule.Blocks[block].Length
	}
}

func (h *helping) unwant(block int) {
	if h.want[block] {
		h.want[block] = false
		h.wantBytes -= h.schedule.Blocks[block].Length
	}
}

// giveBack releases a block and frees its pages.
func (c *Controller) giveBack(block int) error {
	h := c.help
	r := h.schedule.Blocks[block]
	h.unwant(block)
	if !h.held[block] {
		return nil
	}
	h.lose(block)
	if err := c.pages.Release(r); err != nil {
		return err
	}
	return c.pages.PageOut(r)
}

// isThere says whether a block is held, and still in memory as far as that is known. If needed, it is looked at, unless that was done a moment ago.
func (c *Controller) isThere(block int, needed bool) (bool, error) {
	h := c.help
	if !h.held[block] || c.opts.Lock || !needed || c.now().Sub(h.seen[block]) < seenFor {
		return h.held[block], nil
	}
	r := h.schedule.Blocks[block]
	there, err := c.pages.Resident(r)
	if err != nil {
		return false, err
	}
	if there >= r.Length {
		h.seen[block] = c.now()
		return true, nil
	}
	h.lose(block)
	c.taken(r.Length - there)
	return false, nil
}

// taken notes that the kernel took bytes of what is kept. Where somebody has the memory now, the room says so: it is looked at at once.
func (c *Controller) taken(bytes int64) {
	q, now := &c.squeeze, c.now()
	c.sum.Taken += bytes
	if now.Sub(q.since) > takenTime {
		q.since, q.taken = now, 0
	}
	if q.taken += bytes; q.taken <= max(little, c.help.heldBytes/takenShare) {
		return
	}
	c.checked = time.Time{}
	q.missing += q.taken
	q.taken = 0
}

// explain grows the margin by what was taken, unless room says that somebody else has it now, or had a moment ago. The result is the room without the margin.
func (c *Controller) explain(room int64) int64 {
	q := &c.squeeze
	q.ease(c.checked)
	if q.missing > 0 && c.help != nil && !c.checked.Before(c.shrunk.Add(shrunkTime)) && room-q.margin-c.windowFor(room) >= c.help.wantBytes-slack {
		q.margin = min(q.margin+q.missing, max(room, 0)/marginShare)
		c.opts.Log.Info("the kernel took what is kept", "bytes", q.missing, "held", c.help.heldBytes, "left free", q.margin)
	}
	q.missing = 0
	return room - q.margin
}

// ease lets the margin fall.
func (q *squeeze) ease(now time.Time) {
	if passed := now.Sub(q.eased).Seconds(); passed > 0 && !q.eased.IsZero() {
		q.margin = max(q.margin-int64(min(passed, 3600)*easeRate), 0)
	}
	q.eased = now
}

// holdWhileResting reads what is wanted while the target computes nothing, several blocks at a time, and keeps or locks them in order of use. It also looks whether what is
// held is still there.
func (c *Controller) holdWhileResting() error {
	h := c.help
	now := c.now()
	if h.decode != 0 || now.Sub(h.rested) < rest {
		h.toHold, h.advised = nil, 0
		return nil
	}
	if len(h.toHold) == 0 {
		if now.Sub(h.looked) < restLook {
			return nil
		}
		h.looked = now
		lost := false
		for b, want := range h.want {
			held := h.held[b]
			there, err := c.isThere(b, true)
			if err != nil {
				return err
			}
			if want && !there {
				h.toHold = append(h.toHold, b)
			}
			lost = lost || held != h.held[b]
		}
		if lost {
			h.rewind(&h.follower)
		}
		for _, st := range h.staged {
			if _, _, err := c.readAhead(h.schedule.Blocks[st.block]); err != nil {
				return err
			}
		}
	}
	for len(h.toHold) > 0 && c.now().Sub(now) < slice {
		for h.advised < min(len(h.toHold), holdsAhead) {
			b := h.schedule.Blocks[h.toHold[h.advised]]
			read, ok, err := c.readAhead(b)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			c.meter.add(read)
			h.advised++
		}
		if err := c.pages.Poll(); err != nil {
			return err
		}
		b := h.toHold[0]
		if h.want[b] && !h.held[b] { // the room may have shrunk meanwhile
			lever := c.pages.Keep
			if c.opts.Lock {
				lever = c.pages.Lock
			}
			if ok, err := c.read(b, lever); err != nil {
				return err
			} else if ok {
				c.hold(b)
			}
		}
		h.toHold = h.toHold[1:]
		h.advised = max(h.advised-1, 0)
	}
	return nil
}

// adjust follows limits that change and a target that grows: what is wanted beyond the budget is given back at once, room that
// has come free is used.
func (c *Controller) adjust() error {
	if err := c.checkRoom(); err != nil {
		return err
	}
	h := c.help
	if h.experts != nil && !c.watch.aside {
		c.makeRoom()
	}
	in := c.input(c.room.Bytes)
	budget := c.opts.Strategy.Plan(in).Budget
	if h.wantBytes > budget+slack {
		h.spare = nil
		in.Room -= pages.MinBlock
		held := h.heldBytes
		for _, b := range c.opts.Strategy.Plan(in).Release {
			if err := c.giveBack(b); err != nil {
				return err
			}
		}
		if h.heldBytes < held {
			h.rewind(&h.follower)
			c.sum.Shrunk++
			if held > budget+c.squeeze.margin { // not only for the margin
				c.shrunk = c.now()
			}
			c.opts.Log.Info("gave memory back", "held", h.heldBytes, "room", c.room.Bytes, "bounded by", c.room.Level)
		}
		return nil
	}
	// The counters are blurred: what was free for a while is free.
	h.spare = append(h.spare, budget-h.wantBytes)
	if len(h.spare) < spareChecks {
		return nil
	}
	least := slices.Min(h.spare)
	h.spare = nil
	if fits, err := c.fits(); err != nil {
		return err
	} else if fits != nil {
		return c.standBack(fits)
	}
	if least < 4*pages.MinBlock {
		return nil
	}
	in.Room -= budget - h.wantBytes - (least - pages.MinBlock)
	h.wantMore(c.opts.Strategy.Plan(in).Hold)
	c.opts.Log.Info("holding more", "held", h.heldBytes, "wanted", h.wantBytes)
	return nil
}
