package costs

// This file measures for a moment what a target waits for: for what its own faults read, and for the slices of experts
// that a router has chosen.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/internal/stats"
	"tensorcast/internal/uring"
	"tensorcast/prefetch/pages"
)

const (
	// briefRounds is how many rounds MeasureBriefly makes of each way.
	briefRounds = 2
	// touchTime and touchBytes bound what is read by faults.
	touchTime  = 400 * time.Millisecond
	touchBytes = 256 << 20
	// touchChunk is what a thread touches at a time. ggml's threads take 64 rows of a matrix, some 100 KiB to 1 MiB
	// (ggml_compute_forward_mul_mat).
	touchChunk = 256 << 10
	// gatherTime and gatherTurns bound how often slices are gathered.
	gatherTime  = 250 * time.Millisecond
	gatherTurns = 200
)

// MeasureBriefly is Measure with fewer rounds. It takes about half a second on a fast disk.
func MeasureBriefly(ctx context.Context, at proc.Place) (*Costs, error) {
	spare, level, err := SpareMemory()
	if err != nil {
		return nil, fmt.Errorf("ask how much memory is free: %w", err)
	}
	return measureWithin(ctx, at, costLimits{part: maxRoundBytes, rounds: briefRounds, spare: spare, level: level})
}

// TouchRate returns how many bytes per second of a file come from disk if several threads touch them in order and wait
// for their own faults, as llama.cpp does without help. What the kernel reads around a fault is as the disk's readahead
// says. Only what is not in memory is touched, up to 256 MiB for 0.4 s, and no more than a quarter of the memory to
// spare. It is dropped again. The conditions and errors are those of Measure.
func TouchRate(ctx context.Context, at proc.Place, threads int) (perSecond float64, err error) {
	spare, level, err := SpareMemory()
	if err != nil {
		return 0, fmt.Errorf("ask how much memory is free: %w", err)
	}
	m := &costing{unit: pages.MinBlock}
	total := min(touchBytes, spare/spareShare)
	if total < m.unit {
		return 0, fmt.Errorf("too little memory to measure: %s has %s to spare", level, formatBytes(spare))
	}
	if err := m.checkSize(at); err != nil {
		return 0, err
	}
	if m.file, err = pages.OpenFile(at, 0); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.file.Close()) }()
	if err := m.findLanes(ctx, total, total); err != nil {
		return 0, err
	}
	defer func() {
		_, e := m.dropLanes(m.lanes)
		err = errors.Join(err, e)
	}()
	// m.file is advised to read nothing around a fault, so it is opened once more.
	f, err := at.Open()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	mapping, err := unix.Mmap(int(f.Fd()), 0, int(m.file.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("map %s: %w", at.Path, err)
	}
	perSecond, err = m.touchLanes(ctx, mapping, threads)
	return perSecond, errors.Join(err, unix.Munmap(mapping))
}

// touchLanes touches the lanes in order with several threads, through a mapping like a target's.
func (m *costing) touchLanes(ctx context.Context, mapping []byte, threads int) (perSecond float64, err error) {
	var parts []pages.Range
	for _, l := range m.lanes {
		for at := l.Offset; at < l.End(); at += touchChunk {
			parts = append(parts, pages.Range{Offset: at, Length: min(touchChunk, l.End()-at)})
		}
	}
	var next, bytes atomic.Int64
	begun := time.Now()
	var group errgroup.Group
	for range max(threads, 1) {
		group.Go(func() error {
			own := costing{file: m.file} // its sum is this thread's
			for ctx.Err() == nil && time.Since(begun) < touchTime {
				i := next.Add(1) - 1
				if i >= int64(len(parts)) {
					return nil
				}
				if err := own.touchPages(mapping[parts[i].Offset:parts[i].End()]); err != nil {
					return err
				}
				bytes.Add(parts[i].Length)
			}
			return ctx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return float64(bytes.Load()) / time.Since(begun).Seconds(), nil
}

// GatherTime returns how long it takes until count slices of so many bytes have come that lie at random places of a
// file and are asked for at once: the median. A layer of a mixture waits so for the experts that its router has chosen.
// It reads past the page cache, as Bandwidth does, and has its errors.
func GatherTime(ctx context.Context, at proc.Place, slice int64, count int) (took time.Duration, err error) {
	slice = max(slice/pages.PageSize, 1) * pages.PageSize
	count = max(count, 1)
	if slice > uring.MaxLength || int64(count) > MaxGather/slice {
		return 0, fmt.Errorf("gather %d slices of %s: want at most %s in all", count, formatBytes(slice),
			formatBytes(MaxGather))
	}
	fd, size, err := openPastCache(at)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	places := (size - slice) / pages.PageSize
	if places < 1 {
		return 0, fmt.Errorf("%s has %s: too little to read slices of it", at.Path, formatBytes(size))
	}
	buffer, free, err := pagecache.DirectBuffer(int(slice) * count)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, free()) }()
	queue, err := uring.Open(uint32(count))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, queue.Close()) }() // before the buffer is freed
	var turns []float64
	var done []uring.Completion
	for begun := time.Now(); len(turns) < gatherTurns && (len(turns) == 0 || time.Since(begun) < gatherTime); {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		asked := time.Now()
		for i := range count {
			piece := buffer[int64(i)*slice:][:slice]
			if !queue.Read(fd, piece, rand.Int64N(places)*pages.PageSize, uint64(i)) {
				return 0, fmt.Errorf("%s takes no %d reads", queue.Name(), count)
			}
		}
		if done, err = queue.Reap(count, done[:0]); err != nil {
			return 0, err
		}
		for _, d := range done {
			if d.Err != nil {
				return 0, &os.PathError{Op: "read without the page cache", Path: at.Path, Err: d.Err}
			}
		}
		turns = append(turns, float64(time.Since(asked)))
	}
	return time.Duration(stats.Median(turns)), nil
}

// MaxGather is how many bytes GatherTime reads at once at most.
const MaxGather = 64 << 20

// openPastCache opens a file so that it is read past the page cache.
func openPastCache(at proc.Place) (fd int, size int64, err error) {
	f, err := at.Open()
	if err != nil {
		return -1, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return -1, 0, err
	}
	fd, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, 0, &os.PathError{Op: "read without the page cache", Path: at.Path, Err: err}
	}
	return fd, info.Size(), nil
}
