package prefetch

// This file reads what is wanted while the target computes nothing, so that the next request finds it in
// memory.

import (
	"time"

	"tensorcast/prefetch/pages"
)

const (
	// holdsAhead is how many blocks are being read while one is waited for: the disk's bandwidth needs
	// several.
	holdsAhead = 16
	// tickSlice bounds how long one tick works on what can wait.
	tickSlice = 4 * time.Millisecond
	// restTime is how long the target computes nothing before it is taken to wait for somebody.
	restTime = 20 * time.Millisecond
	// restLook is how often what is held is looked at while the target rests.
	restLook = 500 * time.Millisecond
)

// resting is what is done while the target rests.
type resting struct {
	toHold  []int // wanted blocks that are to be read
	advised int   // how many of these are being read
	looked  time.Time
}

// holdWhileResting reads what is wanted while the target computes nothing, several blocks at a time, and
// keeps or locks them in the order of use. It also looks whether what is held is still there.
func (f *followed) holdWhileResting() error {
	now, r := f.now(), &f.resting
	if f.Decode != 0 || now.Sub(f.rested) < restTime {
		r.toHold, r.advised = nil, 0
		return nil
	}
	if len(r.toHold) == 0 {
		if now.Sub(r.looked) < restLook {
			return nil
		}
		r.looked = now
		if err := f.findMissing(); err != nil {
			return err
		}
	}
	for len(r.toHold) > 0 && f.now().Sub(now) < tickSlice {
		if err := f.readMissing(); err != nil {
			return err
		}
		if err := f.levers.Poll(); err != nil {
			return err
		}
		b := r.toHold[0]
		if f.want[b] && !f.held[b] { // the room may have shrunk meanwhile
			if ok, err := f.readInto(b, f.holdLever()); err != nil {
				return err
			} else if ok {
				f.hold(b)
			}
		}
		r.toHold = r.toHold[1:]
		r.advised = max(r.advised-1, 0)
	}
	return nil
}

// holdLever is the lever that holds a block.
func (f *followed) holdLever() func(pages.Range) error {
	if f.opts.Lock {
		return f.levers.Lock
	}
	return f.levers.Keep
}

// findMissing lists the wanted blocks that are not in memory, and reads again what is staged and was taken.
func (f *followed) findMissing() error {
	lost := false
	for b, want := range f.want {
		held := f.held[b]
		there, err := f.isThere(b, true)
		if err != nil {
			return err
		}
		if want && !there {
			f.resting.toHold = append(f.resting.toHold, b)
		}
		lost = lost || held != f.held[b]
	}
	if lost {
		f.window.rewind(&f.Cursor)
	}
	for _, st := range f.staged {
		if _, _, err := f.readAhead(f.schedule.Blocks[st.block]); err != nil {
			return err
		}
	}
	return nil
}

// readMissing begins to read the next blocks that are to be held.
func (f *followed) readMissing() error {
	for r := &f.resting; r.advised < min(len(r.toHold), holdsAhead); r.advised++ {
		read, ok, err := f.readAhead(f.schedule.Blocks[r.toHold[r.advised]])
		if err != nil || !ok {
			return err
		}
		f.meter.add(read)
	}
	return nil
}
