package costs

// This file measures for a moment what the disk delivers, past the page cache.

import (
	"errors"
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
	BandwidthDepth  = 8       // reads at once of Bandwidth
	bandwidthPiece  = 2 << 20 // bytes of a read
	bandwidthPieces = 4       // pieces of memory that each of these reads into, in turn
)

// Bandwidth reads blocks of a file for a moment, many at a time, and returns how many bytes per second the disk
// delivers beside what else is read from it. The blocks must be aligned to pages. Those of other files than the
// first block's are left out.
//
// It reads into 64 MiB of memory. A virtual disk delivers more into a few MiB, which stay in the processors'
// caches, than a page cache ever gets. It reads with O_DIRECT, so that the page cache is neither used nor changed
// on ext4, XFS and block devices. It is an error if the file system has no O_DIRECT, or if another file is at the
// path now.
func Bandwidth(at proc.Place, blocks []pages.Range) (perSecond float64, err error) {
	fd, _, err := openPastCache(at)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	order := rand.Perm(len(blocks)) // in order, the device would read ahead and be faster
	var next, bytes atomic.Int64
	begun := time.Now()
	var group errgroup.Group
	for range BandwidthDepth {
		group.Go(func() error {
			buffer, free, err := pagecache.DirectBuffer(bandwidthPieces * bandwidthPiece)
			if err != nil {
				return err
			}
			defer free() //nolint:errcheck // it unmaps memory
			// At least once: it may have waited for a processor.
			for turn := 0; turn == 0 || time.Since(begun) < bandwidthTime; turn++ {
				i := next.Add(1) - 1
				if i >= int64(len(order)) {
					return nil
				}
				b := blocks[order[i]]
				if b.File != blocks[0].File {
					continue
				}
				piece := buffer[turn%bandwidthPieces*bandwidthPiece:][:min(b.Length, bandwidthPiece)]
				n, err := unix.Pread(fd, piece, b.Offset)
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
