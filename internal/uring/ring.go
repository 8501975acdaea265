package uring

// This file owns Ring: io_uring through giouring, and what giouring gets wrong.

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
	"golang.org/x/sys/unix"
)

// Ring is a Queue on one io_uring instance. It has no kernel thread that polls (SQPOLL), which would take a core from
// the target, and none of the flags that tie completions to one thread entering the kernel: a goroutine moves.
type Ring struct {
	ring *giouring.Ring // nil after Close

	// operations has a place for every completion that the completion queue can hold, so that it never overflows.
	// An operation's index is its user data. The references keep buffers alive: the kernel's are invisible to Go.
	operations []operation
	free       []uint32 // indices

	refused []Completion // not to be seen by the kernel, not reaped
}

type operation struct {
	name string
	tag  uint64
	buf  []byte
}

// New makes a ring that takes at least entries operations between two calls of Submit, rounded up to a power of two,
// and twice as many in flight. entries is 1 to 32768. It fails with ErrRefused where io_uring is not allowed.
func New(entries uint32, opts ...Option) (*Ring, error) {
	ring := giouring.NewRing()
	if err := ring.QueueInit(entries, 0); err != nil {
		err = os.NewSyscallError("io_uring_setup", err)
		for _, refusal := range []error{unix.ENOSYS, unix.EPERM, unix.EACCES} {
			if errors.Is(err, refusal) {
				return nil, fmt.Errorf("%w: %w", ErrRefused, err)
			}
		}
		return nil, err
	}
	if n := collect(opts).workers; n > 0 {
		// Bounded workers do regular files, unbounded ones sockets and pipes. giouring's own call passes 64-bit numbers
		// where the kernel reads 32-bit ones.
		limits := [2]uint32{uint32(n), uint32(n)}
		_, errno := ring.Register(ring.RingFd(), giouring.RegisterIOWQMaxWorkers, unsafe.Pointer(&limits), uint32(len(limits)))
		if errno != 0 {
			ring.QueueExit()
			return nil, fmt.Errorf("limit the workers of io_uring: %w", os.NewSyscallError("io_uring_register", errno))
		}
	}

	// The completion queue has twice the entries of the submission queue.
	capacity := 2 * ring.SQSpaceLeft()
	r := &Ring{ring: ring, operations: make([]operation, capacity), free: make([]uint32, capacity)}
	for i := range r.free {
		r.free[i] = uint32(i)
	}
	return r, nil
}

// Name returns "io_uring".
func (r *Ring) Name() string { return "io_uring" }

// Read queues a read: see Queue.
func (r *Ring) Read(fd int, buf []byte, offset int64, tag uint64) bool {
	op := operation{name: "read", tag: tag, buf: buf}
	if err := check(fd, offset, int64(len(buf))); err != nil {
		return r.refuse(op, err)
	}
	sqe := r.queue(op)
	if sqe == nil {
		return false
	}
	data := sqe.UserData
	sqe.PrepareRead(fd, uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uint32(len(buf)), uint64(offset))
	sqe.UserData = data
	return true
}

// Fadvise queues advice: see Queue.
func (r *Ring) Fadvise(fd int, offset, length int64, advice int, tag uint64) bool {
	op := operation{name: "fadvise", tag: tag}
	if err := check(fd, offset, length); err != nil {
		return r.refuse(op, err)
	}
	sqe := r.queue(op)
	if sqe == nil {
		return false
	}
	data := sqe.UserData
	sqe.PrepareFadvise(fd, uint64(offset), int(length), uint32(advice))
	sqe.UserData = data
	return true
}

// queue takes a cleared submission entry and a place for op, whose index it leaves in the entry's UserData; nil if there
// is none. giouring's Prepare functions leave alone the fields that they do not use, and the entries are used
// again: the flags of a read would be the advice that the entry held before.
func (r *Ring) queue(op operation) *giouring.SubmissionQueueEntry {
	if r.full() {
		return nil
	}
	sqe := r.ring.GetSQE()
	if sqe == nil {
		return nil
	}
	last := len(r.free) - 1
	index := r.free[last]
	r.free = r.free[:last]
	r.operations[index] = op
	*sqe = giouring.SubmissionQueueEntry{UserData: uint64(index)}
	return sqe
}

