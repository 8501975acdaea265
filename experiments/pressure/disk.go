package pressure

// This file measures the bandwidth of the disk below a file: BW_disk in the bound.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/uring"
)

// ErrNoDirectIO says that a file cannot be read with direct I/O, so that the disk cannot be measured through it.
var ErrNoDirectIO = errors.New("no direct I/O")

// Limits: beyond these, a point would need gigabytes of buffers and give no more information.
const (
	maxDepth = 256
	maxBlock = 16 << 20
)

// Extent is a range of bytes of a file.
type Extent struct {
	Offset, Length int64 // bytes
}

// DiskSetting is a way to read: block bytes at a time, depth of these reads in flight.
type DiskSetting struct {
	Block int `json:"block_bytes"` // a multiple of the alignment, up to 16 MiB
	Depth int `json:"depth"`       // 1 to 256
}

// gridInFlight bounds block * depth in the grid. A device takes some hundred KiB to a few MiB to be
// busy. Beyond this, only the buffers would grow.
const gridInFlight = 64 << 20

// Grid returns the settings among which a disk's best is looked for: blocks of 128 KiB to 8 MiB at
// depths of 1 to 32, with up to 64 MiB in flight.
func Grid() []DiskSetting {
	var all []DiskSetting
	for _, block := range []int{128 << 10, 512 << 10, 1 << 20, 2 << 20, 8 << 20} {
		for _, depth := range []int{1, 4, 8, 32} {
			if block*depth <= gridInFlight {
				all = append(all, DiskSetting{block, depth})
			}
		}
	}
	return all
}

// DiskOptions says what DiskBandwidth measures. Zero values mean the defaults.
type DiskOptions struct {
	Settings  []DiskSetting // default [Grid]
	PointTime time.Duration // how long each setting reads, unless it has read all extents before; default 0.3 s
}

// DiskPoint is the result for one setting.
type DiskPoint struct {
	DiskSetting
	Bytes          int64         `json:"bytes"` // read
	Elapsed        time.Duration `json:"elapsed_ns"`
	BytesPerSecond float64       `json:"bytes_per_second"`
}

// DiskResult is the result of all settings.
type DiskResult struct {
	Points []DiskPoint `json:"points"` // in the order of the options
	Best   DiskPoint   `json:"best"`   // the one with the highest bandwidth
	// Queue says how it was read: by io_uring or, where that is refused, by posix_fadvise (threads
	// that call pread).
	Queue     string `json:"queue"`
	Alignment int    `json:"alignment_bytes"`
}

// Fastest returns the n settings with the highest bandwidth, or all if there are fewer, best first.
func (r *DiskResult) Fastest(n int) []DiskSetting {
	points := slices.SortedStableFunc(slices.Values(r.Points), func(a, b DiskPoint) int {
		return cmp.Compare(b.BytesPerSecond, a.BytesPerSecond)
	})
	var all []DiskSetting
	for _, p := range points[:min(n, len(points))] {
		all = append(all, p.DiskSetting)
	}
	return all
}

// DiskBandwidth reads the extents of the file at path with O_DIRECT, in the given order and
// repeatedly, at each setting. Each point continues where the one before stopped: starting again
// would read what a cache below the file system (of the device or a hypervisor) has just seen.
// Extents are widened to whole pages, as the page cache would read them, and joined if they then
// touch the one before.
//
// The page cache is not used and not changed, because of O_DIRECT, on ext4, XFS and block devices.
// Btrfs, however, reads compressed extents through it. The file must not be written to meanwhile.
//
// It fails with ErrNoDirectIO if the file system has no direct I/O or is in memory, and with the
// context's error when ctx ends, after waiting for the reads in flight.
func DiskBandwidth(ctx context.Context, path string, extents []Extent, opts DiskOptions) (DiskResult, error) {
	result, err := diskBandwidth(ctx, path, extents, opts)
	if err != nil {
		return DiskResult{}, fmt.Errorf("measure the disk below %s: %w", path, err)
	}
	return result, nil
}

func diskBandwidth(ctx context.Context, path string, extents []Extent, opts DiskOptions) (DiskResult, error) {
	if len(opts.Settings) == 0 {
		opts.Settings = Grid()
	}
	if opts.PointTime == 0 {
		opts.PointTime = 300 * time.Millisecond
	}
	if opts.PointTime < 0 {
		return DiskResult{}, fmt.Errorf("a time of %v", opts.PointTime)
	}

	fd, size, err := openDirect(path)
	if err != nil {
		return DiskResult{}, err
	}
	defer unix.Close(fd)
	alignment, err := directAlignment(fd)
	if err != nil {
		return DiskResult{}, err
	}
	s, err := newScan(extents, size, int64(alignment))
	if err != nil {
		return DiskResult{}, err
	}

	most := 0 // bytes in flight
	for _, set := range opts.Settings {
		if set.Depth < 1 || set.Depth > maxDepth {
			return DiskResult{}, fmt.Errorf("a depth of %d: want 1 to %d", set.Depth, maxDepth)
		}
		if set.Block < 1 || set.Block > maxBlock || set.Block%alignment != 0 {
			return DiskResult{}, fmt.Errorf("a block of %d bytes: want a multiple of %d, up to %d", set.Block,
				alignment, maxBlock)
		}
		most = max(most, set.Depth*set.Block)
	}
	buffers, free, err := pagecache.DirectBuffer(most)
	if err != nil {
		return DiskResult{}, err
	}
	defer free() //nolint:errcheck // it unmaps memory

	result := DiskResult{Alignment: alignment}
	for _, set := range opts.Settings {
		point, queue, err := readPoint(ctx, fd, s, buffers, set, opts.PointTime)
		if err != nil {
			return DiskResult{}, err
		}
		result.Points = append(result.Points, point)
		result.Queue = queue
		if point.BytesPerSecond > result.Best.BytesPerSecond {
			result.Best = point
		}
	}
	return result, nil
}

