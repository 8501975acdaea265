package ebpf

// This file reads the ring buffer: Run waits for events without disturbing the target, passes them
// on, and calls Tick in between.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"tensorcast/event"
)

const (
	// minPoll is the shortest wait for which epoll is used. It waits whole milliseconds, rounded
	// down, so shorter waits would spin.
	minPoll = 10 * time.Millisecond
	// recordHeader is what the ring buffer adds to each event, in bytes.
	recordHeader = 8
	// eventsPerCheck is how many events are handled between two looks at the clock and at ctx.
	eventsPerCheck = 64
)

// Run passes events to handle until ctx is done. Then it passes on what the ring buffer holds at
// that time and returns nil. The next Op overwrites the one that *Op points to. If handle or Tick
// returns an error, Run returns it at once. Call it once.
func (t *Tracer) Run(ctx context.Context, handle func(event.Event) error) error {
	defer close(t.ran)
	stop := context.AfterFunc(ctx, func() { t.reader.Flush() })
	defer stop()
	r := ringReader{Tracer: t, handle: handle, bytesLeft: -1}
	for {
		nextLook, err := t.lookForLibraries()
		if err != nil {
			return err
		}
		restUntil, err := r.wait(min(t.opts.Pause(), max(time.Until(nextLook), lookInterval)))
		if err != nil {
			return err
		}
		if ended, err := r.readAll(ctx, restUntil); err != nil {
			return err
		} else if ended || ctx.Err() != nil && !r.behind {
			return t.finish(handle)
		}
		if err := t.serveExecs(); err != nil {
			return err
		}
		if err := t.removeEnded(handle); err != nil {
			return err
		}
		if err := t.opts.Tick(); err != nil {
			return err
		}
	}
}

// ringReader is the state of Run.
type ringReader struct {
	*Tracer
	handle func(event.Event) error
	record ringbuf.Record
	// behind is set if events were left in the ring buffer. A handler that is slower than the
	// events come must not keep Tick from being called.
	behind bool
	// bytesLeft is, once ctx is done, the size of the events that came before; -1 until then. A
	// target that goes on sends more and more.
	bytesLeft int
}

// wait lets time pass before the ring buffer is read, and sets the reader's deadline. A long wait
// is left to the reader, which returns when the programs wake it. A short one passes in here; its
// end is returned, and with AtOnce the programs may end it early.
func (r *ringReader) wait(d time.Duration) (restUntil time.Time, err error) {
	switch {
	case r.behind:
		r.reader.SetDeadline(time.Now())
	case d >= cmp.Or(r.opts.pollFrom, minPoll):
		r.reader.SetDeadline(time.Now().Add(d))
	default:
		restUntil = time.Now().Add(d)
		if err := r.rest(d); err != nil {
			return restUntil, err
		}
		r.reader.SetDeadline(time.Now())
	}
	return restUntil, nil
}

// readAll handles the events of the ring buffer until it is empty and restUntil has come, or until
// Tick is due. ended is true if no more events are to be handled: the reader was closed, or all
// events that came before ctx was done have been handled.
func (r *ringReader) readAll(ctx context.Context, restUntil time.Time) (ended bool, err error) {
	r.behind = false
	var begun time.Time // when the first event was read
	handled := false    // events were, since the rest was measured out
	for n := 0; ; n++ {
		if n%eventsPerCheck == 1 {
			if r.bytesLeft < 0 && ctx.Err() != nil {
				r.bytesLeft = r.reader.AvailableBytes()
			}
			if begun.IsZero() {
				begun = time.Now()
			} else if time.Since(begun) >= r.opts.Interval {
				r.behind = true
				return false, nil
			}
		}
		err := r.reader.ReadInto(&r.record)
		if handled && err != nil { // what Tick has to do next may be due earlier by now
			handled = false
			if due := time.Now().Add(r.opts.Pause()); due.Before(restUntil) {
				restUntil = due
			}
		}
		remaining := time.Until(restUntil)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && remaining > 0 && r.opts.AtOnce:
			if err := r.rest(remaining); err != nil {
				return false, err
			}
			r.reader.SetDeadline(time.Now())
			begun = time.Time{}
			continue
		case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ringbuf.ErrFlushed):
			return false, nil
		case errors.Is(err, os.ErrClosed):
			return true, nil
		case err != nil:
			return false, fmt.Errorf("read the ring buffer: %w", err)
		}
		handled = true
		if err := r.dispatch(r.record.RawSample, r.handle); err != nil {
			return false, err
		}
		if r.bytesLeft >= 0 {
			if r.bytesLeft -= len(r.record.RawSample) + recordHeader; r.bytesLeft <= 0 {
				return true, nil
			}
		}
	}
}

// rest waits for less than a few milliseconds. With AtOnce it ends when the programs wake the
// reader or have left something in the ring buffer.
func (t *Tracer) rest(d time.Duration) error {
	if !t.opts.AtOnce {
		nanosleep(d)
		return nil
	}
	ring := []unix.PollFd{{Fd: int32(t.objs.Events.FD()), Events: unix.POLLIN}}
	ts := unix.NsecToTimespec(int64(max(d, 0)))
	// This is a raw call. From any other call that takes more than 20 us, Go's monitor thread takes
	// the processor (P) away. It is then woken to look again every 20 us. With a thousand calls in
	// a second that took a tenth of this process's time, beside a target whose threads spin. The
	// price of the raw call is that a garbage collection waits for it, until a signal ends the
	// call.
	_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(ring))), uintptr(len(ring)),
		uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	if errno != 0 && errno != unix.EINTR {
		return fmt.Errorf("wait for the ring buffer: %w", errno)
	}
	return nil
}

// nanosleep sleeps in the kernel. time.Sleep would park the goroutine, so that another thread has
// to wake this one. Where the target's threads spin on all processors, that other thread may wait
// for a time slice, whatever the priority of the thread that Run is locked to. A signal ends the
// sleep early, which does no harm.
func nanosleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(max(d, 0)))
	_ = unix.Nanosleep(&ts, nil)
}

// finish passes on what the programs still hold.
func (t *Tracer) finish(handle func(event.Event) error) error {
	err := t.system.drain(func(e *systemPagesEvent) error { return t.handlePages(e, handle) })
	if err != nil {
		return err
	}
	for _, p := range t.targets {
		if err := p.derived.End(handle); err != nil {
			return err
		}
	}
	return nil
}
