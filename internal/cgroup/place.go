package cgroup

// This file follows a process as it is moved from group to group.

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrEnded says that a process has ended or is ending, so that it is in no group any more.
var ErrEnded = errors.New("the process has ended")

// Membership tells in which control groups a process is. Anybody with the right to do so may move the
// process at any time. A Place holds descriptors, so the caller must Close it. It is not safe for
// concurrent use.
type Membership struct {
	sys       system
	pid       int
	dir, file int    // descriptors of /proc/PID and of its file cgroup
	text      []byte // of that file, as read last
	reported  []byte // the text at the last Moved that returned true
}

// FollowProcess follows a process. The caller must make sure that pid is the process that it means. The
// error is ErrEnded if there is no such process.
func FollowProcess(pid int) (*Membership, error) { return system{"/"}.follow(pid) }

func (s system) follow(pid int) (*Membership, error) {
	fail := func(err error) (*Membership, error) {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			err = ErrEnded
		}
		return nil, fmt.Errorf("control groups of process %d: %w", pid, err)
	}
	dir, err := open(s.file("/proc/"+strconv.Itoa(pid)), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return fail(err)
	}
	file, err := retry(func() (int, error) { return unix.Openat(dir, "cgroup", unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return fail(errors.Join(err, unix.Close(dir)))
	}
	return &Membership{sys: s, pid: pid, dir: dir, file: file}, nil
}

// Close releases the descriptors.
func (p *Membership) Close() error { return errors.Join(unix.Close(p.file), unix.Close(p.dir)) }

// Moved reports whether the process may be in another group than at the last call. The first call
// returns true. If nothing has changed it takes one system call. The error is ErrEnded if the
// process has ended; the kernel then shows it in the topmost group.
func (p *Membership) Moved() (bool, error) {
	if err := p.read(); err != nil {
		return false, err
	}
	if bytes.Equal(p.text, p.reported) {
		return false, nil
	}
	exiting, err := p.isExiting()
	if err != nil {
		return false, err
	}
	if exiting {
		return false, p.endedError()
	}
	p.reported = append(p.reported[:0], p.text...)
	return true, nil
}

// Find returns the memory control group that the process is in now, as [Find] does, or ErrEnded.
func (p *Membership) Find() (*Group, error) {
	g, err := p.sys.find(p.pid)
	if readErr := p.read(); readErr != nil { // another process may have the number now
		return nil, readErr
	}
	return g, err
}

func (p *Membership) endedError() error {
	return fmt.Errorf("control groups of process %d: %w", p.pid, ErrEnded)
}

// read reads the text of /proc/PID/cgroup. The descriptor belongs to this process even if another
// one gets its id.
func (p *Membership) read() error {
	var buf [4096]byte
	p.text = p.text[:0]
	for {
		n, err := retry(func() (int, error) { return unix.Pread(p.file, buf[:], int64(len(p.text))) })
		if errors.Is(err, unix.ESRCH) {
			return p.endedError()
		}
		if err != nil {
			return fmt.Errorf("control groups of process %d: %w", p.pid, err)
		}
		if n == 0 {
			return nil
		}
		p.text = append(p.text, buf[:n]...)
		if n < len(buf) {
			return nil // that was all: the kernel fills the buffer if there is more
		}
	}
}

// flagExiting is PF_EXITING, one of the flags in /proc/PID/stat. Once it is set, version 1 shows
// the process in the topmost group.
const flagExiting = 0x4

// isExiting reports whether the process is about to end.
func (p *Membership) isExiting() (bool, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(p.dir, "stat", unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return true, nil // it has ended
	}
	defer unix.Close(fd)
	var buf [1024]byte
	n, err := retry(func() (int, error) { return unix.Read(fd, buf[:]) })
	if err != nil {
		return true, nil
	}
	exiting, err := parseExiting(string(buf[:n]))
	if err != nil {
		return false, fmt.Errorf("/proc/%d/stat: %w", p.pid, err)
	}
	return exiting, nil
}

// parseExiting finds the flags in the text of /proc/PID/stat. They are its ninth word. The second
// word is the name in parentheses, which may contain spaces.
func parseExiting(stat string) (bool, error) {
	words := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(words) < 7 {
		return false, fmt.Errorf("%d words behind the name", len(words))
	}
	flags, err := strconv.ParseUint(words[6], 10, 64)
	if err != nil {
		return false, fmt.Errorf("flags: %w", err)
	}
	return flags&flagExiting != 0, nil
}
