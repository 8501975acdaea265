package pages

// This file frees pages beside the control loop. Paging out a megabyte of single pages takes a quarter of a
// millisecond, in which a chosen expert would wait.

import (
	"context"
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
	rereads []eviction // parts of it that somebody wants by now
	closed  bool
	stopped chan struct{}
}

// eviction is a range of a file, and the address at which the target maps it.
type eviction struct {
	Range
	file    *File
	address uint64
}

// maxEvictions is how many ranges may wait.
const maxEvictions = 4096

// newEvictor begins to free what is queued, by calling free. It calls readAgain for what came to be wanted
// while it was being freed.
func newEvictor(free, readAgain func(eviction) error, log *slog.Logger) *evictor {
	e := &evictor{stopped: make(chan struct{})}
	e.work.L = &e.mu
	go e.run(free, readAgain, log)
	return e
}

func (e *evictor) run(free, readAgain func(eviction) error, log *slog.Logger) {
	defer close(e.stopped)
	// This thread is not to have the control loop's priority. It ends with its goroutine, because it stays
	// locked.
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
			err = fmt.Errorf("free %d bytes of the model: %w", r.Length, err)
			log.Log(context.Background(), level, "cannot page out", "error", err)
			level = slog.LevelDebug // if it fails once, it fails for each range
		}
		for _, part := range e.finishFreeing() {
			if err := readAgain(part); err != nil { // the target reads it by itself
				log.Debug("cannot read what was paged out too soon", "error", err)
			}
		}
	}
}

// next waits for the next range to be freed; false after close.
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

// finishFreeing notes that a range was freed. It returns those parts of it that were asked for meanwhile:
// they were in memory then, so nobody has read them.
func (e *evictor) finishFreeing() []eviction {
	e.mu.Lock()
	defer e.mu.Unlock()
	again := e.rereads
	e.freeing, e.rereads = eviction{}, nil
	if e.closed {
		return nil
	}
	return again
}

// add queues a range. It returns false if too many wait.
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

// cancel takes what overlaps r from the queue. The part of r that is being freed now is read again after
// that.
func (e *evictor) cancel(r Range) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue = slices.DeleteFunc(e.queue, func(q eviction) bool { return q.Overlaps(r) })
	if f := e.freeing; f.Overlaps(r) {
		first, end := max(f.Offset, r.Offset), min(f.End(), r.End())
		f.address += uint64(first - f.Offset)
		f.Offset, f.Length = first, end-first
		e.rereads = append(e.rereads, f)
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
