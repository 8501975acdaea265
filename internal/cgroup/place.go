// This file follows a process from group to group.

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrEnded says that a process whose group is asked for has ended, or is ending: it is in no group any more.
var ErrEnded = errors.New("the process has ended")

// Place is where a process is among the control groups: anybody with the right to may move it at any time. It holds descriptors: Close it. Not for concurrent use.
type Place struct {
	sys       system
	pid       int
	dir, file int // /proc/PID, and its file cgroup
	text, was []byte
}

// NewPlace follows a process, of which the caller knows that it is the one that is meant. The error is ErrEnded if there is none.
func NewPlace(pid int) (*Place, error) { return system{"/"}.place(pid) }

func (s system) place(pid int) (*Place, error) {
	fail := func(err error) (*Place, error) {
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
	return &Place{sys: s, pid: pid, dir: dir, file: file}, nil
}

// Close releases the descriptors.
func (p *Place) Close() error { return errors.Join(unix.Close(p.file), unix.Close(p.dir)) }

// Moved reports whether the process may be in another group than at the last call, true at the first. It takes one system call if not. The error is ErrEnded if the process has
// ended: then it seems to be in the topmost group, where it never was.
func (p *Place) Moved() (bool, error) {
	if err := p.read(); err != nil {
		return false, err
	}
	if bytes.Equal(p.text, p.was) {
		return false, nil
	}
	exiting, err := p.exiting()
	if err != nil {
		return false, err
	}
	if exiting {
		return false, p.ended()
	}
	p.was = append(p.was[:0], p.text...)
	return true, nil
}

// Find returns the memory control group that the process is in now, as [Find] does, or ErrEnded.
func (p *Place) Find() (*Group, error) {
	g, err := p.sys.find(p.pid)
	if readErr := p.read(); readErr != nil { // another process may have the number now
		return nil, readErr
	}
	return g, err
}

func (p *Place) ended() error { return fmt.Errorf("control groups of process %d: %w", p.pid, ErrEnded) }

// read reads the text of /proc/PID/cgroup. The descriptor stays that of this process, whatever becomes of its number.
func (p *Place) read() error {
	var buf [4096]byte
	p.text = p.text[:0]
	for {
		n, err := retry(func() (int, error) { return unix.Pread(p.file, buf[:], int64(len(p.text))) })
		if errors.Is(err, unix.ESRCH) {
			return p.ended()
		}
		if err != nil {
			return fmt.Errorf("control groups of process %d: %w", p.pid, err)
		}
		if n == 0 {
			return nil
		}
		p.text = append(p.text, buf[:n]...)
		if n < len(buf) {
			return nil // all of it: the kernel fills what it is given
		}
	}
}

// isExiting is PF_EXITING, among the flags that stat shows: from then on version 1 says that a process is in the topmost group.
const isExiting = 0x4

// exiting tells whether the process is about to end, by the ninth word of /proc/PID/stat; the second may have spaces and is in parentheses.
func (p *Place) exiting() (bool, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(p.dir, "stat", unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return true, nil // gone
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

func parseExiting(stat string) (bool, error) {
	words := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(words) < 7 {
		return false, fmt.Errorf("%d words behind the name", len(words))
	}
	flags, err := strconv.ParseUint(words[6], 10, 64)
	if err != nil {
		return false, fmt.Errorf("flags: %w", err)
	}
	return flags&isExiting != 0, nil
}
