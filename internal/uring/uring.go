// Package uring passes many file reads, and advice on page cache and memory, to the kernel at once
// ([Queue]). It uses io_uring. Where that is refused, a few goroutines call pread, posix_fadvise
// and madvise. [Open] chooses. Package prefetch uses it.
//
// It is the only package that imports giouring, which links only with -ldflags=-checklinkname=0.
//
// Lifetime: from Read until the completion with its tag has been reaped, or Close has returned, a
// buffer belongs to the kernel and must not be read or written. The queue keeps a reference, so the
// buffer is not collected. The file descriptor must stay open for the same time.
//
// Goroutines: a queue may be used by one goroutine at a time. The kernel binds a ring's work to the
// thread that submitted it. When that thread ends, work that its kernel workers have not begun is
// cancelled (ECANCELED). In Go, a thread ends only if a goroutine ends that is locked to it.
//
// Forks: the ring's descriptor is close-on-exec, so commands started with os/exec do not inherit
// it.
package uring

// This file defines the parts common to both implementations: Queue, Open, options and errors.

import (
	"errors"
	"io"
	"math"

	"golang.org/x/sys/unix"
)

// MaxLength is the largest length of a Read or Fadvise in bytes: the kernel's field has 32 bits.
const MaxLength = 1 << 30

// ErrRefused says that io_uring is not allowed: by this kernel, its administrator
// (kernel.io_uring_disabled), or a security profile such as a container's.
var ErrRefused = errors.New("io_uring is refused here")

// Completion is the result of one operation.
type Completion struct {
	Tag uint64
	N   int   // Read: bytes read, fewer than requested only at the end of the file; else 0
	Err error // wraps a syscall.Errno; EINVAL for a negative offset or length, or a length above MaxLength
}

// Queue lets the kernel execute operations while the caller does something else. Operations run and
// complete in any order. A Queue is not safe for concurrent use.
type Queue interface {
	// Name is "io_uring" or "system calls".
	Name() string

	// Read queues a read of len(buf) bytes at offset. If the queue is full, it does nothing and
	// returns false: then call Submit if operations are only queued, or Reap if too many are in
	// flight. With a descriptor opened with O_DIRECT, buf, its length and offset must be aligned as
	// the file system requires.
	Read(fd int, buf []byte, offset int64, tag uint64) bool

	// Fadvise queues posix_fadvise(2) with one of unix.FADV_*; length 0 means up to the end of the
	// file. It returns false as Read does. WILLNEED completes when the reads have been started, not
	// when they are done; it covers no more than the first max(read_ahead_kb, largest request) of
	// the device, so longer ranges need several calls. DONTNEED does not drop pages that are
	// mapped, locked, dirty or being read.
	Fadvise(fd int, offset, length int64, advice int, tag uint64) bool

	// Madvise queues madvise(2) on mem with each of advices (unix.MADV_*), one after the other. A
	// failure does not stop the next one. mem begins on a page of a mapping, which must stay for as
	// long as a buffer of Read. Madvise returns false as Read does. There is one completion, when
	// all are done; its error is the first one. Kernel workers act on behalf of this process: they
	// charge reads to its control group, and fill its page tables.
	Madvise(mem []byte, advices []int, tag uint64) bool

	// Submit passes the queued operations to the kernel and returns their number. After an error
	// the rest is still queued.
	Submit() (int, error)

	// Reap appends the available completions to into. It waits until there are at least wait of
	// them, or all, if fewer are in flight. If it may have to wait, it first submits the queued
	// operations. Even with an error it appends the available completions.
	Reap(wait int, into []Completion) ([]Completion, error)

	// SetWorkers sets the number of threads that block on behalf of the queue (see WithWorkers) to n,
	// at least 1. A ring's existing workers stay until they have been idle for some seconds. The
	// fallback ignores it and keeps the number that it was opened with.
	SetWorkers(n int) error

	// InFlight is the number of operations that are queued or submitted and have not been reaped;
	// each advice of Madvise is one.
	InFlight() int

	// Close drops queued operations, cancels others where possible and waits for the rest. Their
	// completions are lost. After that, nothing uses a buffer or descriptor any more. Later calls
	// of Read, Fadvise and Madvise return false, and Submit and Reap fail with os.ErrClosed. The
	// error is always nil.
	io.Closer
}

// Option configures New and Open.
type Option func(*options)

type options struct {
	workers int // 0: the implementation's default
}

// WithWorkers limits the number of threads that block on behalf of the queue to n, if n is above 0.
// In a ring these are the kernel's workers. They execute all Fadvise, but only those reads that
// cannot start at once. In the fallback these are the goroutines, which do everything. The ring's
// limit applies to each thread that submits: lock the goroutine to its thread for an exact limit.
func WithWorkers(n int) Option { return func(o *options) { o.workers = n } }

func collectOptions(opts []Option) options {
	var o options
	for _, set := range opts {
		set(&o)
	}
	return o
}

// Open returns a queue that accepts at least entries operations between two calls of Submit, and
// twice as many in flight. It is a Ring, or the fallback if New fails with ErrRefused.
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

// checkRange rejects values that do not fit the kernel's narrower fields, and offset -1, which
// would mean the file position.
func checkRange(fd int, offset, length int64) error {
	if fd < 0 || fd > math.MaxInt32 {
		return unix.EBADF
	}
	if offset < 0 || length < 0 || length > MaxLength {
		return unix.EINVAL
	}
	return nil
}
