// This file notices that limits change, that usage moves, and that the kernel says memory is short, at the cost of a system call or two per look.

package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strconv"

	"golang.org/x/sys/unix"
)

// Watch notices what happens to the memory of a group, its visible ancestors and the host. It holds descriptors: Close it. Not for concurrent use.
//
// What the kernel offers differs, so each source is tried, and one that is missing is left out (and logged as such, for debugging):
//
//   - writes to limits: inotify, which reports writes to the kernel's files;
//   - version 2: memory.events.local (Linux 5.2; before, memory.events, which counts what happens below, too) counts how often a group was at
//     memory.high, at memory.max, and out of memory. The kernel reports each change as a modification, at most every 10 ms;
//   - version 1: memory.pressure_level tells through an eventfd that reclaim in a group finds little to take (medium) or hardly anything
//     (critical), and memory.oom_control that it found nothing;
//   - pressure stall information (Linux 5.2): a trigger fires when tasks waited for memory for a tenth of the time. It is looked at ten times per window, which is half a second
//     with CAP_SYS_RESOURCE, and two seconds without (Linux 6.5), where it is no faster than that;
//   - usage: neither version reports that it moves. Version 1 has thresholds, each of which takes the kernel 10 to 30 ms to set (it waits for
//     all CPUs), and has to be set anew when it was passed. To read a descriptor that is open takes half a microsecond, so that is done: see [Watch.Moved].
type Watch struct {
	log     *slog.Logger
	epoll   int
	inotify int
	written map[int32]*source // by inotify's watch descriptor
	told    map[int32]*source // by descriptor
	usages  []usage           // the group's first
	looks   int               // calls of Moved
}

// source is a file that says something.
type source struct {
	limit bool   // a limit, which somebody wrote
	host  bool   // about the whole machine
	short string // what it means that it says something

	events string           // the file of counters, if it is one
	counts map[string]int64 // what they were
	suffix string           // to be added to the counter that rose
}

// usage is a file with a group's usage.
type usage struct {
	fd     int
	now    int64
	band   band // of what was reported lately
	before band // of what was reported before that
}

// band is the lowest and the highest of some numbers.
type band struct{ low, high int64 }

func (b band) with(n int64) band { return band{min(b.low, n), max(b.high, n)} }

// bandLooks is how many calls of Moved a band is made of.
const bandLooks = 100

// Notice is what happened since the last look.
type Notice struct {
	Limit bool   // a limit was written
	Short string // why memory of the group or an ancestor is short, in the kernel's words: "memory.events: high"; empty if it was not said to be
	Host  string // why that of the host is, or of some group on it
}

// pressureHeld is how long tasks must wait within a window, in microseconds, for a trigger: the smallest window that the kernel takes, and the smallest that it takes of those
// without CAP_SYS_RESOURCE.
var pressureHeld = []string{"some 50000 500000", "some 200000 2000000"}

// NewWatch watches a group; nil is none, only the host. The log is for what this kernel does not offer.
func NewWatch(g *Group, log *slog.Logger) (*Watch, error) { return newWatch(g, system{"/"}, log) }

func newWatch(g *Group, s system, log *slog.Logger) (*Watch, error) {
	w := &Watch{log: log, epoll: -1, inotify: -1, written: map[int32]*source{}, told: map[int32]*source{}}
	if err := w.start(g, s); err != nil {
		return nil, errors.Join(fmt.Errorf("watch the memory of a control group: %w", err), w.Close())
	}
	return w, nil
}