// readPoint keeps depth reads of up to block bytes in flight until the time is over or all extents have been read once.
func readPoint(ctx context.Context, fd int, s *scan, buffers []byte, set DiskSetting,
	limit time.Duration) (DiskPoint, string, error) {
	block, depth := set.Block, set.Depth
	queue, err := uring.Open(uint32(depth), uring.WithWorkers(depth))
	if err != nil {
		return DiskPoint{}, "", err
	}
	defer queue.Close()

	free := make([]uint64, depth) // indices of free buffers, which are also the tags
	for i := range free {
		free[i] = uint64(i)
	}
	want := make([]int64, depth) // expected bytes of the read into each buffer
	done := make([]uring.Completion, 0, depth)
	point := DiskPoint{DiskSetting: set}

	start := time.Now()
	for asked := int64(0); ; {
		for len(free) > 0 && asked < s.total && time.Since(start) < limit {
			tag := free[len(free)-1]
			read := s.next(int64(block))
			if !queue.Read(fd, buffers[int(tag)*block:][:read.Length], read.Offset, tag) {
				return DiskPoint{}, "", fmt.Errorf("%s takes no %d reads", queue.Name(), depth)
			}
			free = free[:len(free)-1]
			asked += read.Length
			want[tag] = min(read.Length, s.size-read.Offset)
		}
		if queue.InFlight() == 0 {
			break
		}
		if done, err = queue.Reap(1, done[:0]); err != nil {
			return DiskPoint{}, "", err
		}
		for _, c := range done {
			switch {
			case c.Err != nil:
				return DiskPoint{}, "", c.Err
			case int64(c.N) != want[c.Tag]:
				return DiskPoint{}, "", fmt.Errorf("%d bytes came of %d: %w", c.N, want[c.Tag], io.ErrUnexpectedEOF)
			}
			free = append(free, c.Tag)
			point.Bytes += int64(c.N)
		}
		if err := ctx.Err(); err != nil {
			return DiskPoint{}, "", err
		}
	}
	point.Elapsed = time.Since(start)
	point.BytesPerSecond = float64(point.Bytes) / point.Elapsed.Seconds()
	return point, queue.Name(), nil
}

// openDirect opens the file at path with O_DIRECT and returns the descriptor and the file's size.
func openDirect(path string) (fd int, size int64, err error) {
	// Opening a FIFO would block until there is a writer, so look first. O_NONBLOCK is no
	// alternative: reads through io_uring would fail where they would have to wait.
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return -1, 0, fmt.Errorf("stat: %w", err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, 0, errors.New("not a regular file")
	}
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EINVAL) {
		return -1, 0, fmt.Errorf("%w on this file system: use a model on a disk", ErrNoDirectIO)
	}
	if err != nil {
		return -1, 0, fmt.Errorf("open: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	// Since Linux 6.6 tmpfs accepts O_DIRECT, but copies from memory as before.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return -1, 0, fmt.Errorf("statfs: %w", err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		return -1, 0, fmt.Errorf("%w: this file system is in memory: use a model on a disk", ErrNoDirectIO)
	}
	return fd, stat.Size, nil
}

// directAlignment returns what offsets, lengths and addresses must be multiples of: a power of two,
// at least a page, since the page cache reads whole pages.
func directAlignment(fd int) (int, error) {
	page := os.Getpagesize()
	var stat unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &stat)
	if err != nil || stat.Mask&unix.STATX_DIOALIGN == 0 {
		// A kernel before 6.1 does not report it, nor do some file systems. None is known that
		// needs more.
		return max(page, 4096), nil
	}
	if stat.Dio_offset_align == 0 {
		return 0, fmt.Errorf("%w to this file: encrypted, compressed or journalled data goes through the "+
			"page cache", ErrNoDirectIO)
	}
	return max(page, int(stat.Dio_offset_align), int(stat.Dio_mem_align)), nil
}

// scan cycles through ranges of a file.
type scan struct {
	ranges []Extent // aligned and not empty; the last may extend beyond the end of the file
	size   int64    // of the file
	total  int64    // bytes in ranges

	index  int   // of the current range
	offset int64 // position in the current range
}

func newScan(extents []Extent, size, alignment int64) (*scan, error) {
	s := &scan{size: size}
	for _, e := range extents {
		if e.Offset < 0 || e.Length < 0 || e.Offset > size || e.Length > size-e.Offset {
			return nil, fmt.Errorf("extent of %d bytes at %d: the file has %d", e.Length, e.Offset, size)
		}
		if e.Length == 0 {
			continue
		}
		begin := e.Offset &^ (alignment - 1)
		end := (e.Offset + e.Length + alignment - 1) &^ (alignment - 1)
		if n := len(s.ranges); n > 0 {
			last := &s.ranges[n-1]
			if lastEnd := last.Offset + last.Length; begin >= last.Offset && begin <= lastEnd {
				last.Length = max(lastEnd, end) - last.Offset
				continue
			}
		}
		s.ranges = append(s.ranges, Extent{begin, end - begin})
	}
	for _, r := range s.ranges {
		s.total += r.Length
	}
	if s.total == 0 {
		return nil, errors.New("no bytes to read in the extents")
	}
	return s, nil
}

// next returns the next block; the last one of a range may be shorter.
func (s *scan) next(block int64) Extent {
	r := s.ranges[s.index]
	e := Extent{r.Offset + s.offset, min(block, r.Length-s.offset)}
	if s.offset += e.Length; s.offset == r.Length {
		s.index, s.offset = (s.index+1)%len(s.ranges), 0
	}
	return e
}
