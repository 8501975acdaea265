package proc

// This file notices at once that a process maps something, without looking at it again and again.

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

// MapWatch notices when a process maps something: the kernel tells it of each mapping (perf_event_open(2) with mmap and mmap_data, Linux 2.6.34), also of those by threads, and by processes,
// that it starts later, and after an execve. It is for one goroutine.
type MapWatch struct {
	process *Process
	events  []unix.PollFd // one for each thread and processor
	rings   [][]byte
}

// mostWatched bounds the events of a MapWatch, each of which takes a descriptor and some 12 KiB of the kernel's memory. One that waits for its model has a thread or a few.
const mostWatched = 512

// WatchMaps begins to notice. It needs CAP_PERFMON, and some systems refuse it altogether (seccomp in containers): then the error says so, and the process has to be looked at. The error wraps
// ErrNoProcess if it has ended. The process must stay open until Close, which the caller must call.
func (p *Process) WatchMaps() (*MapWatch, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count the processors: %w", err)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.pid))
	if err != nil {
		return nil, err
	}
	if len(tasks) > mostWatched/cpus {
		return nil, fmt.Errorf("notice what process %d maps: it has %d threads, on %d processors", p.pid, len(tasks), cpus)
	}
	w := &MapWatch{process: p}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			continue
		}
		for cpu := range cpus {
			// A thread that has ended maps nothing, and nothing runs on a processor that is off.
			if err := w.open(tid, cpu); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENODEV) {
				return nil, errors.Join(fmt.Errorf("notice what process %d maps: %w", p.pid, err), w.Close())
			}
		}
	}
	// As long as this process holds no other by that id, the tasks were its own.
	if ended, err := p.Ended(); ended || err != nil || len(w.events) == 0 {
		return nil, errors.Join(fmt.Errorf("notice what process %d maps: %w", p.pid, errors.Join(ErrNoProcess, err)), w.Close())
	}
	return w, nil
}

// open notices what one thread, and those that it starts, map on one processor: what is inherited cannot be read for all processors together.
func (w *MapWatch) open(tid, cpu int) error {
	attr := unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_SOFTWARE,
		Config: unix.PERF_COUNT_SW_DUMMY,
		Bits:   unix.PerfBitInherit | unix.PerfBitMmap | unix.PerfBitMmapData | unix.PerfBitWatermark,
		Wakeup: 1, // byte: each record wakes
	}
	attr.Size = uint32(unsafe.Sizeof(attr))
	fd, err := unix.PerfEventOpen(&attr, tid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return err
	}
	// It is not read, but without it nothing is told. As it cannot be written here, the kernel overwrites what is old.
	ring, err := unix.Mmap(fd, 0, 2*os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	w.events, w.rings = append(w.events, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}), append(w.rings, ring)
	return nil
}

// EaseWatch makes WatchMaps quick from its return on until it is closed. The first event of any thread makes the kernel wait for all processors (account_event in kernel/events/core.c:
// synchronize_rcu), 6 to 30 ms here; a second after the last is gone the next one is the first again. So this opens one, of the calling thread, that tells of nothing. The error says that it could not.
func EaseWatch() (io.Closer, error) {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY}
	attr.Size = uint32(unsafe.Sizeof(attr))
	const thisThread, anyProcessor = 0, -1
	fd, err := unix.PerfEventOpen(&attr, thisThread, anyProcessor, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open an event of this thread: %w", err)
	}
	return os.NewFile(uintptr(fd), "event"), nil
}

// Wait returns when the process has mapped something since WatchMaps, or since Wait returned last. It sleeps until then, on this thread. It returns ctx's error, or one that wraps ErrNoProcess if
// the process has ended.
func (w *MapWatch) Wait(ctx context.Context) error {
	wake, done, err := wakeAt(ctx)
	if err != nil {
		return fmt.Errorf("notice what process %d maps: %w", w.process.pid, err)
	}
	defer done()
	polled := make([]unix.PollFd, 0, len(w.events)+2)
	for ctx.Err() == nil {
		polled = append(polled[:0], unix.PollFd{Fd: int32(w.process.fd), Events: unix.POLLIN}, unix.PollFd{Fd: int32(wake), Events: unix.POLLIN})
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
				w.events[i].Events, w.events[i].Fd = 0, ^w.events[i].Fd // poll ignores negative descriptors; Close finds it again
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

// Close ends it; the process is not affected.
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
