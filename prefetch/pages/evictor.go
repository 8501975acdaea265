package pages

// This file frees pages beside the control loop: paging a megabyte of single pages out takes a quarter of a
// millisecond, in which a chosen expert would wait.

import (
	gocontext "context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// evictor frees ranges in a goroutine of its own, which close stops.
type evictor struct {
	mu      sync.Mutex
	work    sync.Cond
	queue   []eviction
	freeing eviction   // the range that is being freed; empty: none
	again   []eviction // parts of it that are wanted by now
	closed  bool
	stopped chan struct{}
}

// eviction is a range of a file, and the address at which the target maps it.
type eviction struct {
	Range
	file    *File
	address uint64
}

// maxEvictions may wait.
const maxEvictions = 4096

// newEvictor begins to free what is queued, by free. read reads again what came to be wanted while it was being freed.
func newEvictor(free, read func(eviction) error, log *slog.Logger) *evictor {
	e := &evictor{stopped: make(chan struct{})}
	e.work.L = &e.mu
	go func() {
		defer close(e.stopped)
		// The loop's priority is not for this. The thread ends with its goroutine, as it stays locked.
		runtime.LockOSThread()
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 0); err != nil {
			log.Debug("cannot lower the priority of the thread that pages out", "error", err)
		}
		level := slog.LevelWarn
		for {
			r, ok := e.next()
			if !ok {
				return
			}
			if err := free(r); err != nil {
				log.Log(gocontext.Background(), level, "cannot page out", "error", fmt.Errorf("free %d bytes of the model: %w", r.Length, err))
				level = slog.LevelDebug // what fails does so for each
			}
			for _, part := range e.freed() {
				if err := read(part); err != nil { // the target reads it by itself
					log.Debug("cannot read what was paged out too soon", "error", err)
				}
			}
		}
	}()
	return e
}

func (e *evictor) next() (eviction, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.queue) == 0 && !e.closed {
		e.work.Wait()
	}
	if e.closed {
		return eviction{}, false
	}
	e.freeing = e.queue[0]
	e.queue = slices.Delete(e.queue, 0, 1)
	return e.freeing, true
}

// freed notes that a range was freed, and returns those parts of it that came to be wanted meanwhile: whoever asked
// for them then found them in memory.
func (e *evictor) freed() []eviction {
	e.mu.Lock()
	defer e.mu.Unlock()
	again := e.again
	e.freeing, e.again = eviction{}, nil
	if e.closed {
		return nil
	}
	return again
}

// add queues a range; false if too many wait.
func (e *evictor) add(r eviction) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) >= maxEvictions {
		return false
	}
	e.queue = append(e.queue, r)
	e.work.Signal()
	return true
}

// spare forgets what waits to be freed and overlaps r. What of r is being freed now is read again after that.
func (e *evictor) spare(r Range) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue = slices.DeleteFunc(e.queue, func(q eviction) bool { return q.Overlaps(r) })
	if f := e.freeing; f.Overlaps(r) {
		first, end := max(f.Offset, r.Offset), min(f.End(), r.End())
		f.address += uint64(first - f.Offset)
		f.Offset, f.Length = first, end-first
		e.again = append(e.again, f)
	}
}

// close drops what waits, and returns when nothing is being freed any more.
func (e *evictor) close() {
	e.mu.Lock()
	e.closed = true
	e.work.Signal()
	e.mu.Unlock()
	<-e.stopped
}