// refuse completes op without the kernel.
func (r *Ring) refuse(op operation, err error) bool {
	if r.full() {
		return false
	}
	r.refused = append(r.refused, Completion{Tag: op.tag, Err: os.NewSyscallError(op.name, err)})
	return true
}

func (r *Ring) full() bool { return r.ring == nil || r.InFlight() >= len(r.operations) }

// InFlight counts the operations queued or submitted, and not reaped.
func (r *Ring) InFlight() int { return len(r.operations) - len(r.free) + len(r.refused) }

// Submit hands what is queued to the kernel: see Queue.
func (r *Ring) Submit() (int, error) {
	if r.ring == nil {
		return 0, fmt.Errorf("submit to io_uring: %w", os.ErrClosed)
	}
	// The kernel stops behind an operation that it rejects, which gets a completion like any other.
	submitted := 0
	for r.ring.SQReady() > 0 {
		n, err := r.ring.Submit()
		submitted += int(n)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return submitted, fmt.Errorf("submit to io_uring: %w", os.NewSyscallError("io_uring_enter", err))
		}
	}
	return submitted, nil
}

// Reap collects completions: see Queue.
func (r *Ring) Reap(wait int, into []Completion) ([]Completion, error) {
	if r.ring == nil {
		return into, fmt.Errorf("reap from io_uring: %w", os.ErrClosed)
	}
	missing := min(wait, r.InFlight())
	into = append(into, r.refused...)
	missing -= len(r.refused)
	r.refused = r.refused[:0]

	if missing > 0 {
		if _, err := r.Submit(); err != nil {
			return r.drain(into), err
		}
	}
	for {
		before := len(into)
		into = r.drain(into)
		missing -= len(into) - before
		if missing <= 0 {
			return into, nil
		}
		// Go's scheduler sends its threads signals: EINTR is common.
		if _, err := r.ring.WaitCQENr(uint32(missing)); err != nil && !errors.Is(err, unix.EINTR) {
			return r.drain(into), fmt.Errorf("reap from io_uring: %w", os.NewSyscallError("io_uring_enter", err))
		}
	}
}

// drain appends the completions that are there, without a system call.
func (r *Ring) drain(into []Completion) []Completion {
	seen := uint32(0)
	r.ring.ForEachCQE(func(cqe *giouring.CompletionQueueEvent) {
		seen++
		op := &r.operations[cqe.UserData]
		c := Completion{Tag: op.tag, N: int(cqe.Res)}
		if cqe.Res < 0 {
			c.N, c.Err = 0, os.NewSyscallError(op.name, syscall.Errno(-cqe.Res))
		}
		into = append(into, c)
		*op = operation{}
		r.free = append(r.free, uint32(cqe.UserData))
	})
	r.ring.CQAdvance(seen)
	return into
}

// Close cancels or waits for what is in flight: see Queue.
func (r *Ring) Close() error {
	if r.ring == nil {
		return nil
	}
	// This call, which Linux has since 6.0, needs no submission and so leaves what is only queued there. It ends what waits
	// for a worker; a read that the disk has begun cannot be cancelled. Without it everything is waited for.
	_, _ = r.ring.RegisterSyncCancel(&giouring.SyncCancelReg{Fd: -1, Flags: giouring.AsyncCancelAny})

	submitted := len(r.operations) - len(r.free) - int(r.ring.SQReady())
	for done := r.drain(nil); len(done) < submitted; done = r.drain(done) {
		if _, err := r.ring.WaitCQENr(1); err != nil && !errors.Is(err, unix.EINTR) {
			// To return now would free buffers that the disk still writes to. Completions come without our waiting in
			// the kernel, so look again.
			time.Sleep(time.Millisecond)
		}
	}
	r.ring.QueueExit()
	*r = Ring{}
	return nil
}
