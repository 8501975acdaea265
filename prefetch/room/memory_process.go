package room

// This file follows the memory of a process: which cgroup it is in, what happens there and on the host, and which
// cgroup this process is to be in therefore.

import (
	gocontext "context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
)

// MemoryOptions of a ProcessMemory.
type MemoryOptions struct {
	// Leave is how many bytes of the host's MemAvailable are left to others; 0 chooses: a sixteenth of the machine's
	// memory, at most 2 GiB, and up to a quarter while others swap in or wait for memory.
	Leave int64
	// Reserve is how many bytes under each limit are never to be locked; 0 chooses a quarter of the limit.
	Reserve int64
	// TrustHost: where the target's group is hidden, so that its limits are not known, only the host bounds. Else
	// there is no room then.
	TrustHost bool
	Log       *slog.Logger // nil: none
}

const (
	// followTries is how often the group is looked up at once, while somebody moves the target all the time.
	followTries = 4
	// placeInterval is how often the target's group is looked up, which takes 1.5 us if it did not change.
	placeInterval = 20 * time.Millisecond
	// usageInterval is how often usage is read, half a microsecond per level. It is reported when it moved by a
	// usageStep.
	usageInterval = 10 * time.Millisecond
	usageStep     = 4 << 20
	// lookAgain is how soon after a look another one may be asked for, unless a limit was written: a target at its
	// limit has the kernel complain all the time.
	lookAgain = 10 * time.Millisecond
	// hostInterval is how often MemAvailable is read. It is reported when it moved by an availableStep, or a share of
	// the machine's memory.
	hostInterval   = 50 * time.Millisecond
	availableStep  = 16 << 20
	availableShare = 512
	// pagingInterval is how often swap-ins and reclaim are counted, which takes 20 us or more on machines with many
	// CPUs.
	pagingInterval = 200 * time.Millisecond
)

// LevelHidden is Room.Level where the target is in a group that is not visible from here.
const LevelHidden = "a hidden cgroup"

// ProcessMemory is the memory of a process as its cgroup, the ancestors of that and the host bound it. The process
// may be moved to another cgroup at any time. Without a memory controller only the host bounds. Not for concurrent
// use.
type ProcessMemory struct {
	opts  MemoryOptions
	now   func() time.Time
	host  hostSources
	place placed
	group *cgroup.Group // nil: hidden, or there is no controller
	none  bool          // there is no controller: said once
	watch *cgroup.Watch
	// stopping are the watches that are being closed.
	stopping sync.WaitGroup

	hidden, told  bool  // told: that it is, was said
	why           error // why it is
	found, moved  time.Time
	asked, looked time.Time
	total         int64 // the machine's memory
	available     int64 // MemAvailable, when it was reported or used last
	pending       Change

	floor    floor
	shortage shortage
	joining  joining
}

// placed is what a [cgroup.Place] does.
type placed interface {
	Moved() (bool, error)
	Find() (*cgroup.Group, error)
	Close() error
}

// hostSources ask the kernel about the host.
type hostSources struct {
	memory   func() (cgroup.HostMemory, error)
	paging   func() (cgroup.Paging, error)
	pressure func() (cgroup.Pressure, error)
}

// NewProcessMemory asks about the memory of a process. Close it. The error is proc.ErrNoProcess if there is none, and
// cgroup.ErrHidden if its group is hidden, unless the host is trusted then.
func NewProcessMemory(pid int, opts MemoryOptions) (*ProcessMemory, error) {
	place, err := cgroup.NewPlace(pid)
	if errors.Is(err, cgroup.ErrEnded) {
		return nil, fmt.Errorf("process %d: %w", pid, proc.ErrNoProcess)
	}
	if err != nil {
		return nil, err
	}
	return newProcessMemory(place, hostSources{cgroup.Host, cgroup.HostPaging, cgroup.HostPressure}, time.Now, opts)
}

