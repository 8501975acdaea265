// This file detects changes of limits at once, at the cost of one system call per check.

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Watch detects writes to the limits of a group and its visible ancestors. Not for concurrent use.
type Watch struct{ fd int }

// Watch starts to watch the limits of the group. The caller must call Close. inotify reports writes to the kernel's files, but not changes
// that the kernel makes itself.
func (g *Group) Watch() (*Watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch limits of %s: %w", g.Name(), err)
	}
	for _, h := range g.mem.chain() {
		for _, kind := range g.limits() {
			if _, err := unix.InotifyAddWatch(fd, h.file(kind.limit), unix.IN_MODIFY); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, errors.Join(fmt.Errorf("watch %s: %w", h.file(kind.limit), err), unix.Close(fd))
			}
		}
	}
	return &Watch{fd}, nil
}

// Changed reports whether a limit was written since the last call. It does not block.
func (w *Watch) Changed() bool {
	var buf [4096]byte
	n, _ := unix.Read(w.fd, buf[:])
	return n > 0
}

// Close stops watching.
func (w *Watch) Close() error { return unix.Close(w.fd) }
