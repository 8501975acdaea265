// Package pace measures how fast this machine's processors can go through weights: how many bytes per second memory
// delivers to all threads together, and how many products a thread makes of what is in its cache. ggml does one or the
// other with each weight, whichever takes longer. Package forecast says how long ggml then takes.
package pace

// This file measures, for moments of less than a second.

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/vec"
)

const (
	// MaxBytes is how much memory is read in turn: several times the caches of most processors. With less memory to
	// spare, a quarter of that is used, but no less than minBytes.
	MaxBytes = 256 << 20
	minBytes = 32 << 20
	// chunkBytes is what a thread takes at a time, as ggml's threads take rows of a matrix.
	chunkBytes = 1 << 20
	// rowFloats is how many elements are multiplied at once. So many lie in the cache nearest to a processor.
	rowFloats = 4096
	floatSize = 4
)

// ErrMemory says that there is too little memory to measure it.
var ErrMemory = errors.New("too little memory to measure how fast it is")

// Pace is how fast threads are that do nothing else. It goes by the processors' time of these threads, so that it is
// the same on a machine that others keep busy. What memory delivers to others meanwhile is missing all the same.
type Pace struct {
	Threads int `json:"threads"`
	// Memory is how many bytes per second come from memory to all threads together.
	Memory float64 `json:"memory_bytes_per_second"`
	// Products is how many products of two float32 per second one thread makes and adds up, in its cache.
	Products float64 `json:"products_per_second"`
	// Share is which share of the time the threads had a processor each. On a machine that does nothing else it is
	// nearly 1.
	Share float64 `json:"processor_share"`
}

// Reader reads memory with several threads, again and again. It holds its memory until Close. It is for one goroutine.
type Reader struct {
	threads int
	rows    []float32
	free    func() error
}

// NewReader takes memory to read: a quarter of spare bytes, at most MaxBytes. The error wraps ErrMemory if that is too
// little, or is the kernel's.
func NewReader(threads int, spare int64) (*Reader, error) {
	bytes := min(spare/4, MaxBytes) / chunkBytes * chunkBytes
	if bytes < minBytes {
		return nil, fmt.Errorf("%w: it takes %d MiB", ErrMemory, 4*minBytes>>20)
	}
	buffer, free, err := pagecache.DirectBuffer(int(bytes))
	if err != nil {
		return nil, err
	}
	r := &Reader{threads: max(threads, 1), free: free}
	// The buffer is aligned to its pages, so it is to floats.
	r.rows = unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(buffer))), len(buffer)/floatSize)
	for i := range r.rows { // numbers as weights have them: others may take a processor longer
		r.rows[i] = 1
	}
	return r, nil
}

// Close gives the memory back.
func (r *Reader) Close() error { return r.free() }

// Measure measures memory and products, each for so long. The error is ctx's.
func (r *Reader) Measure(ctx context.Context, each time.Duration) (Pace, error) {
	p := Pace{Threads: r.threads}
	var err error
	reading, stop := context.WithTimeout(ctx, each)
	defer stop()
	p.Memory, p.Share = r.read(reading)
	if err := ctx.Err(); err != nil {
		return p, err
	}
	p.Products, err = multiply(ctx, r.rows[:rowFloats], each)
	return p, err
}

// multiply multiplies what is in a cache for so much of a processor's time.
func multiply(ctx context.Context, row []float32, each time.Duration) (perSecond float64, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begun, products := threadTime(), 0
	used := time.Duration(0)
	for ; used < each && ctx.Err() == nil; used = threadTime() - begun {
		for range 64 {
			keep(vec.Dot(row, row))
			products += rowFloats
		}
	}
	return float64(products) / used.Seconds(), ctx.Err()
}

// Beside reads memory until work is over, and returns how many bytes per second came meanwhile. The error is that of
// work or ctx's. Go's scheduler may run as many threads more as work needs for that time (runtime.GOMAXPROCS):
// otherwise whoever waits for a disk would wait for a reader's turn to end, too, where the kernel lets it run at once.
func (r *Reader) Beside(
	ctx context.Context, more int, work func(context.Context) error,
) (perSecond float64, err error) {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(before + r.threads + more)
	defer runtime.GOMAXPROCS(before)
	reading, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	group.Go(func() error {
		perSecond, _ = r.read(reading)
		return nil
	})
	err = work(ctx)
	stop()
	err = errors.Join(err, group.Wait(), ctx.Err()) // before perSecond is read
	return perSecond, err
}

// read reads until ctx ends. It returns how many bytes came per second of the threads' own time, and which share of the
// time that was.
func (r *Reader) read(ctx context.Context) (perSecond, share float64) {
	const chunk = chunkBytes / floatSize
	chunks := int64(len(r.rows) / chunk)
	var next, bytes, used atomic.Int64
	begun := time.Now()
	var group errgroup.Group
	for range r.threads {
		group.Go(func() error {
			runtime.LockOSThread() // its time is this goroutine's
			defer runtime.UnlockOSThread()
			before := threadTime()
			with := make([]float32, rowFloats) // what a token brings, in this thread's cache
			for ctx.Err() == nil {
				at := (next.Add(1) - 1) % chunks * chunk
				for row := at; row < at+chunk; row += rowFloats {
					keep(vec.Dot(with, r.rows[row:row+rowFloats]))
				}
				bytes.Add(chunkBytes)
			}
			used.Add(int64(threadTime() - before))
			return nil
		})
	}
	_ = group.Wait() // the threads have no errors
	each := time.Duration(used.Load()) / time.Duration(r.threads)
	return float64(bytes.Load()) / max(each.Seconds(), 1e-6), each.Seconds() / time.Since(begun).Seconds()
}

// threadTime is how much processors' time this thread has had. (The clock cannot fail.)
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// keep takes a result, so that the compiler does not drop what makes it.
//
//go:noinline
func keep(float32) {}
