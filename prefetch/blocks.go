package prefetch

// This file holds blocks in memory, as many as the room allows, gives them back when it shrinks, and notices
// when the kernel takes them.

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"tensorcast/prefetch/pages"
)

const (
	// slack is how many bytes what is wanted may be above its budget before it is given back: half of the
	// least that is left free.
	slack = 6 << 20
	// spareChecks is how many looks in a row must find room before more is held. The kernel's counters are
	// blurred: what was free for a while is free.
	spareChecks = 10
	// leastSpare is how many bytes must be free before more is held.
	leastSpare = 4 * pages.MinBlock
	// seenFor is how long a block that was seen in memory is taken to be there.
	seenFor = 20 * time.Millisecond
)

// blocks says which blocks of the schedule are wanted, and which are held. Its slices are by block.
type blocks struct {
	want      []bool // to be held: when the target has passed it, or while the target rests
	wantBytes int64
	bad       []bool // it cannot be read
	held      []bool // in memory, as far as is known
	heldBytes int64
	seen      []time.Time // when all of it was last seen in memory
	spare     []int64     // bytes that could be held besides, at the last looks
}

func newBlocks(n int) blocks {
	return blocks{want: make([]bool, n), bad: make([]bool, n), held: make([]bool, n), seen: make([]time.Time, n)}
}

// wantMore adds blocks to those that are to be held. They are held when the target has passed them: then they
// are in memory anyway.
func (f *followed) wantMore(blocks []int) {
	for _, b := range blocks {
		if !f.want[b] && !f.bad[b] {
			f.want[b] = true
			f.wantBytes += f.schedule.Blocks[b].Length
		}
	}
}

func (f *followed) unwant(block int) {
	if f.want[block] {
		f.want[block] = false
		f.wantBytes -= f.schedule.Blocks[block].Length
	}
}

// hold notes that a block is held from now on.
func (f *followed) hold(block int) {
	f.held[block], f.seen[block] = true, f.now()
	f.heldBytes += f.schedule.Blocks[block].Length
	if f.work.firstHeld.IsZero() {
		f.work.firstHeld = f.now()
	}
}

// lose notes that a block is not held any longer.
func (f *followed) lose(block int) {
	if f.held[block] {
		f.held[block] = false
		f.heldBytes -= f.schedule.Blocks[block].Length
	}
}

// holdPassed holds a block that the target has passed, so that it is in memory. If some of it is not any
// more, that is left for the next visit, unless it is to be locked.
func (f *followed) holdPassed(block int) error {
	r := f.schedule.Blocks[block]
	if f.opts.Lock {
		if ok, err := f.readInto(block, f.levers.Lock); !ok || err != nil {
			return err
		}
	} else if resident, err := f.levers.ResidentBytes(r); err != nil || resident < r.Length {
		return err
	}
	f.hold(block)
	return nil
}

// readInto applies a lever that reads a block. A block that cannot be read is not wanted any more, which is
// told once: the target may never read that page of it.
func (f *followed) readInto(block int, lever func(pages.Range) error) (ok bool, err error) {
	err = lever(f.schedule.Blocks[block])
	if !errors.Is(err, pages.ErrUnreadable) {
		return err == nil, err
	}
	f.bad[block] = true
	f.unwant(block)
	if !f.unreadable {
		f.unreadable = true
		f.log.Warn("a part of the model is left to the target", "error", err)
	}
	return false, nil
}