func (w *Watch) start(g *Group, s system) (err error) {
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	w.trigger(s.file("/proc/pressure/memory"), &source{host: true, short: "memory pressure of the host (PSI)"})
	if g == nil {
		return nil
	}
	if w.inotify, err = unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC); err != nil {
		return err
	}
	if err := w.poll(w.inotify, unix.EPOLLIN); err != nil {
		return err
	}
	if g.v2 != (hierarchy{}) && g.v2.rel != "/" {
		w.trigger(g.v2.file("memory.pressure"), &source{short: "memory pressure (PSI)"})
	}
	for i, h := range g.mem.chain() {
		where := ""
		if i > 0 {
			where = " of " + h.rel
		}
		for _, kind := range g.limits() {
			if err := w.modified(h.file(kind.limit), &source{limit: true}); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if g.version == 1 {
			// Without "local" (Linux 4.13) an ancestor would be told of the reclaim of all groups below it.
			w.register(h, "memory.pressure_level", "medium,local", "memory.pressure_level: medium"+where)
			w.register(h, "memory.pressure_level", "critical,local", "memory.pressure_level: critical"+where)
			if i == 0 { // a group is told of what happens to its ancestors
				w.register(h, "memory.oom_control", "", "memory.oom_control: out of memory")
			}
		} else {
			w.counters(h, where)
		}
		if h.rel == "/" && !g.Hidden() {
			continue // the usage of all that runs
		}
		if fd, err := open(h.file(g.names().usage), unix.O_RDONLY); err != nil {
			w.missing(h.file(g.names().usage), err)
		} else {
			w.usages = append(w.usages, usage{fd: fd})
		}
	}
	w.Moved(0) // the bands begin with this look
	return nil
}

// missing says that something is not watched.
func (w *Watch) missing(file string, err error) {
	w.log.Debug("not watched for changes", "file", file, "error", err)
}

// poll adds a descriptor to those that are asked.
func (w *Watch) poll(fd int, events uint32) error {
	return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// tell polls a descriptor, which is the Watch's from then on, as a source.
func (w *Watch) tell(fd int, events uint32, src *source) error {
	if err := w.poll(fd, events); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	w.told[int32(fd)] = src
	return nil
}

// modified watches for modifications of a file.
func (w *Watch) modified(file string, src *source) error {
	wd, err := unix.InotifyAddWatch(w.inotify, file, unix.IN_MODIFY)
	if err != nil {
		return &fs.PathError{Op: "watch", Path: file, Err: err}
	}
	w.written[int32(wd)] = src
	return nil
}

// counters watches the events of a group of version 2.
func (w *Watch) counters(h hierarchy, where string) {
	for _, name := range []string{"memory.events.local", "memory.events"} {
		src := &source{events: h.file(name), suffix: where}
		counts, err := pairs(src.events)
		if err == nil {
			src.counts = counts
			err = w.modified(src.events, src)
		}
		if err == nil {
			return
		}
		w.missing(src.events, err)
	}
}

// trigger sets a trigger of pressure stall information.
func (w *Watch) trigger(file string, src *source) {
	for _, held := range pressureHeld {
		err := func() error {
			fd, err := open(file, unix.O_RDWR|unix.O_NONBLOCK)
			if err != nil {
				return err
			}
			if _, err := unix.Write(fd, append([]byte(held), 0)); err != nil { // the kernel puts its own end of text over the last byte
				return errors.Join(err, unix.Close(fd))
			}
			return w.tell(fd, unix.EPOLLPRI, src)
		}()
		if err == nil {
			return
		}
		w.missing(file+": "+held, err)
	}
}

// register has a group of version 1 signal an eventfd. what says when, in the words of the file's kind of event.
func (w *Watch) register(h hierarchy, name, what, short string) {
	err := func() error {
		file, err := open(h.file(name), unix.O_RDONLY)
		if err != nil {
			return err
		}
		defer unix.Close(file)
		fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		if err != nil {
			return err
		}
		if err := write(h.file("cgroup.event_control"), strconv.Itoa(fd)+" "+strconv.Itoa(file)+" "+what); err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		return w.tell(fd, unix.EPOLLIN|unix.EPOLLET, &source{short: short}) // each signal is one event, and the counter need not be read
	}()
	if err != nil {
		w.missing(h.file(name)+": "+what, err)
	}
}

// Notices returns what happened since the last call. It does not block, and takes one system call if nothing happened.
func (w *Watch) Notices() Notice {
	var n Notice
	var ready [32]unix.EpollEvent
	count, err := unix.EpollWait(w.epoll, ready[:], 0)
	if err != nil {
		return n // interrupted
	}
	for _, e := range ready[:count] {
		if int(e.Fd) == w.inotify {
			w.modifications(&n)
			continue
		}
		src := w.told[e.Fd]
		if src == nil {
			continue
		}
		switch {
		case e.Events&unix.EPOLLERR != 0: // its group was removed, and it would say so for ever
			delete(w.told, e.Fd)
			_ = unix.Close(int(e.Fd))
		case src.host:
			n.Host = src.short
		default:
			n.Short = src.short
		}
	}
	return n
}

// modifications notes which files were modified.
func (w *Watch) modifications(n *Notice) {
	var buf [4096]byte
	for {
		got, err := unix.Read(w.inotify, buf[:])
		if err != nil || got <= 0 {
			return
		}
		// struct inotify_event: wd, mask, cookie, the length of a name behind it; there is none, as no directory is watched.
		for at := 0; at+unix.SizeofInotifyEvent <= got; {
			wd := int32(binary.NativeEndian.Uint32(buf[at:]))
			mask := binary.NativeEndian.Uint32(buf[at+4:])
			at += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[at+12:]))
			src := w.written[wd]
			switch {
			case mask&unix.IN_Q_OVERFLOW != 0:
				n.Limit = true // something was missed
			case src == nil || mask&unix.IN_MODIFY == 0:
			case src.limit:
				n.Limit = true
			default:
				if rose := src.rose(); rose != "" {
					n.Short = rose
				}
			}
		}
	}
}

