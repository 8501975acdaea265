// Package uring gives the kernel many file reads and pieces of page-cache advice at a time: through io_uring, or where
// that is refused through a few goroutines that call pread and posix_fadvise.
//
// It is the only package that imports giouring, which links only with -ldflags=-checklinkname=0.
//
// Lifetime: a buffer belongs to the kernel from Read until the completion with its tag was reaped or Close returned.
// The queue refers to it until then, so that it stays allocated; it must not be read or written. The descriptor must
// stay open as long.
//
// Goroutines: a queue belongs to one goroutine at a time. The kernel binds a ring's work to the operating system
// thread that submitted it: the worker threads belong to that thread, and what they have not begun is cancelled
// (ECANCELED) when the thread ends. Go threads end only when a goroutine ends that is locked to its thread.
//
// Forks: the ring's descriptor is close-on-exec, so commands that os/exec starts do not have it.
package uring

// This file owns what callers see whichever implementation they got: Queue, Open, the options and the errors.

import (
	"errors"
	"io"
	"math"

	"golang.org/x/sys/unix"
)

// MaxLength is the longest Read or Fadvise in bytes: the kernel's field for it has 32 bits.
const MaxLength = 1 << 30

// ErrRefused says that this kernel, its administrator (kernel.io_uring_disabled) or a security profile, such as that of
// a container, does not allow io_uring.
var ErrRefused = errors.New("io_uring is refused here")

// Completion is the end of one operation.
type Completion struct {
	Tag uint64
	N   int   // Read: bytes read, less than asked for only at the end of the file; Fadvise: 0
	Err error // wraps a syscall.Errno; EINVAL for a negative offset or length or one above MaxLength
}

// Queue has operations done by the kernel while its caller does something else. Operations run and complete in any
// order. Not safe for concurrent use.
type Queue interface {
	// Name is "io_uring" or "posix_fadvise".
	Name() string

	// Read queues a read of len(buf) bytes at offset. It returns false, and does nothing, if the queue is full: Submit
	// if operations are only queued, Reap if too many are in flight. With a descriptor opened with O_DIRECT, buf, its
	// length and offset must be aligned as the file system demands.
	Read(fd int, buf []byte, offset int64, tag uint64) bool

	// Fadvise queues posix_fadvise(2) with one of unix.FADV_*; length 0 means up to the end of the file. It returns
	// false as Read does. WILLNEED completes once the reads were started, not when they are done; it covers no more than
	// the first max(read_ahead_kb, largest request) of the device, so longer ranges need several calls. DONTNEED
	// leaves pages that are mapped, locked, dirty or being read.
	Fadvise(fd int, offset, length int64, advice int, tag uint64) bool

	// Submit hands what is queued to the kernel and returns how many operations that was. After an error the rest is
	// still queued.
	Submit() (int, error)

	// Reap appends the completions that are there to into, once there are at least wait of them or, if fewer are
	// in flight, all. If it may have to wait it submits what is queued first. With an error it still appends what
	// is there.
	Reap(wait int, into []Completion) ([]Completion, error)

	// InFlight is the number of operations queued or submitted, and not reaped.
	InFlight() int

	// Close drops what is queued, cancels what can be cancelled and waits for the rest, without reporting either. Then
	// nothing uses a buffer or descriptor any more. Later calls of Read and Fadvise return false, Submit and Reap
	// fail with os.ErrClosed. The error is always nil.
	io.Closer
}

// Option changes what New and Open make.
type Option func(*options)

type options struct {
	workers int // 0: the implementation's own choice
}

// WithWorkers limits to n (if it is above 0) the threads that block on behalf of the queue: on the ring the kernel's workers, which
// do all Fadvise but only the reads that cannot start at once; in the fallback the goroutines, which do everything.
// The ring's limit holds for each thread that submits: lock the goroutine to its thread if it must hold exactly.
func WithWorkers(n int) Option { return func(o *options) { o.workers = n } }

func collect(opts []Option) options {
	var o options
	for _, set := range opts {
		set(&o)
	}
	return o
}

// Open returns a queue that takes at least entries operations between two calls of Submit, and twice as many in
// flight: a Ring, or where New fails with ErrRefused the fallback.
func Open(entries uint32, opts ...Option) (Queue, error) {
	ring, err := New(entries, opts...)
	switch {
	case err == nil:
		return ring, nil
	case errors.Is(err, ErrRefused):
		return newPool(entries, opts...), nil
	default:
		return nil, err
	}
}

// check refuses what would mean something else in the kernel's narrower fields, or at offset -1, the file position.
func check(fd int, offset, length int64) error {
	if fd < 0 || fd > math.MaxInt32 {
		return unix.EBADF
	}
	if offset < 0 || length < 0 || length > MaxLength {
		return unix.EINVAL
	}
	return nil
}
