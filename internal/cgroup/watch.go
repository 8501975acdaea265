package cgroup

// This file notices changes of limits, changes of usage, and the kernel's reports that memory is
// short. A call takes a system call or two.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strconv"

	"golang.org/x/sys/unix"
)

// Watch notices what happens to the memory of a group, its visible ancestors and the host. It holds
// descriptors, so the caller must Close it. It is not safe for concurrent use.
//
// Kernels differ in what they report. So each source is tried, and one that is missing is left out
// and logged for debugging:
//
//   - Writes to limits: inotify reports writes to the kernel's files.
//   - Version 2: memory.events.local counts how often a group was at memory.high, at memory.max,
//     and out of memory (Linux 5.2). Before, there is memory.events, which also counts the events
//     of descendants. The kernel reports each change as a modification, at most every 10 ms.
//   - Version 1: memory.pressure_level reports through an eventfd that reclaim in a group finds
//     little to take (medium) or hardly anything (critical). memory.oom_control reports that it
//     found nothing.
//   - Pressure stall information (Linux 5.2): a trigger fires when tasks waited for memory for a
//     tenth of the time. The kernel checks it ten times per window. The window is half a second
//     with CAP_SYS_RESOURCE. Without, it is two seconds (Linux 6.5), and the trigger is no faster
//     than that.
//   - Usage: neither version reports that it changes. Version 1 has thresholds, but the kernel
//     takes 10 to 30 ms to set one (it waits for all CPUs), and it must be set anew once it was
//     passed. Reading an open descriptor takes half a microsecond, so [Watch.Moved] does that
//     instead.
type Watch struct {
	log          *slog.Logger
	epoll        int
	inotify      int
	byInotify    map[int32]*source // sources that inotify reports, by its watch descriptor
	byDescriptor map[int32]*source // sources that epoll reports, by descriptor
	usages       []usage           // of the group and its ancestors, the group's first
	movedCalls   int               // calls of Moved
}

// source is one of the kernel's files that reports something.
type source struct {
	limit  bool   // it is a limit; the report is that somebody wrote it
	host   bool   // it is about the whole machine
	reason string // the reason to give when it reports something

	eventsFile string           // the file of event counters, if it is one
	counts     map[string]int64 // the counters at the last look
	suffix     string           // is appended to the name of the counter that rose
}

// usage is an open file with a group's usage.
type usage struct {
	fd     int
	now    int64
	band   band // the values reported lately
	before band // the values reported before those
}

// band is the range from the lowest to the highest of some numbers.
type band struct{ low, high int64 }

// with returns the band extended to n.
func (b band) with(n int64) band { return band{min(b.low, n), max(b.high, n)} }

// bandCalls is after how many calls of Moved a new band begins.
const bandCalls = 100

// Notice is what happened since the last call of Notices.
type Notice struct {
	Limit bool // a limit was written
	// Short is why memory of the group or an ancestor is short, in the kernel's words:
	// "memory.events: high". It is empty if the kernel reported nothing.
	Short string
	Host  string // why memory of the host, or of some group on it, is short
}

// pressureTriggers are the triggers to try, in the form that the kernel takes: the time that tasks
// must wait within a window, and the window, both in microseconds. The first has the smallest
// window that the kernel accepts. The second has the smallest window that it accepts without
// CAP_SYS_RESOURCE.
var pressureTriggers = []string{"some 50000 500000", "some 200000 2000000"}

// NewWatch watches a group and the host; if g is nil, only the host. It logs what this kernel does
// not offer.
func NewWatch(g *Group, log *slog.Logger) (*Watch, error) { return newWatch(g, system{"/"}, log) }

func newWatch(g *Group, s system, log *slog.Logger) (*Watch, error) {
	w := &Watch{log: log, epoll: -1, inotify: -1, byInotify: map[int32]*source{}, byDescriptor: map[int32]*source{}}
	if err := w.start(g, s); err != nil {
		return nil, errors.Join(fmt.Errorf("watch the memory of a control group: %w", err), w.Close())
	}
	return w, nil
}

func (w *Watch) start(g *Group, s system) (err error) {
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	w.setTrigger(s.file("/proc/pressure/memory"), &source{host: true, reason: "memory pressure of the host (PSI)"})
	if g == nil {
		return nil
	}
	if w.inotify, err = unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC); err != nil {
		return err
	}
	if err := w.addToEpoll(w.inotify, unix.EPOLLIN); err != nil {
		return err
	}
	if g.v2 != (hierarchy{}) && g.v2.rel != "/" {
		w.setTrigger(g.v2.file("memory.pressure"), &source{reason: "memory pressure (PSI)"})
	}
	for i, h := range g.mem.chain() {
		where := ""
		if i > 0 {
			where = " of " + h.rel
		}
		for _, kind := range g.limitFiles() {
			err := w.watchWrites(h.file(kind.limit), &source{limit: true})
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if g.version == 1 {
			// Without "local" (Linux 4.13) an ancestor would get the reports of all groups below it.
			w.register(h, "memory.pressure_level", "medium,local", "memory.pressure_level: medium"+where)
			w.register(h, "memory.pressure_level", "critical,local", "memory.pressure_level: critical"+where)
			if i == 0 { // a group also gets the reports of its ancestors
				w.register(h, "memory.oom_control", "", "memory.oom_control: out of memory")
			}
		} else {
			w.watchCounters(h, where)
		}
		if h.rel == "/" && !g.Hidden() {
			continue // that is the usage of the whole system
		}
		if fd, err := open(h.file(g.fileNames().usage), unix.O_RDONLY); err != nil {
			w.logMissing(h.file(g.fileNames().usage), err)
		} else {
			w.usages = append(w.usages, usage{fd: fd})
		}
	}
	w.Moved(0) // the bands begin with the values of now
	return nil
}

