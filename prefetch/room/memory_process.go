package room

// This file follows the memory of a process: which cgroup it is in, and what happens there and on the host.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
)

// MemoryOptions of a ProcessMemory.
type MemoryOptions struct {
	// Leave is how many bytes of the host's MemAvailable are left to others. 0 chooses a sixteenth of the
	// machine's memory, at most 2 GiB, and up to a quarter while others swap in or wait for memory.
	Leave int64
	// Reserve is how many bytes under each limit are never to be locked. 0 chooses a quarter of the limit.
	Reserve int64
	// TrustHost is for a target whose group is hidden, so that its limits are not known. With TrustHost only
	// the host bounds it. Otherwise there is no room.
	TrustHost bool
	Log       *slog.Logger // nil: nothing is logged
}

const (
	// maxFollows is how often the group is looked up in a row, while somebody moves the target all the time.
	maxFollows = 4
	// followInterval is how often the target's group is looked up. This takes 1.5 us if it did not change.
	followInterval = 20 * time.Millisecond
	// usageInterval is how often usage is read, which takes half a microsecond per level. It is reported when
	// it moved by usageStep bytes.
	usageInterval = 10 * time.Millisecond
	usageStep     = 4 << 20
	// reportInterval is how soon after a change another one may be reported, unless a limit was written. A
	// target at its limit makes the kernel complain all the time.
	reportInterval = 10 * time.Millisecond
	// hostInterval is how often MemAvailable is read. It is reported when it moved by availableStep bytes and
	// by an availableShare of the machine's memory.
	hostInterval   = 50 * time.Millisecond
	availableStep  = 16 << 20
	availableShare = 512
	// pagingInterval is how often the counters of swap-ins and reclaim are read. This takes 20 us or more on
	// machines with many CPUs.
	pagingInterval = 200 * time.Millisecond
)

// LevelHidden is Room.Level where the target is in a group that is not visible from here.
const LevelHidden = "a hidden cgroup"

// ProcessMemory is the memory of a process, as its cgroup, the ancestors of that and the host bound it. The
// process may be moved to another cgroup at any time. Without a memory controller only the host bounds it. It
// is for one goroutine.
type ProcessMemory struct {
	opts MemoryOptions
	now  func() time.Time
	host hostSources

	// The target's group.
	finder     groupFinder
	group      *cgroup.Group // nil: it is hidden, or there is no memory controller
	hidden     bool
	hiddenWhy  error
	watch      *cgroup.Watch
	stopping   sync.WaitGroup // watches that are being closed
	followedAt time.Time

	// What the user was told.
	warnedNone   bool // there is no memory controller
	warnedHidden bool // the group is hidden

	// Change.
	usageAt    time.Time // when usage was read last
	hostAt     time.Time // when MemAvailable was read last
	reportedAt time.Time // when a change was reported last
	total      int64     // the machine's memory, in bytes
	available  int64     // MemAvailable when it was reported or used last, in bytes
	pending    Change    // not reported yet

	floor    floor
	shortage shortage
	joining  joining
}

// groupFinder finds the group of a process, as [cgroup.Membership] does.
type groupFinder interface {
	Moved() (bool, error) // whether the process may be in another group than Find has returned
	Find() (*cgroup.Group, error)
	Close() error
}

// hostSources ask the kernel about the host.
type hostSources struct {
	memory   func() (cgroup.HostMemory, error)
	paging   func() (cgroup.Paging, error)
	pressure func() (cgroup.Pressure, error)
}

// NewProcessMemory begins to follow the memory of a process. Close it. The error is proc.ErrNoProcess if
// there is no such process, and cgroup.ErrHidden if its group is hidden and the host is not trusted.
func NewProcessMemory(pid int, opts MemoryOptions) (*ProcessMemory, error) {
	place, err := cgroup.FollowProcess(pid)
	if errors.Is(err, cgroup.ErrEnded) {
		return nil, fmt.Errorf("process %d: %w", pid, proc.ErrNoProcess)
	}
	if err != nil {
		return nil, err
	}
	return newProcessMemory(place, hostSources{cgroup.Host, cgroup.HostPaging, cgroup.HostPressure}, time.Now, opts)
}

