package prefetch

// This file pages out what is in memory and should not be: what the target's faults read around themselves,
// and what the target has read by itself where that is left to it. The kernel would take the memory for it
// from what is held.

import (
	"slices"
	"time"
)

const (
	// sweepInterval is how often what is in memory is compared with what is to be. It takes no more than a
	// part of countShare of the time, and of sweepShare when it finds something, by sweepSlice at once.
	sweepInterval = 4 * time.Millisecond
	sweepShare    = 20
	sweepSlice    = 250 * time.Microsecond
	// sweepRest is the pause when what is too much cannot be paged out, or is in no block.
	sweepRest = 100 * time.Millisecond
	// sweepSlack is how many blocks may be in memory besides: what is read by single pages is not there all
	// at once.
	sweepSlack = 4
	// trailShare of the window is for the trail: a fault reads what lies before it, too, unless that is in
	// memory.
	trailShare = 2
)

// sweep is how far sweeping has come.
type sweep struct {
	at     time.Time // when to sweep next
	next   int       // the block to look at next
	clean  int       // how many blocks in a row had nothing to sweep
	behind trail
}

// trail is what the target has read by itself and passed, where that is left to it.
type trail struct {
	next   int64 // number of the visit to look at next
	blocks []int // that wait to be paged out, in the order of use
	bytes  int64 // of them
}

// sweepStray pages out what is neither held nor needed soon. A fault of the target reads up to twice the
// device's readahead around itself. That would take the memory of what was read ahead, and so cause the next
// fault.
func (f *followed) sweepStray() error {
	begun := f.now()
	if !f.opts.Strategy.Traits().Streams || begun.Before(f.sweep.at) {
		return nil
	}
	pause, share := sweepInterval, time.Duration(countShare)
	defer func() { f.sweep.at = f.now().Add(max(pause, share*f.now().Sub(begun))) }()
	if f.mixture != nil { // experts have much in memory that is no block
		if f.wantBytes >= f.schedule.Bytes {
			return nil
		}
	} else if err := f.memory.census.count(f.session); err != nil || !f.hasTooMuch() {
		return err
	}
	soon := f.neededSoon()
	for n := range f.schedule.Blocks {
		if n > 0 && f.now().Sub(begun) >= sweepSlice {
			return nil
		}
		b := f.sweep.next
		f.sweep.next = (b + 1) % len(f.schedule.Blocks)
		f.sweep.clean++
		if f.held[b] || f.want[b] || soon[b] {
			continue
		}
		r := f.schedule.Blocks[b]
		resident, err := f.levers.ResidentBytes(r)
		if err != nil {
			return err
		}
		if resident == 0 {
			continue
		}
		share, f.sweep.clean = sweepShare, 0
		f.work.swept += resident
		if err := f.pageOut(r); err != nil {
			return err
		}
		f.memory.census.noteFreed(r, resident)
	}
	if f.sweep.clean >= len(f.schedule.Blocks) {
		pause, f.sweep.clean = sweepRest, 0
	}
	return nil
}

// hasTooMuch says whether more is in memory of the files than is held, staged, or has room anyway.
func (f *followed) hasTooMuch() bool {
	expected := f.heldBytes + f.window.ahead + sweepSlack*f.block
	if f.tables != nil {
		expected += f.tables.Resident()
	}
	return f.memory.census.total > max(expected, f.memory.room.Bytes)
}

// neededSoon are the blocks that are staged, and those of the visits from the one under way on, up to a
// window beyond what was looked at.
func (f *followed) neededSoon() map[int]bool {
	soon := map[int]bool{}
	for _, st := range f.staged {
		soon[st.block] = true
	}
	bytes := f.window.bytes
	n := int64(len(f.visits))
	number := f.Token() * n
	for range n {
		v, _, end := f.visitAt(number, &f.Cursor)
		if end > f.Now {
			if number >= f.window.next {
				if bytes -= f.schedule.Blocks[v.Block].Length; bytes < 0 {
					break
				}
			}
			soon[v.Block] = true
		}
		number++
	}
	return soon
}

// evictTrail pages out what the target has read by itself, where that is left to it, a part of the window
// behind it.
func (f *followed) evictTrail() error {
	t := &f.sweep.behind
	if f.opts.Strategy.Traits().Streams {
		return nil
	}
	for t.next = max(t.next, (f.Token()-1)*int64(len(f.visits))); ; t.next++ {
		v, _, end := f.visitAt(t.next, &f.Cursor)
		if end > f.Now {
			break
		}
		if !f.want[v.Block] {
			t.blocks = append(t.blocks, v.Block)
			t.bytes += f.schedule.Blocks[v.Block].Length
		}
	}
	for len(t.blocks) > 0 && t.bytes > f.window.bytes/trailShare {
		b := t.blocks[0]
		t.blocks = t.blocks[1:]
		t.bytes -= f.schedule.Blocks[b].Length
		if f.want[b] || slices.Contains(t.blocks, b) { // wanted by now, or used again since
			continue
		}
		if err := f.pageOut(f.schedule.Blocks[b]); err != nil {
			return err
		}
	}
	return nil
}