func newProcessMemory(place placed, host hostSources, now func() time.Time, opts MemoryOptions) (*ProcessMemory, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	m := &ProcessMemory{opts: opts, now: now, host: host, place: place}
	if err := m.start(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *ProcessMemory) start() error {
	host, err := m.host.memory()
	if err != nil {
		return fmt.Errorf("ask for the host's memory: %w", err)
	}
	m.total, m.available, m.floor.total = host.Total, host.Available, host.Total
	if m.watch, err = cgroup.NewWatch(nil, m.opts.Log); err != nil { // the target's group is watched as soon as it is found
		return err
	}
	m.told = !m.opts.TrustHost // the error tells it
	if _, err := m.follow(); err != nil {
		return err
	}
	if m.hidden && !m.opts.TrustHost {
		if errors.Is(m.why, cgroup.ErrHidden) {
			return m.why
		}
		return fmt.Errorf("%w: %w", cgroup.ErrHidden, m.why)
	}
	m.told = m.hidden
	return nil
}

// ended translates the error of a process that has ended.
func ended(err error) error {
	if errors.Is(err, cgroup.ErrEnded) {
		return fmt.Errorf("memory of the target: %w", proc.ErrNoProcess)
	}
	return err
}

// Close releases descriptors, and ends what Join began.
func (m *ProcessMemory) Close() error {
	m.joining.close()
	m.stopping.Wait()
	err := m.place.Close()
	if m.watch != nil {
		err = errors.Join(err, m.watch.Close())
	}
	return err
}

// Group is the target's memory cgroup when it was last looked at; nil if it is hidden, or there is none.
func (m *ProcessMemory) Group() *cgroup.Group { return m.group }

// follow looks up the target's group, and says whether it is another one than before.
func (m *ProcessMemory) follow() (changed bool, err error) {
	m.found = m.now()
	for range followTries {
		moved, err := m.place.Moved()
		if err != nil {
			return changed, ended(err)
		}
		if !moved {
			break
		}
		group, err := m.place.Find()
		hidden := false
		switch {
		case errors.Is(err, cgroup.ErrEnded):
			return changed, ended(err)
		case errors.Is(err, cgroup.ErrNoController):
			group = nil
			if !m.none {
				m.none = true
				m.opts.Log.Warn("no memory cgroup: only the host's memory bounds the budget", "error", err)
			}
		case err != nil: // whatever its limits are, they apply
			group, hidden, m.why = nil, true, err
		}
		if hidden == m.hidden && (group == nil && m.group == nil || group != nil && m.group != nil && *group == *m.group) {
			continue // it was moved in another hierarchy
		}
		watch, err := cgroup.NewWatch(group, m.opts.Log)
		if err != nil {
			// Whoever moves it may have removed the group since: then it is in another one. If not, there are the
			// looks that nothing has to cause.
			m.opts.Log.Debug("the target's memory cgroup is not watched", "error", err)
			if watch, err = cgroup.NewWatch(nil, m.opts.Log); err != nil {
				return changed, err
			}
		}
		old := m.watch
		m.stopping.Go(func() { // it waits for all CPUs
			if err := old.Close(); err != nil {
				m.opts.Log.Debug("stop watching a memory cgroup", "error", err)
			}
		})
		m.watch, m.group, m.hidden, changed = watch, group, hidden, true
		m.shortage.moved()
	}
	if !changed {
		return false, nil
	}
	switch {
	case m.hidden && !m.told:
		m.told = true
		m.opts.Log.Warn("the target is in a memory cgroup that is not visible from here: its limits are not known", "only the host bounds", m.opts.TrustHost, "error", m.why)
	case m.group != nil:
		m.opts.Log.Debug("the target's memory cgroup", "version", m.group.Version(), "name", m.group.Name())
	}
	if m.joining.staying {
		m.joining.want(m.group)
	}
	return true, nil
}

// Join moves this process to the target's memory cgroup, and again whenever the target is moved, as long as ctx is
// not done: pages that it reads are charged where the target's are. Where it must not or cannot join, the log says so
// once, and it goes back to where it was in the beginning. It is no error that the group cannot be joined. Until
// Leave, later calls do nothing; the first call's ctx counts for all.
func (m *ProcessMemory) Join(ctx gocontext.Context) {
	if m.joining.staying {
		return
	}
	if m.joining.ctx == nil {
		m.joining.begin(ctx, m.opts.Log)
	}
	m.joining.staying = true
	m.joining.want(m.group)
	m.joining.wait()
}

// Leave takes this process back to the memory cgroup where it was in the beginning, if Join moved it, until Join is
// called again. What it has allocated meanwhile stays charged where it was until it is freed.
func (m *ProcessMemory) Leave() {
	if !m.joining.staying {
		return
	}
	m.joining.want(nil)
	m.joining.wait()
	m.joining.staying = false
}

// PollChange implements Memory. If nothing happened it takes one system call, and a few more every 10 ms.
func (m *ProcessMemory) PollChange() Change {
	now := m.now()
	m.joining.next()
	n := m.watch.Notices()
	urgent := n.Limit
	if now.Sub(m.found) >= placeInterval || n.Short != "" { // the last words of a group that was removed are no shortage
		moved, err := m.follow()
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
	if now.Sub(m.moved) >= usageInterval {
		m.moved = now
		m.pending.OnlyUsage = m.watch.Moved(usageStep) || m.pending.OnlyUsage
	}
	m.askHost(now, n.Host != "")
	if !urgent && (!m.pending.RoomChanged && !m.pending.OnlyUsage || now.Sub(m.looked) < lookAgain) {
		return Change{}
	}
	c := Change{RoomChanged: true, ShortReason: m.pending.ShortReason, OnlyUsage: !urgent && !m.pending.RoomChanged}
	m.pending, m.looked = Change{}, now
	return c
}

// askHost looks at the host, when that is due. What the kernel does not tell is left out.
func (m *ProcessMemory) askHost(now time.Time, fired bool) {
	if now.Sub(m.asked) >= hostInterval {
		m.asked = now
		if host, err := m.host.memory(); err == nil && max(host.Available-m.available, m.available-host.Available) >= max(availableStep, m.total/availableShare) {
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
	why, others := m.shortage.see(now, paging, fired, m.stalls)
	m.floor.see(now, others)
	if why != "" {
		m.pending.RoomChanged = true
		if m.pending.ShortReason == "" {
			m.pending.ShortReason = why
		}
	}
}

// stalls is how long tasks outside of the target's group have waited for memory since boot; false if that cannot be
// told.
func (m *ProcessMemory) stalls() (time.Duration, bool) {
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
func (m *ProcessMemory) Room(resident, locked int64) (Room, error) {
	host, err := m.host.memory()
	if err != nil {
		return Room{}, fmt.Errorf("ask for the host's memory: %w", err)
	}
	m.available = host.Available
	u := usedBy{host: host, floor: m.opts.Leave, reserve: m.opts.Reserve}
	if u.floor == 0 {
		u.floor = m.floor.bytes()
	}
	if m.now().Sub(m.found) >= placeInterval { // nobody asks PollChange
		if _, err := m.follow(); err != nil {
			return Room{}, err
		}
	}
	if err := m.charged(&u); err != nil {
		return Room{}, err
	}
	if m.hidden && !m.opts.TrustHost {
		return Room{Level: LevelHidden}, nil
	}
	return u.room(resident, locked), nil
}

// charged asks for the levels. If the group is gone, the target is elsewhere.
func (m *ProcessMemory) charged(u *usedBy) error {
	for try := 1; ; try++ {
		err := m.levels(u)
		if err == nil {
			return nil
		}
		moved, followErr := m.follow()
		if followErr != nil {
			return followErr
		}
		if !moved || try == followTries {
			return fmt.Errorf("ask for the limits of the target's memory: %w", err)
		}
	}
}

func (m *ProcessMemory) levels(u *usedBy) error {
	u.levels, u.cache, u.active = nil, 0, 0
	if m.group == nil {
		return nil
	}
	stat, err := m.group.Stat()
	if err != nil {
		return err
	}
	u.cache = stat.Cache()
	if m.group.Name() != "/" || m.group.Hidden() { // else it is all the machine's
		u.active = stat.ActiveFile
	}
	u.levels, err = m.group.Levels()
	return err
}

// joining moves this process from group to group, beside the control loop: systemd may take seconds to say whether it
// may.
type joining struct {
	ctx    gocontext.Context // nil: this process stays where it is
	cancel gocontext.CancelFunc
	log    *slog.Logger
	home   *cgroup.Group // where this process was in the beginning; nil: not known
	away   bool          // it is not there
	// staying says that this process is to be where the target is.
	staying bool
	told    bool          // that a group was not joined was said
	target  *cgroup.Group // to be joined next
	due     bool
	done    chan struct{} // closed when a move is over; nil: there is none under way
}

func (j *joining) begin(ctx gocontext.Context, log *slog.Logger) {
	j.ctx, j.cancel = gocontext.WithCancel(ctx)
	j.log = log
	home, err := cgroup.Find(0)
	if err != nil {
		log.Debug("this process's own memory cgroup is not known", "error", err)
		return
	}
	j.home = home
}

// want has a group joined, as soon as the last one is.
func (j *joining) want(group *cgroup.Group) {
	j.target, j.due = group, true
	j.next()
}

// next begins to join what is to be joined, if nothing is being joined.
func (j *joining) next() {
	if j.done != nil {
		select {
		case <-j.done:
			j.done = nil
		default:
			return
		}
	}
	if !j.due || j.ctx == nil || j.ctx.Err() != nil {
		return
	}
	j.due, j.done = false, make(chan struct{})
	go func(target *cgroup.Group, done chan struct{}) { // which has j.away, j.told and j.home until done is closed
		defer close(done)
		j.move(target)
	}(j.target, j.done)
}

func (j *joining) move(target *cgroup.Group) {
	log := j.log
	if j.told {
		log = slog.New(slog.DiscardHandler)
	}
	if target != nil && join(j.ctx, target, log) {
		j.away = true
		return
	}
	j.told = j.told || target != nil
	if j.away && j.home != nil {
		if err := j.home.Join(os.Getpid()); err != nil {
			log.Warn("cannot go back to the memory cgroup that this was started in", "error", err)
			return
		}
		j.away = false
	}
}

// wait waits until nothing is being joined.
func (j *joining) wait() {
	for j.next(); j.done != nil; j.next() {
		<-j.done
	}
}

func (j *joining) close() {
	if j.cancel == nil {
		return
	}
	j.cancel()
	if j.done != nil {
		<-j.done
	}
}