// logMissing logs that a source is not watched.
func (w *Watch) logMissing(file string, err error) {
	w.log.Debug("not watched for changes", "file", file, "error", err)
}

// addToEpoll makes Notices ask for events of a descriptor.
func (w *Watch) addToEpoll(fd int, events uint32) error {
	return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// addSource makes Notices report the events of a descriptor as those of a source. The Watch owns
// the descriptor from then on.
func (w *Watch) addSource(fd int, events uint32, src *source) error {
	if err := w.addToEpoll(fd, events); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	w.byDescriptor[int32(fd)] = src
	return nil
}

// watchWrites watches a file for modifications, with inotify.
func (w *Watch) watchWrites(file string, src *source) error {
	wd, err := unix.InotifyAddWatch(w.inotify, file, unix.IN_MODIFY)
	if err != nil {
		return &fs.PathError{Op: "watch", Path: file, Err: err}
	}
	w.byInotify[int32(wd)] = src
	return nil
}

// watchCounters watches the event counters of a group of version 2.
func (w *Watch) watchCounters(h hierarchy, where string) {
	for _, name := range []string{"memory.events.local", "memory.events"} {
		src := &source{eventsFile: h.file(name), suffix: where}
		counts, err := readPairs(src.eventsFile)
		if err == nil {
			src.counts = counts
			err = w.watchWrites(src.eventsFile, src)
		}
		if err == nil {
			return
		}
		w.logMissing(src.eventsFile, err)
	}
}

// setTrigger sets a trigger of pressure stall information in a file.
func (w *Watch) setTrigger(file string, src *source) {
	for _, trigger := range pressureTriggers {
		err := func() error {
			fd, err := open(file, unix.O_RDWR|unix.O_NONBLOCK)
			if err != nil {
				return err
			}
			// The kernel overwrites the last byte with its own end of text.
			if _, err := unix.Write(fd, append([]byte(trigger), 0)); err != nil {
				return errors.Join(err, unix.Close(fd))
			}
			return w.addSource(fd, unix.EPOLLPRI, src)
		}()
		if err == nil {
			return
		}
		w.logMissing(file+": "+trigger, err)
	}
}

// register makes a group of version 1 signal an eventfd on events of one of its files. args selects
// the events, in the words that the file takes. reason is what Notices reports then.
func (w *Watch) register(h hierarchy, name, args, reason string) {
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
		registration := strconv.Itoa(fd) + " " + strconv.Itoa(file) + " " + args
		if err := write(h.file("cgroup.event_control"), registration); err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		// With EPOLLET each signal is one event, and the counter need not be read.
		return w.addSource(fd, unix.EPOLLIN|unix.EPOLLET, &source{reason: reason})
	}()
	if err != nil {
		w.logMissing(h.file(name)+": "+args, err)
	}
}

// Notices returns what happened since the last call. It does not block, and takes one system call
// if nothing happened.
func (w *Watch) Notices() Notice {
	var n Notice
	var ready [32]unix.EpollEvent
	count, err := unix.EpollWait(w.epoll, ready[:], 0)
	if err != nil {
		return n // interrupted
	}
	for _, e := range ready[:count] {
		if int(e.Fd) == w.inotify {
			w.readModifications(&n)
			continue
		}
		src := w.byDescriptor[e.Fd]
		if src == nil {
			continue
		}
		switch {
		case e.Events&unix.EPOLLERR != 0: // its group was removed, and epoll would report that forever
			delete(w.byDescriptor, e.Fd)
			_ = unix.Close(int(e.Fd))
		case src.host:
			n.Host = src.reason
		default:
			n.Short = src.reason
		}
	}
	return n
}

// readModifications reads inotify's events and adds them to the notice.
func (w *Watch) readModifications(n *Notice) {
	var buf [4096]byte
	for {
		got, err := unix.Read(w.inotify, buf[:])
		if err != nil || got <= 0 {
			return
		}
		// struct inotify_event has wd, mask, cookie and the length of a name that follows. No
		// directory is watched, so the length is 0.
		for at := 0; at+unix.SizeofInotifyEvent <= got; {
			wd := int32(binary.NativeEndian.Uint32(buf[at:]))
			mask := binary.NativeEndian.Uint32(buf[at+4:])
			at += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[at+12:]))
			src := w.byInotify[wd]
			switch {
			case mask&unix.IN_Q_OVERFLOW != 0:
				n.Limit = true // events were lost, perhaps that of a limit
			case src == nil || mask&unix.IN_MODIFY == 0:
			case src.limit:
				n.Limit = true
			default:
				if risen := src.findRisen(); risen != "" {
					n.Short = risen
				}
			}
		}
	}
}

// findRisen names the gravest of the counters of shortage that have risen since the last look. It
// returns "" if none has.
func (s *source) findRisen() string {
	counts, err := readPairs(s.eventsFile)
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

// Moved reports whether the usage of the group or of one of its ancestors has changed by at least
// step bytes. It compares the usage with the range of values at the calls that returned true within
// the last one to two hundred calls, and with the value at the beginning of those. So usage that
// goes up and down, as files are read and paged out, is reported only once in a while. Moved also
// returns true if a usage cannot be read any more because the group was removed. It takes one
// system call per level.
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
		case w.movedCalls == 0:
			u.band, u.before = now, now
		case moved:
			u.band = u.band.with(u.now)
		}
		if w.movedCalls%bandCalls == bandCalls-1 {
			u.band, u.before = now, u.band
		}
	}
	w.movedCalls++
	return moved
}

// Close stops watching. It takes some 20 ms if a trigger is set: the kernel waits for all CPUs.
func (w *Watch) Close() error {
	var errs []error
	for fd := range w.byDescriptor {
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
