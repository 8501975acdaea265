// Package proc handles processes of the system. It starts commands that stay stopped until probes
// are attached ([Launch]) or that run in process groups of their own ([StartGroup]), passes signals
// on to them ([Relay]), holds running processes by pidfd so that a reused process id is not
// mistaken for them ([Open]), and reads which files a process maps and where these can be opened
// ([Mappings], [Mapping.Locate], [Locate]).
package proc

// This file holds running processes by pidfd.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Process is a running process, not necessarily a child. It is held by a pidfd, so a later process
// with the same id is never mistaken for it. Its methods are safe for concurrent use, except Close.
type Process struct{ pid, fd int }

// Open opens a process. The error is ErrNoProcess if it does not exist. The caller must call Close.
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL) && pid > 0: // ENOENT since Linux 6.15
		return nil, fmt.Errorf("%d is a thread: %w", pid, ErrNoProcess)
	case err != nil:
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	return &Process{pid, fd}, nil
}

// PID is the process id.
func (p *Process) PID() int { return p.pid }

// Ended reports whether the process has ended. As long as it has not, its id cannot be reused.
func (p *Process) Ended() (bool, error) { return p.poll(-1, 0) }

// Wait returns when the process has ended, or with ctx's error. It sleeps until then.
func (p *Process) Wait(ctx context.Context) error {
	wake, done, err := wakeAt(ctx)
	if err != nil {
		return fmt.Errorf("watch process %d: %w", p.pid, err)
	}
	defer done()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if ended, err := p.poll(wake, -1); ended || err != nil {
			return err
		}
	}
}

// wakeAt makes a descriptor that is readable as soon as ctx is done, for poll(2). done closes it.
func wakeAt(ctx context.Context) (wake int, done func(), err error) {
	if wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return -1, nil, err
	}
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	return wake, func() {
		if !stop() {
			<-woken
		}
		_ = unix.Close(wake)
	}, nil
}

// poll waits up to timeout milliseconds (-1: without limit), or until wake is readable, and reports
// whether the process has ended.
func (p *Process) poll(wake, timeout int) (bool, error) {
	fds := []unix.PollFd{
		{Fd: int32(p.fd), Events: unix.POLLIN},
		{Fd: int32(wake), Events: unix.POLLIN}, // poll ignores negative descriptors
	}
	_, err := unix.Poll(fds, timeout)
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("watch process %d: %w", p.pid, err)
	}
	return fds[0].Revents != 0, nil
}

// Close releases the pidfd; the process is not affected.
func (p *Process) Close() error { return unix.Close(p.fd) }

// PageOut reclaims the process's pages in an address range of length bytes (process_madvise with
// MADV_PAGEOUT, Linux 5.10). It needs ptrace access and CAP_SYS_NICE, and the process or the caller
// must own the mapped file or be allowed to write it. Pages that another process maps, too, are not
// reclaimed; that is no error. The error wraps unix.ESRCH if the process has ended.
func (p *Process) PageOut(address uint64, length int64) error {
	return p.advise("page out", address, length, unix.MADV_PAGEOUT)
}

// SplitFolios splits the large folios which the process maps and of which an address range of length bytes
// has only a part, so that the kernel can free one part without the other (process_madvise with MADV_COLD,
// Linux 5.10). It needs what PageOut needs, but for the right to write the file. Folios that another process
// maps, too, are not split; that is no error. The kernel takes the range for unused until its next use. The
// error wraps unix.ESRCH if the process has ended.
func (p *Process) SplitFolios(address uint64, length int64) error {
	return p.advise("split folios of", address, length, unix.MADV_COLD)
}

// advise gives the kernel an advice (madvise(2)) about an address range of the process.
func (p *Process) advise(what string, address uint64, length int64, advice uintptr) error {
	iov := unix.RemoteIovec{Base: uintptr(address), Len: int(length)}
	_, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE,
		uintptr(p.fd), uintptr(unsafe.Pointer(&iov)), 1, advice, 0, 0)
	if errno == unix.EPERM {
		return fmt.Errorf("%s memory of process %d: %w: it takes CAP_SYS_NICE and CAP_SYS_PTRACE", what, p.pid, errno)
	}
	// ENOMEM: a part of the range is not mapped; the kernel has done the rest.
	if errno != 0 && errno != unix.ENOMEM {
		return fmt.Errorf("%s %d bytes at %#x of process %d: %w", what, length, address, p.pid, errno)
	}
	return nil
}

// Descriptors lists the files that the process has open. The keys are descriptor numbers, the
// values are names as the kernel has them, so pipe:[123] is one, too. It needs ptrace access. The
// error wraps ErrNoProcess if the process has ended.
func (p *Process) Descriptors() (map[int]string, error) {
	dir := fmt.Sprintf("/proc/%d/fd", p.pid)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		err = ErrNoProcess
	}
	if err != nil {
		return nil, fmt.Errorf("list the open files of process %d: %w", p.pid, err)
	}
	names := map[int]string{}
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if name, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil { // else it is closed by now
			names[n] = name
		}
	}
	return names, nil
}

// Descriptor duplicates descriptor n of the process (pidfd_getfd, Linux 5.6). It does not open the
// file anew: both share one open file description, with its position and readahead. It needs ptrace
// access. The error wraps unix.EBADF if the process has closed the descriptor. The caller must
// close the result.
func (p *Process) Descriptor(n int) (*os.File, error) {
	fd, err := unix.PidfdGetfd(p.fd, n, 0)
	if err != nil {
		return nil, fmt.Errorf("open descriptor %d of process %d: %w", n, p.pid, err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("descriptor %d of process %d", n, p.pid)), nil
}
