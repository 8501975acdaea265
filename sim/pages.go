package sim

// This file implements package prefetch's interfaces, through which a helper controls the simulated
// page cache.

import (
	"fmt"
	"time"

	"tensorcast/event"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/room"
)

// Pages returns the machine's implementation of pages.Levers.
func (m *Machine) Pages() *Pages { return &Pages{m: m, index: map[string]int{}} }

// Memory returns the machine's implementation of room.Memory.
func (m *Machine) Memory() *Memory { return &Memory{m: m, seen: m.cfg.Limit} }

// Memory reports the limit of a machine.
type Memory struct {
	m    *Machine
	seen int64
}

// Room implements room.Memory.
func (r *Memory) Room(room.InMemory) (room.Room, error) {
	return room.Room{
		Bytes: r.m.cfg.Limit, Limit: r.m.cfg.Limit, Level: "simulated", Lockable: r.m.cfg.Limit,
		OwnGroup: r.m.Group,
	}, nil
}

// otherGroup is the control group of Machine.CacheBorrowed.
const otherGroup = 2

// PollChange implements room.Memory.
func (r *Memory) PollChange() room.Change {
	changed := r.seen != r.m.cfg.Limit
	r.seen = r.m.cfg.Limit
	return room.Change{RoomChanged: changed}
}

// Pages implements pages.Levers in virtual time.
type Pages struct {
	m     *Machine
	index map[string]int // by path
	files []int          // the machine's numbers of the files that Open returned
	bases map[int]uint64
	Calls Calls
	// InOrders has the argument of each call of InOrder. Ordered has the ranges of the calls of
	// ReadAhead while the last argument was true.
	InOrders []bool
	Ordered  []pages.Range
}

// Calls counts the calls.
type Calls struct{ ReadAhead, Lock, Keep, Release, PageOut, Touched int }

var _ pages.Levers = (*Pages)(nil)

// queueBytes is the backlog of the disk, in bytes, above which ReadAhead refuses.
const queueBytes = 128 << 20

// Open implements pages.Levers. path is as in events. No file is ever replaced here.
func (p *Pages) Open(path string, _ event.FileID) (file int, size int64, err error) {
	for f := range p.m.cache.files {
		if p.m.Path(f) != path {
			continue
		}
		at, known := p.index[path]
		if !known {
			at = len(p.files)
			p.index[path] = at
			p.files = append(p.files, f)
		}
		return at, p.m.cache.pages(f) * p.m.cfg.Page, nil
	}
	return 0, 0, fmt.Errorf("open %s: there is no such file", path)
}

// Map implements pages.Levers.
func (p *Pages) Map(file int, base uint64) {
	if p.bases == nil {
		p.bases = map[int]uint64{}
	}
	p.bases[file] = base
}

// each calls do for the pages of a range.
func (p *Pages) each(r pages.Range, do func(*page)) {
	file := p.m.cache.files[p.files[r.File]]
	begin, end := r.Offset/p.m.cfg.Page, min((r.End()-1)/p.m.cfg.Page+1, int64(len(file)))
	for n := begin; n < end; n++ {
		do(&file[n])
	}
}

func (p *Pages) load(r pages.Range) {
	now := max(p.m.now, p.m.doing)
	p.m.token.HelperBytes += p.m.load(p.files[r.File], r.Offset/p.m.cfg.Page, (r.End()-1)/p.m.cfg.Page+1, now)
	p.spend(p.m.cfg.Costs.ReadAhead, r.Length)
}

// spend advances the helper's time.
func (p *Pages) spend(perMiB time.Duration, bytes int64) {
	p.m.doing = max(p.m.now, p.m.doing) + int64(perMiB)*bytes>>20
}

// BlockBytes implements pages.Levers.
func (p *Pages) BlockBytes() int64 { return p.m.cfg.Block }

// BlocksAtOnce implements pages.Levers.
func (p *Pages) BlocksAtOnce() int { return 3 }

// SlicePieceBytes implements pages.Levers.
func (p *Pages) SlicePieceBytes(int) int64 { return 0 }

// CanReadApart implements pages.Levers. There are no readahead marks here. It returns false all the
// same, so that the helper reads blocks together as on a disk with a large readahead.
func (p *Pages) CanReadApart() bool { return false }

// SetInOrder implements pages.Levers.
func (p *Pages) SetInOrder(inOrder bool) error {
	p.InOrders = append(p.InOrders, inOrder)
	return nil
}

// NoteDiskRate implements pages.Levers.
func (p *Pages) NoteDiskRate(float64) error { return nil }

