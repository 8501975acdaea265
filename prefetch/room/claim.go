package room

// This file makes sure that a target has one helper. Of two, each would page out what the other reads ahead.

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/proc"
)

// ErrClaimed says that another helper has claimed the target.
var ErrClaimed = errors.New("another prefetcher helps this process already: end that one first, or leave it to it")

// A claim is tried for claimTimeout. Somebody who only asks ([IsClaimed]) holds it for a moment, and tries for
// askTimeout. If a helper is killed while it starts a program, the new process has the claim until it executes that
// program. In a group whose memory is short, that may take longer than askTimeout.
const (
	claimTimeout = 2 * time.Second
	askTimeout   = 100 * time.Millisecond
	claimStep    = 5 * time.Millisecond
)

// TargetClaim is the exclusive right to help a process. It ends with Close, or with the process that holds
// it, however that ends.
type TargetClaim struct{ lock *os.File }

// Claim claims a target. The error is ErrClaimed if another process, or another call in this one, has it, and
// proc.ErrNoProcess if the target has ended.
//
// It is a lock (flock) on the target's pidfd, which is one inode for all who open it since Linux 6.9 (pidfs).
// Before that it is a lock on the target's directory in /proc, which is one inode for all who use the same
// mount of proc. Then a helper in a container and one outside of it do not see each other. Neither lock needs
// any permission, so any user of the machine can claim a process, and keep a helper away. Neither leaves
// anything behind.
func Claim(p *proc.Process) (*TargetClaim, error) {
	return claimFor(p, claimTimeout)
}

func claimFor(p *proc.Process, timeout time.Duration) (*TargetClaim, error) {
	open, err := chooseOpen(p)
	if err != nil {
		return nil, err
	}
	return claimWith(p, open, timeout)
}

// IsClaimed says whether a target is claimed.
func IsClaimed(p *proc.Process) (bool, error) {
	c, err := claimFor(p, askTimeout)
	if errors.Is(err, ErrClaimed) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, c.Close()
}

// Close gives the claim back.
func (c *TargetClaim) Close() error { return c.lock.Close() }

// openFunc opens what stands for a process, and returns a descriptor.
type openFunc func(pid int) (int, error)

// chooseOpen chooses what stands for a process. Before pidfs, all pidfds had one inode in common.
func chooseOpen(p *proc.Process) (openFunc, error) {
	fd, err := openPidfd(p.PID())
	if err != nil {
		return nil, claimError(p, err)
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return nil, claimError(p, err)
	}
	if st.Type == unix.PID_FS_MAGIC {
		return openPidfd, nil
	}
	return openProc, nil
}

func openPidfd(pid int) (int, error) { return unix.PidfdOpen(pid, 0) } // close-on-exec by itself

func openProc(pid int) (int, error) {
	return unix.Open(fmt.Sprintf("/proc/%d", pid), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// claimWith locks what open opens, and tries that until the timeout. The lock belongs to that open file description,
// and goes with its last descriptor.
func claimWith(p *proc.Process, open openFunc, timeout time.Duration) (*TargetClaim, error) {
	fd, err := open(p.PID())
	if err != nil {
		return nil, claimError(p, err)
	}
	c := &TargetClaim{os.NewFile(uintptr(fd), fmt.Sprintf("process %d", p.PID()))}
	for until := time.Now().Add(timeout); ; time.Sleep(claimStep) {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		mayRetry := errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR)
		if !mayRetry || !time.Now().Before(until) {
			break
		}
	}
	if err == nil {
		// What was opened by the process's number is p only if p has not ended meanwhile.
		var ended bool
		if ended, err = p.Ended(); err == nil && ended {
			err = unix.ESRCH
		}
	}
	if err != nil {
		return nil, errors.Join(claimError(p, err), c.Close())
	}
	return c, nil
}

// claimError names the process in an error of the system.
func claimError(p *proc.Process, err error) error {
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = ErrClaimed
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		err = proc.ErrNoProcess
	}
	return fmt.Errorf("process %d: %w", p.PID(), err)
}
