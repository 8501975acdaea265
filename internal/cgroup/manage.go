package cgroup

// This file changes groups: it creates and removes them, sets limits, and moves processes. This
// takes root, or ownership of the directories.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Root returns the highest visible group. It is the parent for a group that nothing else should limit.
func Root() (*Group, error) {
	g, err := Find(0)
	if err != nil {
		return nil, err
	}
	return g.at(func(string) string { return "/" }), nil
}

// at returns the group at another path, in each of g's hierarchies.
func (g *Group) at(changePath func(rel string) string) *Group {
	other := *g
	for _, h := range []*hierarchy{&other.mem, &other.io, &other.v2} {
		if *h != (hierarchy{}) {
			h.rel = changePath(h.rel)
		}
	}
	return &other
}

// hierarchies lists the group's directories without duplicates, memory first.
func (g *Group) hierarchies() []hierarchy {
	all := []hierarchy{g.mem}
	for _, h := range []hierarchy{g.io, g.v2} {
		if h != (hierarchy{}) && h != g.mem {
			all = append(all, h)
		}
	}
	return all
}

// Create creates a group below parent, in all of parent's hierarchies. On version 2 it enables the
// controllers memory and io for the parent's children, permanently; the kernel refuses that (EBUSY)
// if the parent has processes of its own and is not the root.
func Create(parent *Group, name string) (*Group, error) {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return nil, fmt.Errorf("create control group %q: not a name", name)
	}
	if parent.version == 2 {
		control := parent.mem.file("cgroup.subtree_control")
		if err := write(control, "+memory"); errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf(
				"enable the memory controller below %s, which has processes of its own (a container?): %w",
				parent.Name(), err)
		} else if err != nil {
			return nil, fmt.Errorf("enable the memory controller below %s: %w", parent.Name(), err)
		}
		// Without the io controller, ReadBytes has nothing to report, but the group is still useful.
		if err := write(control, "+io"); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("enable the io controller below %s: %w", parent.Name(), err)
		}
	}
	g := parent.at(func(rel string) string { return path.Join(rel, name) })
	for i, h := range g.hierarchies() {
		if err := os.Mkdir(h.dir(), 0o755); err != nil {
			err = fmt.Errorf("create control group: %w", err)
			for _, made := range g.hierarchies()[:i] {
				err = errors.Join(err, unix.Rmdir(made.dir()))
			}
			return nil, err
		}
	}
	return g, nil
}

// removeTimeout bounds how long Remove waits until killed processes are gone. A process in the
// kernel, for example in a page fault on a slow disk, takes a while.
const removeTimeout = 10 * time.Second