// rose names the gravest of the counters of shortage that are higher than when they were looked at last; nothing if none is.
func (s *source) rose() string {
	counts, err := pairs(s.events)
	if err != nil {
		return "" // the group is being removed
	}
	before := s.counts
	s.counts = counts
	for _, name := range []string{"oom_kill", "oom", "max", "high"} {
		if counts[name] > before[name] {
			return "memory.events: " + name + s.suffix
		}
	}
	return ""
}

// Moved reports whether the usage of the group or of one of its ancestors is at least step bytes from all that it was when Moved said so in the last bandLooks calls and more, or at the
// beginning, or cannot be read any more, as the group is gone. So usage that goes up and down, as files are read and paged out, is news only once in a while. It takes a system call per level.
func (w *Watch) Moved(step int64) bool {
	moved := false
	var buf [32]byte
	for i := range w.usages {
		u := &w.usages[i]
		got, err := retry(func() (int, error) { return unix.Pread(u.fd, buf[:], 0) })
		if err != nil {
			moved = true
			continue
		}
		if n, err := parseNumber(string(buf[:got])); err == nil {
			u.now = n
		}
		all := u.band.with(u.before.low).with(u.before.high)
		moved = moved || u.now-all.high >= step || all.low-u.now >= step
	}
	for i := range w.usages {
		u := &w.usages[i]
		now := band{u.now, u.now}
		switch {
		case w.looks == 0:
			u.band, u.before = now, now
		case moved:
			u.band = u.band.with(u.now)
		}
		if w.looks%bandLooks == bandLooks-1 {
			u.band, u.before = now, u.band
		}
	}
	w.looks++
	return moved
}

// Close stops watching. It takes some 20 ms if a trigger is set: the kernel waits for all CPUs.
func (w *Watch) Close() error {
	var errs []error
	for fd := range w.told {
		errs = append(errs, unix.Close(int(fd)))
	}
	for _, u := range w.usages {
		errs = append(errs, unix.Close(u.fd))
	}
	for _, fd := range []int{w.inotify, w.epoll} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}
