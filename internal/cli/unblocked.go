package cli

// This file prevents a pipe that nobody reads from blocking a command that was told to end by a signal.

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

// ErrNotRead says that a command was told to end while nobody read its output.
var ErrNotRead = errors.New("nobody reads the output")

// readerTimeout is how long a write waits for a reader once the context has ended.
const readerTimeout = 300 * time.Millisecond

// Unblocked returns a writer to w that does not block for long once ctx has ended. It is for pipes
// and terminals, which may be full: w is an *os.File or the result of Safe. Other writers are
// returned as they are.
//
// Until ctx ends, a write waits for its reader. After that it fails if it cannot finish within 300
// ms, and so does each later write. The error wraps ErrNotRead. The writer may be used
// concurrently.
func Unblocked(ctx context.Context, w io.Writer) io.Writer {
	f, ok := Raw(w).(*os.File)
	if !ok {
		return w
	}
	return &unblocked{ctx: ctx, file: f, to: w}
}

type unblocked struct {
	ctx  context.Context
	file *os.File  // the file to wait for
	to   io.Writer // the file, or the writer to it that Safe returned

	mu     sync.Mutex
	failed error // the error of all later writes
}

// atomicWrite is PIPE_BUF. A pipe that poll reports as writable takes that many bytes at once
// (pipe(7)).
const atomicWrite = 4096

func (u *unblocked) Write(p []byte) (n int, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for n < len(p) && u.failed == nil {
		if u.failed = u.waitWritable(); u.failed != nil {
			break
		}
		var part int
		part, u.failed = u.to.Write(p[n:min(n+atomicWrite, len(p))])
		n += part
	}
	return n, u.failed
}

// waitWritable returns once the file takes bytes. It checks the context every 50 ms, which is
// simpler than being woken, and soon enough.
func (u *unblocked) waitWritable() error {
	fds := []unix.PollFd{{Fd: int32(u.file.Fd()), Events: unix.POLLOUT}}
	var ended time.Time
	for {
		switch ready, err := unix.Poll(fds, 50); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the reader of %s: %w", u.file.Name(), err)
		case ready > 0: // also if the reader is gone; then the write fails
			return nil
		}
		if u.ctx.Err() == nil {
			continue
		}
		if ended.IsZero() {
			ended = time.Now()
		}
		if time.Since(ended) >= readerTimeout {
			return fmt.Errorf("%s: %w", u.file.Name(), ErrNotRead)
		}
	}
}
