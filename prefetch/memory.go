package prefetch

// This file follows how much memory there is for the model. It asks for the room when the kernel says that
// something has changed, and leaves some of it free where the kernel takes what is kept.

import (
	"fmt"
	"time"

	"tensorcast/prefetch/room"
)

const (
	// checkInterval is how often the room is asked for when nothing has changed.
	checkInterval = 50 * time.Millisecond
	// usualLoss bytes are taken by reclaim now and then, in lossTime. If more is taken, and more than a
	// lossShare of what is held, too little is left free.
	usualLoss = 8 << 20
	lossShare = 32
	lossTime  = 500 * time.Millisecond
	// marginShare of the room bounds the margin, easeRate is how many bytes it falls in a second.
	marginShare = 8
	easeRate    = 4 << 20
	// othersShare of the room, one in so many bytes, is the most that other contexts are left.
	othersShare = 4
	// shortTime is how long it is told that memory was given back: more than a lossShare of what is held, in that time.
	// Less is given back now and then as the target's own memory grows and shrinks, and is no news.
	shortTime = 2 * time.Second
)

// memory is how much memory there is for the model.
type memory struct {
	*session
	room     room.Room // without what is left free
	checked  time.Time
	census   census
	level    string // that bounds the room, whatever the budget is
	whole    int64  // bytes of the room before it is shared with other models
	wanted   int64  // what a target that is left alone would like to have in memory, see needs
	ownGroup uint64 // that the target was in when it was found out what other groups pay for,
	surveyed bool   // if that was done

	short   string    // why memory was short when the kernel said so last,
	shortAt time.Time // and when that was
	shrunk  time.Time // when memory was given back last
	given   int64     // bytes that were given back, since givenSince
	gaveAt  time.Time // when that was much last

	// The kernel takes some of what is kept though there should be room: reads of the target around its
	// faults, and whoever takes memory and gives it back at once, need some for moments. A margin is left
	// free for them. It grows with what is taken, and falls slowly while nothing is.

	margin  int64     // bytes left free
	eased   time.Time // when it fell last
	lost    int64     // bytes that were taken, since lostSince
	missing int64     // bytes that were taken, and are not explained yet

	lostSince  time.Time
	givenSince time.Time
}

// isDue takes in what the kernel says, and says whether the room is to be asked for now. A limit that was
// just lowered leaves the target only what is not locked: milliseconds count. With a mixture's experts usage
// moves all the time, and is looked at now and then.
func (m *memory) isDue(mixture bool) bool {
	change := m.opts.Memory.PollChange()
	if change.ShortReason != "" {
		m.short, m.shortAt = change.ShortReason, m.now()
		m.doubtExperts()
	}
	return change.RoomChanged && !(change.OnlyUsage && mixture) || m.now().Sub(m.checked) > checkInterval
}

// check asks how much memory there is.
func (m *memory) check() error {
	m.checked = m.now()
	if err := m.census.count(m.session); err != nil {
		return err
	}
	f := m.f
	var locked int64
	if f != nil && m.opts.Lock {
		locked = f.heldBytes
	}
	now, err := m.opts.Memory.Room(room.InMemory{
		Bytes: m.census.total, Borrowed: m.census.borrowedBytes, Locked: locked,
	})
	if err != nil {
		return err
	}
	now.Bytes -= now.Margin()
	// A draft model reads its weights several times for each token of the large one. They stay in memory.
	if others := m.contexts.OtherBytes(); others <= now.Bytes/othersShare {
		now.Bytes -= others
	}
	m.level, m.whole = now.Level, now.Bytes
	if m.opts.Neighbours != nil {
		now = now.ShareWith(m.needs(), m.opts.Neighbours(now.Level))
	}
	if budget := m.budget(); budget > 0 && budget < now.Bytes {
		now.Bytes, now.Level, now.Others = budget, room.LevelBudget, 0
	}
	now.Bytes = m.takeMargin(now.Bytes)
	m.room = now
	if now.Level != m.token.room.Level { // the target was moved, or something else bounds it
		m.token = usage{}
	}
	if f != nil {
		f.window.bytes = f.windowIn(now.Bytes)
		f.shareRoom()
	}
	return nil
}