// ReadAhead implements pages.Levers.
func (p *Pages) ReadAhead(r pages.Range) bool {
	behind := float64(p.m.disk.free-max(p.m.now, p.m.doing)) / 1e9 * p.m.disk.bandwidth
	if behind > queueBytes {
		return false
	}
	p.Calls.ReadAhead++
	if n := len(p.InOrders); n > 0 && p.InOrders[n-1] {
		p.Ordered = append(p.Ordered, r)
	}
	p.load(r)
	return true
}

// IsReading implements pages.Levers. Here a range counts as being in memory as soon as it was asked
// for.
func (p *Pages) IsReading(pages.Range) bool { return false }

// Announce implements pages.Levers. Nothing has to be waited for here.
func (p *Pages) Announce(pages.Range) {}

// ReadNow implements pages.Levers.
func (p *Pages) ReadNow(r pages.Range) error {
	p.load(r)
	return nil
}

// Poll implements pages.Levers.
func (p *Pages) Poll() error { return nil }

// wait advances the helper's time until a range has been read.
func (p *Pages) wait(r pages.Range) {
	p.load(r)
	p.each(r, func(pg *page) { p.m.doing = max(p.m.doing, pg.ready) })
}

// Lock implements pages.Levers.
func (p *Pages) Lock(r pages.Range) error {
	p.Calls.Lock++
	p.wait(r)
	p.each(r, func(pg *page) {
		if pg.present && !pg.locked {
			pg.locked = true
			p.m.cache.locked += p.m.cfg.Page
		}
	})
	return nil
}

// Keep implements pages.Levers.
func (p *Pages) Keep(r pages.Range) error {
	p.Calls.Keep++
	p.wait(r)
	return nil
}

// Release implements pages.Levers.
func (p *Pages) Release(r pages.Range) error {
	p.Calls.Release++
	p.each(r, func(pg *page) {
		if pg.locked {
			pg.locked = false
			p.m.cache.locked -= p.m.cfg.Page
		}
	})
	p.m.cache.reclaim(p.m.now)
	return nil
}

// PageOut implements pages.Levers. As with the real kernel, it needs to know where the target
// maps the file, and skips pages that are being read.
func (p *Pages) PageOut(r pages.Range) error {
	p.Calls.PageOut++
	p.spend(p.m.cfg.Costs.PageOut, r.Length)
	if p.bases[r.File] == 0 || p.m.shared[p.files[r.File]] {
		return nil
	}
	p.each(r, func(pg *page) {
		if pg.present && !pg.locked && pg.ready <= p.m.now {
			p.m.cache.remove(pg)
		}
	})
	return nil
}

// Evict implements pages.Levers.
func (p *Pages) Evict(r pages.Range) bool { return p.PageOut(r) == nil }

// ResidentBytes implements pages.Levers.
func (p *Pages) ResidentBytes(r pages.Range) (bytes int64, err error) {
	if r.Length <= 0 {
		return 0, nil
	}
	p.each(r, func(pg *page) {
		if pg.present {
			bytes += p.m.cfg.Page
		}
	})
	return bytes, nil
}

// HasArrived implements pages.Levers.
func (p *Pages) HasArrived(r pages.Range) (bool, error) {
	arrived := true
	p.each(r, func(pg *page) { arrived = arrived && pg.present && pg.ready <= max(p.m.now, p.m.doing) })
	return arrived, nil
}

// IsTouched implements pages.Levers.
func (p *Pages) IsTouched(r pages.Range) (touched bool, err error) {
	p.Calls.Touched++
	if p.bases[r.File] != 0 {
		p.each(r, func(pg *page) { touched = touched || pg.mapped })
	}
	return touched, nil
}

// PayingGroup implements pages.Levers.
func (p *Pages) PayingGroup(r pages.Range) (group uint64, err error) {
	mixed := false
	p.each(r, func(pg *page) {
		payer := pg.payer
		if pg.borrowed {
			payer = otherGroup
		}
		mixed = mixed || !pg.present || group != 0 && group != payer
		group = payer
	})
	if mixed || p.m.HidePayers {
		return 0, nil
	}
	return group, nil
}

// Name implements pages.Levers.
func (p *Pages) Name() string { return "simulated" }

// Close implements pages.Levers.
func (p *Pages) Close() error {
	for f := range p.files {
		if err := p.Release(pages.Range{File: f, Length: p.m.cache.pages(p.files[f]) * p.m.cfg.Page}); err != nil {
			return err
		}
	}
	return nil
}
