package pagecache

// This file drops a file's pages.

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// dropTimeout bounds how long pages may take to become free: those of a process that has just ended do.
const dropTimeout = 5 * time.Second

// Drop drops all of a file from the page cache, and returns how many bytes stay resident: 0 unless another process maps them or holds them locked.
// Writing to drop_caches would not do more: it skips mapped pages, too. Pages may take a moment to become free; Drop waits up to five seconds.
func Drop(ctx context.Context, f *os.File) (left int64, err error) {
	if err := f.Sync(); err != nil { // a page that is not written back stays
		return 0, fmt.Errorf("sync %s: %w", f.Name(), err)
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	end := time.Now().Add(dropTimeout)
	for {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return 0, fmt.Errorf("drop %s from the page cache: %w", f.Name(), err)
		}
		n, err := Resident(f, 0, info.Size())
		if err != nil || n == 0 || time.Now().After(end) {
			return n, err
		}
		select {
		case <-ctx.Done():
			return n, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
