package uring

// This file implements Ring. It uses io_uring through giouring, and works around giouring's faults.

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

// Ring is a Queue on an io_uring instance. It uses no kernel thread that polls (SQPOLL), because
// that would take a core from the target. It uses no flags that bind completions to one thread,
// because goroutines move between threads.
type Ring struct {
	ring *giouring.Ring // nil after Close

	// operations has an entry for every completion that fits the completion queue, so the queue
	// never overflows. An operation's index is its user data. The entries keep the buffers alive,
	// because Go does not see the kernel's references.
	operations []operation
	free       []uint32 // indices of free entries

	refused []Completion // completed without the kernel, not yet reaped
}

// operation is one operation in flight.
type operation struct {
	name  string
	tag   uint64
	buf   []byte
	chain *chain // of a call of Madvise; else nil
}

// chain is a call of Madvise, which consists of several operations with one completion.
type chain struct {
	left int   // operations that have not completed
	err  error // the first error
}

// New creates a ring that accepts at least entries operations between two calls of Submit, rounded
// up to a power of two, and twice as many in flight. entries is 1 to 32768. It fails with
// ErrRefused if io_uring is not allowed here.
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
	if n := collectOptions(opts).workers; n > 0 {
		if err := limitWorkers(ring, n); err != nil {
			ring.QueueExit()
			return nil, err
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

// limitWorkers limits the kernel's workers of the ring, both bounded ones (for regular files) and
// unbounded ones (for sockets and pipes). giouring's own function passes 64-bit numbers where the
// kernel reads 32-bit ones.
func limitWorkers(ring *giouring.Ring, n int) error {
	limits := [2]uint32{uint32(n), uint32(n)}
	_, errno := ring.Register(ring.RingFd(), giouring.RegisterIOWQMaxWorkers,
		unsafe.Pointer(&limits), uint32(len(limits)))
	if errno != 0 {
		return fmt.Errorf("limit the workers of io_uring: %w", os.NewSyscallError("io_uring_register", errno))
	}
	return nil
}

// SetWorkers implements Queue.
func (r *Ring) SetWorkers(n int) error {
	if r.ring == nil {
		return fmt.Errorf("limit the workers of io_uring: %w", os.ErrClosed)
	}
	return limitWorkers(r.ring, max(n, 1))
}

// Name returns "io_uring".
func (r *Ring) Name() string { return "io_uring" }

// Read queues a read: see Queue.
func (r *Ring) Read(fd int, buf []byte, offset int64, tag uint64) bool {
	op := operation{name: "read", tag: tag, buf: buf}
	if err := checkRange(fd, offset, int64(len(buf))); err != nil {
		return r.refuse(op, err)
	}
	sqe := r.enqueue(op)
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
	if err := checkRange(fd, offset, length); err != nil {
		return r.refuse(op, err)
	}
	sqe := r.enqueue(op)
	if sqe == nil {
		return false
	}
	data := sqe.UserData
	sqe.PrepareFadvise(fd, uint64(offset), int(length), uint32(advice))
	sqe.UserData = data
	return true
}

// Madvise queues memory advice: see Queue. The operations are linked, so that the kernel begins
// each when the previous one has completed or failed (IOSQE_IO_HARDLINK, Linux 5.5). A chain of
// links ends with a submission, so Submit must pass all of it on at once.
func (r *Ring) Madvise(mem []byte, advices []int, tag uint64) bool {
	op := operation{name: "madvise", tag: tag, buf: mem, chain: &chain{left: len(advices)}}
	if len(advices) == 0 || int64(len(mem)) > MaxLength {
		return r.refuse(op, unix.EINVAL)
	}
	if r.ring == nil || r.InFlight()+len(advices) > len(r.operations) ||
		int(r.ring.SQSpaceLeft()) < len(advices) {
		return false
	}
	for i, advice := range advices {
		sqe := r.enqueue(op)
		data := sqe.UserData
		sqe.PrepareMadvise(uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uint(len(mem)), advice)
		sqe.UserData = data
		if i < len(advices)-1 {
			sqe.Flags |= giouring.SqeIOHardlink
		}
	}
	return true
}

// enqueue stores op in a free entry of operations and returns a cleared submission entry whose
// UserData is its index. It returns nil if there is no room. The entry must be cleared because
// entries are reused, and giouring's Prepare functions do not set fields that they do not use.
// Otherwise a read would take the former entry's advice for its flags.
func (r *Ring) enqueue(op operation) *giouring.SubmissionQueueEntry {
	if r.isFull() {
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

// refuse completes op with an error, without the kernel.
func (r *Ring) refuse(op operation, err error) bool {
	if r.isFull() {
		return false
	}
	r.refused = append(r.refused, Completion{Tag: op.tag, Err: os.NewSyscallError(op.name, err)})
	return true
}

func (r *Ring) isFull() bool { return r.ring == nil || r.InFlight() >= len(r.operations) }

// InFlight is the number of operations that are queued or submitted and have not been reaped.
func (r *Ring) InFlight() int { return len(r.operations) - len(r.free) + len(r.refused) }

// Submit passes the queued operations to the kernel: see Queue.
func (r *Ring) Submit() (int, error) {
	if r.ring == nil {
		return 0, fmt.Errorf("submit to io_uring: %w", os.ErrClosed)
	}
	// The kernel stops after an operation that it rejects. That operation completes like any other.
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
		missing = min(missing-(len(into)-before), r.InFlight()) // several operations may have one completion
		if missing <= 0 {
			return into, nil
		}
		// Go's scheduler sends signals to its threads, so EINTR is common.
		if _, err := r.ring.WaitCQENr(uint32(missing)); err != nil && !errors.Is(err, unix.EINTR) {
			return r.drain(into), fmt.Errorf("reap from io_uring: %w", os.NewSyscallError("io_uring_enter", err))
		}
	}
}

// drain appends the available completions, without a system call.
func (r *Ring) drain(into []Completion) []Completion {
	seen := uint32(0)
	r.ring.ForEachCQE(func(cqe *giouring.CompletionQueueEvent) {
		seen++
		op := &r.operations[cqe.UserData]
		c := Completion{Tag: op.tag, N: int(cqe.Res)}
		if cqe.Res < 0 {
			c.N, c.Err = 0, os.NewSyscallError(op.name, syscall.Errno(-cqe.Res))
		}
		if op.chain != nil {
			op.chain.left--
			if op.chain.err == nil {
				op.chain.err = c.Err
			}
			c.Err = op.chain.err
		}
		if op.chain == nil || op.chain.left == 0 {
			into = append(into, c)
		}
		*op = operation{}
		r.free = append(r.free, uint32(cqe.UserData))
	})
	r.ring.CQAdvance(seen)
	return into
}

// Close cancels operations or waits for them: see Queue.
func (r *Ring) Close() error {
	if r.ring == nil {
		return nil
	}
	// This request (Linux 6.0) cancels operations that wait for a worker. A read that the disk has
	// begun cannot be cancelled. The request is not a submission, so operations that are only
	// queued stay so. On older kernels Close waits for everything.
	_, _ = r.ring.RegisterSyncCancel(&giouring.SyncCancelReg{Fd: -1, Flags: giouring.AsyncCancelAny})

	queued := int(r.ring.SQReady())
	for r.drain(nil); len(r.operations)-len(r.free) > queued; r.drain(nil) {
		if _, err := r.ring.WaitCQENr(1); err != nil && !errors.Is(err, unix.EINTR) {
			// Returning now would free buffers that the disk still writes to. Completions arrive
			// even if nobody waits in the kernel, so look again.
			time.Sleep(time.Millisecond)
		}
	}
	r.ring.QueueExit()
	*r = Ring{}
	return nil
}
