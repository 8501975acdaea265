// Package proc knows processes: it starts commands that wait for probes, or in process groups of their own, passes signals on to them, holds a
// process so that no other is taken for it, and reads what a process maps and where its files are found.
package proc

// This file holds running processes by descriptors.

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Process is a running process that need not be a child. It is held by a pidfd: another process that gets the same id
// later is never taken for it. Its methods are safe for concurrent use, except Close.
type Process struct{ pid, fd int }

// Open finds a process. The error is ErrNoProcess if there is none. Close it.
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

// Ended says whether the process has ended. While it has not, its id is its own.
func (p *Process) Ended() (bool, error) { return p.poll(-1, 0) }

// Wait returns when the process has ended, or with ctx's error. Meanwhile it takes no time from anybody.
func (p *Process) Wait(ctx context.Context) error {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("watch process %d: %w", p.pid, err)
	}
	defer unix.Close(wake)
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !stop() {
			<-woken
		}
	}()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if ended, err := p.poll(wake, -1); ended || err != nil {
			return err
		}
	}
}

// poll waits up to timeout milliseconds (-1: for ever), or until wake can be read, and says whether the process has ended.
func (p *Process) poll(wake, timeout int) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}} // poll passes over a negative one
	_, err := unix.Poll(fds, timeout)
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("watch process %d: %w", p.pid, err)
	}
	return fds[0].Revents != 0, nil
}

// Close lets go of the process, which is not affected.
func (p *Process) Close() error { return unix.Close(p.fd) }

// PageOut reclaims the process's pages of a range of its addresses, of length bytes (process_madvise with MADV_PAGEOUT, Linux 5.10). It needs
// ptrace access and CAP_SYS_NICE, and that the process or the caller may write the mapped file, or owns it. Pages that another process maps too
// stay, without an error. The error wraps unix.ESRCH if the process has ended.
func (p *Process) PageOut(address uint64, length int64) error {
	iov := unix.RemoteIovec{Base: uintptr(address), Len: int(length)}
	_, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(p.fd), uintptr(unsafe.Pointer(&iov)), 1, unix.MADV_PAGEOUT, 0, 0)
	// ENOMEM: a part of the range is not mapped, the rest was done.
	if errno != 0 && errno != unix.ENOMEM {
		return fmt.Errorf("page out %d bytes at %#x of process %d: %w", length, address, p.pid, errno)
	}
	return nil
}