// Remove kills the processes in the group and removes the group. A group with subgroups is not
// removed. Page cache that was charged to the group is then charged to no group. It is no error if
// the group does not exist.
func (g *Group) Remove() error {
	deadline := time.Now().Add(removeTimeout)
	for {
		if err := g.killProcesses(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove control group %s: %w", g.Name(), err)
		}
		var busy error
		for _, h := range g.hierarchies() {
			err := unix.Rmdir(h.dir())
			switch {
			case err == nil || err == unix.ENOENT:
			case err == unix.EBUSY && !hasSubgroups(h.dir()):
				busy = err // its processes have not ended yet
			default:
				return fmt.Errorf("remove control group %s: %w", h.dir(), err)
			}
		}
		if busy == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove control group %s: %w (its processes do not end)", g.Name(), busy)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// hasSubgroups reports whether a group's directory contains others.
func hasSubgroups(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && slices.ContainsFunc(entries, os.DirEntry.IsDir)
}

// Procs returns the ids of the processes in the group, without those in its descendants.
func (g *Group) Procs() ([]int, error) {
	text, err := os.ReadFile(g.mem.file("cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, word := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", g.mem.file("cgroup.procs"), err)
		}
		if pid > 0 { // 0 stands for a process that is not visible in this pid namespace
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// killProcesses kills the processes in the group. It fails if this process is one of them.
func (g *Group) killProcesses() error {
	pids, err := g.Procs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if pid == os.Getpid() {
			return errors.New("this process itself is in it")
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}

// Join moves a process into the group, in all of the group's hierarchies. pid 0 is the caller.
// Memory that was charged before stays charged to the group that the process leaves.
func (g *Group) Join(pid int) error {
	for _, file := range g.ProcsFiles() {
		if err := write(file, strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("move process %d to control group %s: %w", pid, g.Name(), err)
		}
	}
	return nil
}

// ProcsFiles returns the cgroup.procs files of the group, memory's first. A process joins the group
// by writing 0 to each.
func (g *Group) ProcsFiles() []string {
	var files []string
	for _, h := range g.hierarchies() {
		files = append(files, h.file("cgroup.procs"))
	}
	return files
}

// SetLimit limits the group's memory and prevents it from swapping. If the limit is below the
// usage, the kernel reclaims; if that does not suffice, version 1 refuses (EBUSY) and version 2
// kills.
func (g *Group) SetLimit(limit int64) error {
	if limit <= 0 {
		return fmt.Errorf("limit control group %s to %d bytes: not an amount", g.Name(), limit)
	}
	if err := g.setLimit(strconv.FormatInt(limit, 10)); err != nil {
		return fmt.Errorf("limit control group %s to %d bytes: %w", g.Name(), limit, err)
	}
	return nil
}

func (g *Group) setLimit(limit string) error {
	if g.version == 2 {
		return errors.Join(
			ignoreAbsent(write(g.mem.file("memory.swap.max"), "0")),
			write(g.mem.file("memory.max"), limit))
	}
	// A version 1 group inherits its parent's swappiness; 0 prevents swapping as long as there is
	// page cache to drop.
	if err := ignoreAbsent(write(g.mem.file("memory.swappiness"), "0")); err != nil {
		return err
	}
	// The limit of memory plus swap must never be below that of memory, so it is raised first and
	// lowered last.
	memory, both := g.mem.file("memory.limit_in_bytes"), g.mem.file("memory.memsw.limit_in_bytes")
	err := write(memory, limit)
	if errors.Is(err, unix.EINVAL) {
		if err := write(both, limit); err != nil {
			return err
		}
		return write(memory, limit)
	}
	if err != nil {
		return err
	}
	return ignoreAbsent(write(both, limit))
}

// ignoreAbsent drops errors that say that a file does not exist.
func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// AccountReads makes sure that ReadBytes counts the reads from this disk from now on. Since Linux
// 6.10, version 1 counts nothing for a disk until a group's reads from it have been throttled once.
// Therefore this sets a limit that is never reached, and removes it.
func (g *Group) AccountReads(major, minor uint32) error {
	if g.version != 1 || g.io == (hierarchy{}) {
		return nil
	}
	file := g.io.file("blkio.throttle.read_bps_device")
	for _, limit := range []uint64{1 << 62, 0} { // 0 removes the limit
		if err := write(file, fmt.Sprintf("%d:%d %d", major, minor, limit)); err != nil {
			return fmt.Errorf("account for reads of disk %d:%d: %w", major, minor, err)
		}
	}
	return nil
}

// ErrNoDiskControl says that control groups cannot limit or count reads from disks here. The error
// that wraps it says why.
var ErrNoDiskControl = errors.New("control groups do not reach disks here")

// SetReadRate limits how many bytes the group reads per second from a disk. It covers all kinds of
// reads: the kernel charges a read into the page cache to the task that submits it (a fault, a
// readahead, an madvise). The disk is given as for [Group.ReadBytes]. The error wraps
// [ErrNoDiskControl] where the io controller (version 1: blkio) is not mounted, not enabled or has
// no limits (CONFIG_BLK_DEV_THROTTLING).
func (g *Group) SetReadRate(major, minor uint32, bytesPerSecond int64) error {
	if bytesPerSecond <= 0 {
		return fmt.Errorf("limit the reads of control group %s to %d bytes per second: not an amount",
			g.Name(), bytesPerSecond)
	}
	file, missing := "io.max", "the io controller is not enabled above the group"
	text := fmt.Sprintf("%d:%d rbps=%d", major, minor, bytesPerSecond)
	if g.version == 1 {
		file, missing = "blkio.throttle.read_bps_device", "the kernel has no CONFIG_BLK_DEV_THROTTLING"
		text = fmt.Sprintf("%d:%d %d", major, minor, bytesPerSecond)
	}
	if g.io == (hierarchy{}) {
		return fmt.Errorf("%w: the blkio hierarchy is not mounted: mkdir -p /sys/fs/cgroup/blkio && "+
			"mount -t cgroup -o blkio none /sys/fs/cgroup/blkio", ErrNoDiskControl)
	}
	err := write(g.io.file(file), text)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s, or %s", ErrNoDiskControl, err, missing)
	}
	if err != nil {
		return fmt.Errorf("limit the reads of control group %s from disk %d:%d: %w",
			g.Name(), major, minor, err)
	}
	return nil
}

// write writes to an existing file of the kernel; it never creates one.
func write(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