func newProcessMemory(
	finder groupFinder, host hostSources, now func() time.Time, opts MemoryOptions,
) (*ProcessMemory, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	m := &ProcessMemory{opts: opts, now: now, host: host, finder: finder}
	if err := m.start(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// start looks at the host and the target's group for the first time.
func (m *ProcessMemory) start() error {
	host, err := m.host.memory()
	if err != nil {
		return fmt.Errorf("ask for the host's memory: %w", err)
	}
	m.total, m.available, m.floor.total = host.Total, host.Available, host.Total
	// The target's group is watched as soon as it is found.
	if m.watch, err = cgroup.NewWatch(nil, m.opts.Log); err != nil {
		return err
	}
	m.warnedHidden = !m.opts.TrustHost // the error below says so
	if _, err := m.followTarget(); err != nil {
		return err
	}
	if m.hidden && !m.opts.TrustHost {
		if errors.Is(m.hiddenWhy, cgroup.ErrHidden) {
			return m.hiddenWhy
		}
		return fmt.Errorf("%w: %w", cgroup.ErrHidden, m.hiddenWhy)
	}
	m.warnedHidden = m.hidden
	return nil
}

// translateEnded makes the error of a process that has ended a proc.ErrNoProcess.
func translateEnded(err error) error {
	if errors.Is(err, cgroup.ErrEnded) {
		return fmt.Errorf("memory of the target: %w", proc.ErrNoProcess)
	}
	return err
}

// Close releases descriptors, and waits for a move to another group that is under way. This process stays in
// the group where it is.
func (m *ProcessMemory) Close() error {
	m.joining.close()
	m.stopping.Wait()
	err := m.finder.Close()
	if m.watch != nil {
		err = errors.Join(err, m.watch.Close())
	}
	return err
}

// Group is the target's memory cgroup when it was looked up last; nil if it is hidden, or there is none.
func (m *ProcessMemory) Group() *cgroup.Group { return m.group }

// followTarget looks up the target's group, and says whether it is another one than before.
func (m *ProcessMemory) followTarget() (changed bool, err error) {
	m.followedAt = m.now()
	for range maxFollows {
		moved, err := m.finder.Moved()
		if err != nil {
			return changed, translateEnded(err)
		}
		if !moved {
			break
		}
		group, err := m.finder.Find()
		hidden := false
		switch {
		case errors.Is(err, cgroup.ErrEnded):
			return changed, translateEnded(err)
		case errors.Is(err, cgroup.ErrNoController):
			group = nil
			if !m.warnedNone {
				m.warnedNone = true
				m.opts.Log.Warn("no memory cgroup: only the host's memory bounds the budget", "error", err)
			}
		case err != nil: // it has limits that are not known
			group, hidden, m.hiddenWhy = nil, true, err
		}
		if hidden == m.hidden && isSameGroup(group, m.group) {
			continue // it was moved in another hierarchy
		}
		watch, err := cgroup.NewWatch(group, m.opts.Log)
		if err != nil {
			// Whoever moves the target may have removed the group since. Then the target is in another one.
			// If not, the group is still looked at in intervals.
			m.opts.Log.Debug("the target's memory cgroup is not watched", "error", err)
			if watch, err = cgroup.NewWatch(nil, m.opts.Log); err != nil {
				return changed, err
			}
		}
		old := m.watch
		m.stopping.Go(func() { // closing waits for all CPUs
			if err := old.Close(); err != nil {
				m.opts.Log.Debug("stop watching a memory cgroup", "error", err)
			}
		})
		m.watch, m.group, m.hidden, changed = watch, group, hidden, true
		m.shortage.forgetStalls()
	}
	if !changed {
		return false, nil
	}
	switch {
	case m.hidden && !m.warnedHidden:
		m.warnedHidden = true
		m.opts.Log.Warn("the target is in a memory cgroup that is not visible from here: its limits are not known",
			"only the host bounds", m.opts.TrustHost, "error", m.hiddenWhy)
	case m.group != nil:
		m.opts.Log.Debug("the target's memory cgroup", "version", m.group.Version(), "name", m.group.Name())
	}
	if m.joining.staying {
		m.joining.request(m.group)
	}
	return true, nil
}

// isSameGroup says whether two groups are the same one, or both are nil.
func isSameGroup(a, b *cgroup.Group) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// Join moves this process to the target's memory cgroup, and again whenever the target is moved, as long as
// ctx is not done. Then the pages that it reads are charged where the target's are. Where it must not or
// cannot join, the log says so once, and it goes back to where it was in the beginning. That is no error.
// Until Leave, later calls do nothing. The first call's ctx counts for all.
func (m *ProcessMemory) Join(ctx context.Context) {
	if m.joining.staying {
		return
	}
	if m.joining.ctx == nil {
		m.joining.start(ctx, m.opts.Log)
	}
	m.joining.staying = true
	m.joining.request(m.group)
	m.joining.await()
}

// Leave takes this process back to the memory cgroup where it was in the beginning, if Join moved it. It
// stays there until Join is called again. What it has allocated meanwhile stays charged where it was
// allocated until it is freed.
func (m *ProcessMemory) Leave() {
	if !m.joining.staying {
		return
	}
	m.joining.request(nil)
	m.joining.await()
	m.joining.staying = false
}

// PollChange implements Memory. If nothing happened it takes one system call, and a few more every 10 ms.
func (m *ProcessMemory) PollChange() Change {
	now := m.now()
	m.joining.beginNext()
	n := m.watch.Notices()
	urgent := n.Limit
	// A group that was removed may seem to be short. So a shortage has the group looked up again.
	if now.Sub(m.followedAt) >= followInterval || n.Short != "" {
		moved, err := m.followTarget()
		if err != nil {
			m.opts.Log.Debug("look up the target's memory cgroup", "error", err) // Room says it
		}
		if moved {
			urgent, n.Short = true, ""
		}
	}
	if n.Short != "" {
		m.pending = Change{RoomChanged: true, ShortReason: n.Short}
	}
	if now.Sub(m.usageAt) >= usageInterval {
		m.usageAt = now
		m.pending.OnlyUsage = m.watch.Moved(usageStep) || m.pending.OnlyUsage
	}
	m.lookAtHost(now, n.Host != "")
	if !urgent && (!m.pending.RoomChanged && !m.pending.OnlyUsage || now.Sub(m.reportedAt) < reportInterval) {
		return Change{}
	}
	c := Change{RoomChanged: true, ShortReason: m.pending.ShortReason, OnlyUsage: !urgent && !m.pending.RoomChanged}
	m.pending, m.reportedAt = Change{}, now
	return c
}

// lookAtHost looks at the host when that is due. fired says that a trigger on the host's memory pressure has
// fired. What the kernel does not tell is left out.
func (m *ProcessMemory) lookAtHost(now time.Time, fired bool) {
	if now.Sub(m.hostAt) >= hostInterval {
		m.hostAt = now
		step := max(availableStep, m.total/availableShare)
		host, err := m.host.memory()
		if err == nil && max(host.Available-m.available, m.available-host.Available) >= step {
			m.available = host.Available
			m.pending.RoomChanged = true
		}
	}
	if !fired && now.Sub(m.shortage.at) < pagingInterval {
		return
	}
	paging, err := m.host.paging()
	if err != nil {
		return
	}
	why, others := m.shortage.update(now, paging, fired, m.stallsOfOthers)
	m.floor.update(now, others)
	if why != "" {
		m.pending.RoomChanged = true
		if m.pending.ShortReason == "" {
			m.pending.ShortReason = why
		}
	}
}

// stallsOfOthers is how long tasks outside of the target's group have waited for memory since boot. It
// returns false if that is not known.
func (m *ProcessMemory) stallsOfOthers() (time.Duration, bool) {
	if m.group == nil {
		return 0, false
	}
	own, err := m.group.Pressure()
	if err != nil || own.Whole {
		return 0, false
	}
	all, err := m.host.pressure()
	return all.Some - own.Some, err == nil
}

// Room implements Memory. The error is proc.ErrNoProcess if the target has ended.
func (m *ProcessMemory) Room(model InMemory) (Room, error) {
	host, err := m.host.memory()
	if err != nil {
		return Room{}, fmt.Errorf("ask for the host's memory: %w", err)
	}
	m.available = host.Available
	u := bounds{host: host, floor: m.opts.Leave, reserve: m.opts.Reserve}
	if u.floor == 0 {
		u.floor = m.floor.bytes()
	}
	if m.now().Sub(m.followedAt) >= followInterval { // nobody calls PollChange
		if _, err := m.followTarget(); err != nil {
			return Room{}, err
		}
	}
	if err := m.askLevels(&u); err != nil {
		return Room{}, err
	}
	if m.hidden && !m.opts.TrustHost {
		return Room{Level: LevelHidden}, nil
	}
	r := u.room(model)
	if len(u.levels) > 0 {
		if r.OwnGroup, err = m.group.Inode(); err != nil {
			m.opts.Log.Debug("the target's memory cgroup has gone", "error", err) // the next look finds another one
		}
	}
	return r, nil
}

// askLevels reads the levels into u. If the group is gone, the target is in another one.
func (m *ProcessMemory) askLevels(u *bounds) error {
	for try := 1; ; try++ {
		err := m.readLevels(u)
		if err == nil {
			return nil
		}
		moved, followErr := m.followTarget()
		if followErr != nil {
			return followErr
		}
		if !moved || try == maxFollows {
			return fmt.Errorf("ask for the limits of the target's memory: %w", err)
		}
	}
}

// readLevels reads the limits and usage of the target's group, and of those above it.
func (m *ProcessMemory) readLevels(u *bounds) error {
	u.levels, u.groupCache, u.groupActive = nil, 0, 0
	if m.group == nil {
		return nil
	}
	stat, err := m.group.Stat()
	if err != nil {
		return err
	}
	u.groupCache = stat.Cache()
	if m.group.Name() != "/" || m.group.Hidden() { // the root's would be all the machine's
		u.groupActive = stat.ActiveFile
	}
	u.levels, err = m.group.Levels()
	return err
}