// takeHold makes of what the target alone left in memory what the plan wants. Wanted blocks that are there
// are held from now on. What is neither wanted nor about to be used is paged out: it would take the room of
// what is.
func (f *followed) takeHold() error {
	f.shareRoom()
	if f.mixture != nil {
		if err := f.mixture.FindResident(); err != nil {
			return err
		}
	}
	if f.tables != nil {
		f.tables.LookAgain()
	}
	if f.opts.Lock { // that would read what is missing, and wait for it
		return nil
	}
	soon := f.beginOfToken(f.window.bytes)
	for b, r := range f.schedule.Blocks {
		resident, err := f.levers.ResidentBytes(r)
		if err != nil {
			return err
		}
		switch {
		case f.want[b] && resident >= r.Length:
			f.hold(b)
		case !f.want[b] && resident > 0 && !soon[b]:
			if err := f.levers.PageOut(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// beginOfToken are, by block, those of at most so many bytes that a token reads first and that are not
// wanted.
func (f *followed) beginOfToken(most int64) []bool {
	soon := make([]bool, len(f.schedule.Blocks))
	for _, v := range f.schedule.Visits {
		if b := v.Block; !f.want[b] && !soon[b] {
			if most -= f.schedule.Blocks[b].Length; most < 0 {
				break
			}
			soon[b] = true
		}
	}
	return soon
}

// giveBack releases a block and frees its pages.
func (f *followed) giveBack(block int) error {
	r := f.schedule.Blocks[block]
	f.unwant(block)
	if !f.held[block] {
		return nil
	}
	f.lose(block)
	if err := f.levers.Release(r); err != nil {
		return err
	}
	return f.levers.PageOut(r)
}

// releaseAll undoes all locks. The pages stay in memory.
func (f *followed) releaseAll() error {
	for b, held := range f.held {
		if !held {
			continue
		}
		if err := f.levers.Release(f.schedule.Blocks[b]); err != nil {
			return err
		}
	}
	return nil
}

// isThere says whether a block is held, and still in memory as far as that is known. If it is needed, it is
// looked at, unless that was done a moment ago.
func (f *followed) isThere(block int, needed bool) (bool, error) {
	if !f.held[block] || f.opts.Lock || !needed || f.now().Sub(f.seen[block]) < seenFor {
		return f.held[block], nil
	}
	r := f.schedule.Blocks[block]
	resident, err := f.levers.ResidentBytes(r)
	if err != nil {
		return false, err
	}
	if resident >= r.Length {
		f.seen[block] = f.now()
		return true, nil
	}
	f.lose(block)
	f.memory.noteLoss(r.Length - resident)
	return false, nil
}

// adjust follows limits that change and a target that grows. What is wanted beyond the budget is given back
// at once, room that has come free is used.
func (f *followed) adjust() error {
	if err := f.memory.check(); err != nil {
		return err
	}
	if f.mixture != nil {
		f.mixture.MakeRoom()
	}
	in := f.planInput(f.memory.room.Bytes)
	budget := f.opts.Strategy.Plan(in).Budget
	if f.wantBytes > budget+slack {
		f.spare = nil
		in.Room -= pages.MinBlock
		return f.shrink(f.opts.Strategy.Plan(in).Release, budget)
	}
	f.spare = append(f.spare, budget-f.wantBytes)
	if len(f.spare) < spareChecks {
		return nil
	}
	least := slices.Min(f.spare)
	f.spare = nil
	if fits, err := f.fits(); err != nil {
		return err
	} else if fits != nil {
		return f.standBack(fits)
	}
	if least < leastSpare {
		return nil
	}
	in.Room -= budget - f.wantBytes - (least - pages.MinBlock)
	f.wantMore(f.opts.Strategy.Plan(in).Hold)
	f.journal.note(f.now(), "more", "there is more room: "+readable(f.wantBytes)+" are to be kept")
	f.log.Info("holding more", "held", f.heldBytes, "wanted", f.wantBytes)
	return nil
}

// shrink gives blocks back. budget is how many bytes may be held.
func (f *followed) shrink(release []int, budget int64) error {
	held := f.heldBytes
	for _, b := range release {
		if err := f.giveBack(b); err != nil {
			return err
		}
	}
	if f.heldBytes >= held {
		return nil
	}
	f.window.rewind(&f.Cursor)
	f.work.shrunk++
	if held > budget+f.memory.margin { // not only for the margin
		f.memory.noteGivenBack(held-f.heldBytes, held)
	}
	f.journal.note(f.now(), "gave back", fmt.Sprintf("gave memory back: keeping %s in a room of %s (%s)",
		readable(f.heldBytes), readable(f.memory.room.Bytes), f.memory.room.Bound()))
	f.log.Info("gave memory back", "held", f.heldBytes, "room", f.memory.room.Bytes, "bounded by", f.memory.room.Level)
	return nil
}

// shareRoom tells the tables what room there is, and the experts what room the other weights leave, less what streams
// of these.
func (f *followed) shareRoom() {
	var rows int64
	if f.tables != nil {
		f.tables.SetRoom(f.memory.room.Bytes)
		rows = f.tables.Kept()
	}
	if f.mixture == nil {
		return
	}
	window := f.window.bytes
	if f.wantBytes >= f.schedule.Bytes {
		window = 0
	}
	f.mixture.SetRoom(f.memory.room.Bytes - f.wantBytes - window - rows)
}
