package costs

// This file measures what the disk delivers for a moment, past the page cache.

import (
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
	"tensorcast/prefetch/pages"
)

const (
	bandwidthTime   = 300 * time.Millisecond
	bandwidthDepth  = 8
	bandwidthPiece  = 2 << 20
	bandwidthPieces = 4 // of memory, for each read at a time
)

// Bandwidth reads blocks of a file for a moment, many at a time, and says how many bytes per second the disk
// delivers, as far as it is asked in this way, beside what else is read. It reads into 64 MiB: a virtual disk
// delivers more into a few MiB, which stay in the processors' caches, than a page cache ever gets. The blocks must be
// aligned to pages; those of other files than the first one's are left out. It reads with O_DIRECT: the page cache is
// neither used nor changed on ext4, XFS and block devices. Where a file system has no O_DIRECT it is an error, and if
// another file is there now.
func Bandwidth(at proc.Place, blocks []pages.Range) (perSecond float64, err error) {
	f, err := at.Open()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "read without the page cache", Path: at.Path, Err: err}
	}
	defer unix.Close(fd)
	order := rand.Perm(len(blocks)) // what the device read ahead would be faster
	var next, bytes atomic.Int64
	begun := time.Now()
	var group errgroup.Group
	for range bandwidthDepth {
		group.Go(func() error {
			buffer, free, err := pagecache.DirectBuffer(bandwidthPieces * bandwidthPiece)
			if err != nil {
				return err
			}
			defer free()
			for turn := 0; turn == 0 || time.Since(begun) < bandwidthTime; turn++ { // it may have waited for a processor
				i := next.Add(1) - 1
				if i >= int64(len(order)) {
					return nil
				}
				b := blocks[order[i]]
				if b.File != blocks[0].File {
					continue
				}
				n, err := unix.Pread(fd, buffer[turn%bandwidthPieces*bandwidthPiece:][:min(b.Length, bandwidthPiece)], b.Offset)
				if err != nil && !errors.Is(err, unix.EINTR) {
					return &os.PathError{Op: "read without the page cache", Path: at.Path, Err: err}
				}
				bytes.Add(int64(max(n, 0)))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return float64(bytes.Load()) / time.Since(begun).Seconds(), nil
}
