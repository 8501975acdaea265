package pagecache

// This file drops a file's pages from the page cache.

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// dropTimeout bounds how long Drop waits for pages to become free. Pages of a process that has just
// ended become free after a moment.
const dropTimeout = 5 * time.Second

// Drop drops all of a file's pages from the page cache, and returns how many bytes are still
// resident. That is 0 unless another process maps them or holds them locked. (Writing to
// drop_caches would not do more, because it skips mapped pages, too.) Drop waits up to five seconds
// for pages to become free.
func Drop(ctx context.Context, f *os.File) (left int64, err error) {
	if err := f.Sync(); err != nil { // pages that are not written back cannot be dropped
		return 0, fmt.Errorf("sync %s: %w", f.Name(), err)
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	residency := ResidencyOf(f, nil)
	deadline := time.Now().Add(dropTimeout)
	for {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return 0, fmt.Errorf("drop %s from the page cache: %w", f.Name(), err)
		}
		n, err := residency.Bytes(0, info.Size())
		if err != nil || n == 0 || time.Now().After(deadline) {
			return n, err
		}
		select {
		case <-ctx.Done():
			return n, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
