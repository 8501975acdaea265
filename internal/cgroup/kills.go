package cgroup

// This file tells whether the kernel has ended a process of a group for lack of memory.

import (
	"fmt"

	"github.com/dustin/go-humanize"
)

// Kills counts the processes that the kernel ends for lack of memory in the group of a process, from WatchKills on. The
// zero value counts nothing.
type Kills struct {
	sys       system
	group     *Group // nil: it is hidden, or there is no memory controller
	inGroup   *int64 // kills before; nil if the kernel does not count them
	onMachine *int64 // kills before; nil if the kernel does not count them
}

// WatchKills begins to count, in the group that the process is in now.
func WatchKills(pid int) Kills { return system{"/"}.watchKills(pid) }

func (s system) watchKills(pid int) Kills {
	k := Kills{sys: s}
	if group, err := s.find(pid); err == nil {
		k.group = group
		if n, err := group.OOMKills(); err == nil {
			k.inGroup = &n
		}
	}
	if n, err := s.hostKills(); err == nil {
		k.onMachine = &n
	}
	return k
}

// Follow begins to count anew if the process is in another group by now. One that cannot be found is left out.
func (k *Kills) Follow(pid int) {
	if now := k.sys.watchKills(pid); now.group != nil && !isSameGroup(now.group, k.group) {
		*k = now
	}
}

func isSameGroup(a, b *Group) bool { return a != nil && b != nil && *a == *b }

// hostKills returns how many processes the kernel has ended for lack of memory since boot.
func (s system) hostKills() (int64, error) {
	file := s.file("/proc/vmstat")
	all, err := readPairs(file)
	if err != nil {
		return 0, err
	}
	n, ok := all["oom_kill"]
	if !ok {
		return 0, fmt.Errorf("%s has no oom_kill (Linux has it since 4.13)", file)
	}
	return n, nil
}

// KilledError says that the kernel has ended a process for lack of memory.
type KilledError struct {
	Group string // the group that the process was in; "" if it is gone or not known, and any process may be meant
	Limit int64  // the group's own limit in bytes; 0 if it has none
}

func (e *KilledError) Error() string {
	switch {
	case e.Group == "":
		return "the kernel has ended a process for lack of memory meanwhile"
	case e.Limit == 0:
		return fmt.Sprintf("the kernel has ended a process of its control group %s for lack of memory", e.Group)
	}
	return fmt.Sprintf("the kernel has ended a process of its control group %s, which has a limit of %s, for lack of memory",
		e.Group, humanize.IBytes(uint64(e.Limit)))
}

// Err returns a *KilledError if the kernel has ended a process since, and nil if it has not or that is not known. Ask
// when a process has ended, to learn why.
func (k Kills) Err() error {
	if k.group != nil && k.inGroup != nil {
		n, err := k.group.OOMKills()
		switch {
		case err == nil && n == *k.inGroup:
			return nil
		case err == nil:
			e := &KilledError{Group: k.group.Name()}
			if limit, ok, err := k.group.Limit(); err == nil && ok {
				e.Limit = limit
			}
			return e
		}
	}
	return k.ErrOnMachine() // the group is gone, or does not count
}

// ErrOnMachine is Err for a process that may have been in any group.
func (k Kills) ErrOnMachine() error {
	if k.onMachine == nil {
		return nil
	}
	if n, err := k.sys.hostKills(); err != nil || n == *k.onMachine {
		return nil
	}
	return &KilledError{}
}