// needs is how many bytes the model would like to have in memory. It is 0 while nobody knows.
func (m *memory) needs() int64 {
	if m.f != nil {
		return m.f.schedule.Bytes + m.f.routed
	}
	return m.wanted
}

// findBorrowed finds out what of the model other control groups pay for, and asks for the room that is left for the
// rest.
func (m *memory) findBorrowed() error {
	if err := m.census.count(m.session); err != nil {
		return err
	}
	now, err := m.opts.Memory.Room(room.InMemory{})
	if err != nil {
		return err
	}
	m.ownGroup, m.surveyed = now.OwnGroup, true
	if err := m.census.findBorrowed(m.levers, m.ownGroup); err != nil {
		return err
	}
	if err := m.check(); err != nil {
		return err
	}
	bounded := m.ownGroup != 0 && m.room.Level != room.LevelBudget // by a control group, perhaps
	if bounded && m.census.isAllResident() && m.census.total > m.room.Limit {
		m.census.borrowAll()
		if err := m.check(); err != nil {
			return err
		}
	}
	if bytes := m.census.borrowedBytes; bytes > 0 {
		m.log.Info("another control group pays for a part of the model in memory: it is left as it is", "bytes", bytes)
	}
	return nil
}

// findChangeOfPayers says why it is to be found out again who pays for what of the model; "" if it need not be.
func (m *memory) findChangeOfPayers() (why string) {
	switch {
	case !m.surveyed:
	case m.room.OwnGroup != m.ownGroup:
		return "the target was moved to another control group"
	case m.census.hasLostBorrowed():
		return "another control group keeps less of the model than before"
	}
	return ""
}

// doubtExperts says that the kernel may have taken experts.
func (m *memory) doubtExperts() {
	if m.f != nil && m.f.mixture != nil {
		m.f.mixture.Doubt()
	}
}

// noteLoss notes that the kernel took bytes of what is kept. If somebody has the memory now, the room says
// so: it is asked for at once.
func (m *memory) noteLoss(bytes int64) {
	now := m.now()
	m.work.taken += bytes
	m.doubtExperts()
	if now.Sub(m.lostSince) > lossTime {
		m.lostSince, m.lost = now, 0
	}
	if m.lost += bytes; m.lost <= max(usualLoss, m.f.heldBytes/lossShare) {
		return
	}
	m.checked = time.Time{}
	m.missing += m.lost
	m.lost = 0
}

// noteGivenBack notes that bytes of what was held were given back, because there is less room.
func (m *memory) noteGivenBack(bytes, held int64) {
	now := m.now()
	m.shrunk = now
	if now.Sub(m.givenSince) > shortTime {
		m.givenSince, m.given = now, 0
	}
	if m.given += bytes; m.given > held/lossShare {
		m.gaveAt = now
	}
}

// isShort says whether so much was given back a moment ago that a user is told of it.
func (m *memory) isShort() bool { return m.now().Before(m.gaveAt.Add(shortTime)) }

// takeMargin grows the margin by what was taken, unless the room says that somebody else has it now, or had a
// moment ago. It returns the room, in bytes, without the margin.
func (m *memory) takeMargin(bytes int64) int64 {
	m.ease()
	f := m.f
	if m.missing > 0 && f != nil && !m.checked.Before(m.shrunk.Add(shortTime)) &&
		bytes-m.margin-f.windowIn(bytes) >= f.wantBytes-slack {
		m.margin = min(m.margin+m.missing, max(bytes, 0)/marginShare)
		m.journal.note(m.now(), "taken", fmt.Sprintf("the kernel took %s of what is kept: %s are left free",
			readable(m.missing), readable(m.margin)))
		m.log.Info("the kernel took what is kept", "bytes", m.missing, "held", f.heldBytes, "left free", m.margin)
	}
	m.missing = 0
	return bytes - m.margin
}

// ease lets the margin fall.
func (m *memory) ease() {
	if passed := m.checked.Sub(m.eased).Seconds(); passed > 0 && !m.eased.IsZero() {
		m.margin = max(m.margin-int64(min(passed, 3600)*easeRate), 0)
	}
	m.eased = m.checked
}
