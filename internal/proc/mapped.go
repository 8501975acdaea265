package proc

// This file waits until a process maps something, without polling its memory map.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// MapWatch notices when a process maps something. The kernel reports each mapping through perf
// events (perf_event_open(2) with mmap and mmap_data, Linux 2.6.34). That includes mappings by
// threads and processes that it starts later, and mappings after an execve. A MapWatch must be used
// by one goroutine at a time.
type MapWatch struct {
	process *Process
	events  []unix.PollFd // one per thread and processor
	rings   [][]byte      // the ring buffer of each event
}

// maxWatchEvents bounds the events of a MapWatch. Each of them takes a descriptor and some 12 KiB
// of the kernel's memory. A program that has not loaded its model yet has only a few threads.
const maxWatchEvents = 512

// WatchMaps starts to watch the process's mappings. It needs CAP_PERFMON, and some systems refuse
// it altogether (seccomp in containers). Then it returns an error, and the caller has to poll the
// memory map. The error wraps ErrNoProcess if the process has ended. The process must stay open
// until Close, which the caller must call.
func (p *Process) WatchMaps() (*MapWatch, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count the processors: %w", err)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.pid))
	if err != nil {
		return nil, err
	}
	if len(tasks) > maxWatchEvents/cpus {
		return nil, fmt.Errorf("notice what process %d maps: it has %d threads, on %d processors",
			p.pid, len(tasks), cpus)
	}
	w := &MapWatch{process: p}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			continue
		}
		for cpu := range cpus {
			// A thread that has ended maps nothing, and nothing runs on a processor that is off.
			if err := w.openEvent(tid, cpu); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENODEV) {
				return nil, errors.Join(fmt.Errorf("notice what process %d maps: %w", p.pid, err), w.Close())
			}
		}
	}
	// As long as the process has not ended, nobody else can have its id, so the tasks were its own.
	if ended, err := p.Ended(); ended || err != nil || len(w.events) == 0 {
		err = fmt.Errorf("notice what process %d maps: %w", p.pid, errors.Join(ErrNoProcess, err))
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// openEvent adds an event for the mappings that one thread, and those that it starts, make on one
// processor. It takes one event per processor because the kernel gives an inherited event no ring
// buffer for all processors together.
func (w *MapWatch) openEvent(tid, cpu int) error {
	attr := unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_SOFTWARE,
		Config: unix.PERF_COUNT_SW_DUMMY,
		Bits:   unix.PerfBitInherit | unix.PerfBitMmap | unix.PerfBitMmapData | unix.PerfBitWatermark,
		Wakeup: 1, // byte, so each record wakes the reader
	}
	attr.Size = uint32(unsafe.Sizeof(attr))
	fd, err := unix.PerfEventOpen(&attr, tid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return err
	}
	// The ring is never read, but without it the kernel reports nothing. As it is mapped read-only,
	// the kernel overwrites old records.
	ring, err := unix.Mmap(fd, 0, 2*os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	w.events, w.rings = append(w.events, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}), append(w.rings, ring)
	return nil
}

// KeepWatchReady makes WatchMaps quick until the result is closed. It opens an event of the calling
// thread that reports nothing. The first event in the system makes the kernel wait for all
// processors (account_event in kernel/events/core.c calls synchronize_rcu), which took 6 to 30 ms.
// One second after the last event was closed, the next one is the first again.
func KeepWatchReady() (io.Closer, error) {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY}
	attr.Size = uint32(unsafe.Sizeof(attr))
	const thisThread, anyProcessor = 0, -1
	fd, err := unix.PerfEventOpen(&attr, thisThread, anyProcessor, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open an event of this thread: %w", err)
	}
	return os.NewFile(uintptr(fd), "event"), nil
}

// Wait returns when the process has mapped something since WatchMaps or since the last return of
// Wait. Until then it blocks a thread. It returns ctx's error when ctx is done, and an error that
// wraps ErrNoProcess if the process has ended.
func (w *MapWatch) Wait(ctx context.Context) error {
	wake, done, err := wakeAt(ctx)
	if err != nil {
		return fmt.Errorf("notice what process %d maps: %w", w.process.pid, err)
	}
	defer done()
	polled := make([]unix.PollFd, 0, len(w.events)+2)
	for ctx.Err() == nil {
		polled = append(polled[:0],
			unix.PollFd{Fd: int32(w.process.fd), Events: unix.POLLIN},
			unix.PollFd{Fd: int32(wake), Events: unix.POLLIN})
		polled = append(polled, w.events...)
		if _, err := unix.Poll(polled, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("notice what process %d maps: %w", w.process.pid, err)
		} else if err != nil {
			continue
		}
		mapped := false
		for i, e := range polled[2:] {
			mapped = mapped || e.Revents&unix.POLLIN != 0
			if e.Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0 { // its thread has ended
				// poll ignores negative descriptors. Close inverts it again.
				w.events[i].Events, w.events[i].Fd = 0, ^w.events[i].Fd
			}
		}
		switch {
		case mapped:
			return nil
		case polled[0].Revents != 0:
			return fmt.Errorf("process %d: %w", w.process.pid, ErrNoProcess)
		}
	}
	return ctx.Err()
}

// Close ends the watch. The process is not affected.
func (w *MapWatch) Close() error {
	var errs []error
	for i, e := range w.events {
		fd := int(e.Fd)
		if fd < 0 {
			fd = int(^e.Fd)
		}
		errs = append(errs, unix.Munmap(w.rings[i]), unix.Close(fd))
	}
	w.events, w.rings = nil, nil
	return errors.Join(errs...)
}
