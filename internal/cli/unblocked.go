package cli

// This file keeps a pipe that nobody reads from making a command deaf to signals.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotRead says that a command was told to end while nobody read what it writes.
var ErrNotRead = errors.New("nobody reads the output")

// patience is how long, once the context has ended, a write waits for somebody to read.
const patience = 300 * time.Millisecond

// Unblocked returns a writer to w, a pipe or a terminal that may be full (w is an *os.File, or what Safe made of one; others are returned as
// they are). It waits for its reader until ctx ends, and then no longer: what
// cannot be written within 300 ms is an error that wraps ErrNotRead, and so is each later write. It may be used concurrently.
func Unblocked(ctx context.Context, w io.Writer) io.Writer {
	f, ok := Raw(w).(*os.File)
	if !ok {
		return w
	}
	return &unblocked{ctx: ctx, file: f, to: w}
}

type unblocked struct {
	ctx  context.Context
	file *os.File // is waited for
	to   io.Writer

	mu     sync.Mutex
	failed error
}

// atomicWrite is PIPE_BUF: a pipe that poll calls writable takes as many bytes at once (pipe(7)).
const atomicWrite = 4096

func (u *unblocked) Write(p []byte) (n int, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for n < len(p) && u.failed == nil {
		if u.failed = u.wait(); u.failed != nil {
			break
		}
		var part int
		part, u.failed = u.to.Write(p[n:min(n+atomicWrite, len(p))])
		n += part
	}
	return n, u.failed
}

// wait returns once the file takes something. It looks at the context now and then, which is simpler than to be woken, and soon enough.
func (u *unblocked) wait() error {
	fds := []unix.PollFd{{Fd: int32(u.file.Fd()), Events: unix.POLLOUT}}
	var ended time.Time
	for {
		switch ready, err := unix.Poll(fds, 50); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the reader of %s: %w", u.file.Name(), err)
		case ready > 0: // or the reader is gone, which the write will tell
			return nil
		}
		if u.ctx.Err() == nil {
			continue
		}
		if ended.IsZero() {
			ended = time.Now()
		}
		if time.Since(ended) >= patience {
			return fmt.Errorf("%s: %w", u.file.Name(), ErrNotRead)
		}
	}
}
