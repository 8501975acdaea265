package uring

// This file implements pool, the Queue that is used where io_uring is refused.

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// poolWorkers is the default number of goroutines. Each occupies a thread while it is in the
// kernel. Advice on files blocks only until the reads are started, so a few suffice. Populating
// memory by as many reads of 2 MiB at once keeps a disk busy, too.
const poolWorkers = 4

// pool is a Queue whose operations are plain system calls of a few goroutines. Close ends the
// goroutines.
type pool struct {
	entries  int
	inFlight int
	queued   []call

	// Both channels have room for all operations in flight, so neither Submit nor a worker ever
	// blocks on them.
	calls chan call // nil after Close
	done  chan Completion

	closing atomic.Bool // workers drop calls that have not begun
	workers sync.WaitGroup
}

// call is an operation on its way to a worker.
type call struct {
	name string
	tag  uint64
	do   func() (int, error)
}

func newPool(entries uint32, opts ...Option) *pool {
	p := &pool{
		entries: int(max(entries, 1)),
		calls:   make(chan call, 2*max(entries, 1)),
		done:    make(chan Completion, 2*max(entries, 1)),
	}
	n := collectOptions(opts).workers
	if n <= 0 {
		n = poolWorkers
	}
	for range min(n, cap(p.calls)) {
		p.workers.Go(func() { p.execute(p.calls) })
	}
	return p
}

// execute executes calls until the channel is closed.
func (p *pool) execute(calls <-chan call) {
	for c := range calls {
		if p.closing.Load() {
			continue
		}
		n, err := c.do()
		for errors.Is(err, unix.EINTR) {
			n, err = c.do()
		}
		if err != nil {
			n, err = 0, os.NewSyscallError(c.name, err)
		}
		p.done <- Completion{Tag: c.tag, N: n, Err: err}
	}
}

func (p *pool) SetWorkers(int) error { return nil }

func (p *pool) Name() string { return "system calls" }

func (p *pool) Read(fd int, buf []byte, offset int64, tag uint64) bool {
	return p.enqueue(call{name: "read", tag: tag, do: func() (int, error) {
		if err := checkRange(fd, offset, int64(len(buf))); err != nil {
			return 0, err
		}
		return unix.Pread(fd, buf, offset)
	}})
}

func (p *pool) Fadvise(fd int, offset, length int64, advice int, tag uint64) bool {
	return p.enqueue(call{name: "fadvise", tag: tag, do: func() (int, error) {
		if err := checkRange(fd, offset, length); err != nil {
			return 0, err
		}
		return 0, unix.Fadvise(fd, offset, length, advice)
	}})
}

func (p *pool) Madvise(mem []byte, advices []int, tag uint64) bool {
	return p.enqueue(call{name: "madvise", tag: tag, do: func() (int, error) {
		if len(advices) == 0 || int64(len(mem)) > MaxLength {
			return 0, unix.EINVAL
		}
		var first error
		for _, advice := range advices {
			err := unix.Madvise(mem, advice)
			for errors.Is(err, unix.EINTR) {
				err = unix.Madvise(mem, advice)
			}
			if first == nil {
				first = err
			}
		}
		return 0, first
	}})
}

// enqueue adds a call to the queued ones. It returns false if there is no room.
func (p *pool) enqueue(c call) bool {
	if p.calls == nil || len(p.queued) == p.entries || p.inFlight == cap(p.calls) {
		return false
	}
	p.queued = append(p.queued, c)
	p.inFlight++
	return true
}

func (p *pool) Submit() (int, error) {
	if p.calls == nil {
		return 0, fmt.Errorf("submit: %w", os.ErrClosed)
	}
	n := len(p.queued)
	for _, c := range p.queued {
		p.calls <- c
	}
	clear(p.queued) // drop references to buffers
	p.queued = p.queued[:0]
	return n, nil
}

func (p *pool) Reap(wait int, into []Completion) ([]Completion, error) {
	if p.calls == nil {
		return into, fmt.Errorf("reap: %w", os.ErrClosed)
	}
	wait = min(wait, p.inFlight)
	if wait > len(p.done) {
		if _, err := p.Submit(); err != nil {
			return into, err
		}
	}
	for wait > 0 || len(p.done) > 0 {
		into = append(into, <-p.done)
		p.inFlight--
		wait--
	}
	return into, nil
}

func (p *pool) InFlight() int { return p.inFlight }

func (p *pool) Close() error {
	if p.calls == nil {
		return nil
	}
	p.closing.Store(true)
	close(p.calls)
	p.workers.Wait()
	p.calls, p.queued, p.inFlight = nil, nil, 0
	return nil
}
