// This file changes groups: it makes and removes them, limits them, and moves processes into them. Root, or an owner of the directories, can.

package cgroup

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

// Root returns the highest visible group: the parent for a group that nothing else shall limit.
func Root() (*Group, error) {
	g, err := Find(0)
	if err != nil {
		return nil, err
	}
	return g.at(func(string) string { return "/" }), nil
}

// at returns the group that has another place in each of g's hierarchies.
func (g *Group) at(place func(rel string) string) *Group {
	other := *g
	for _, h := range []*hierarchy{&other.mem, &other.io, &other.v2} {
		if *h != (hierarchy{}) {
			h.rel = place(h.rel)
		}
	}
	return &other
}

// hierarchies lists the group's directories, each once, memory first.
func (g *Group) hierarchies() []hierarchy {
	all := []hierarchy{g.mem}
	for _, h := range []hierarchy{g.io, g.v2} {
		if h != (hierarchy{}) && h != g.mem {
			all = append(all, h)
		}
	}
	return all
}

// Create makes a group below parent, in all of parent's hierarchies. On v2 the parent's controllers memory and io are
// enabled for its children, and stay so; that is refused (EBUSY) if the parent has processes of its own and is not the root.
func Create(parent *Group, name string) (*Group, error) {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return nil, fmt.Errorf("create control group %q: not a name", name)
	}
	if parent.version == 2 {
		control := parent.mem.file("cgroup.subtree_control")
		if err := write(control, "+memory"); errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("enable the memory controller below %s, which has processes of its own (a container?): %w", parent.Name(), err)
		} else if err != nil {
			return nil, fmt.Errorf("enable the memory controller below %s: %w", parent.Name(), err)
		}
		// Reading disks is accounted without it, per process: its lack shows in ReadBytes.
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

// removeTimeout bounds how long Remove waits for killed processes to be gone. One that sits in the kernel, in a page fault on a slow disk, takes its time.
const removeTimeout = 10 * time.Second

// Remove kills what is in the group and removes it; a group with groups in it is refused. Page cache that is still charged to it then counts for nobody. A group that is gone is no error.
func (g *Group) Remove() error {
	deadline := time.Now().Add(removeTimeout)
	for {
		if err := g.kill(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove control group %s: %w", g.Name(), err)
		}
		var busy error
		for _, h := range g.hierarchies() {
			err := unix.Rmdir(h.dir())
			switch {
			case err == nil || err == unix.ENOENT:
			case err == unix.EBUSY && !hasGroups(h.dir()):
				busy = err // its processes are not gone yet
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

func hasGroups(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && slices.ContainsFunc(entries, os.DirEntry.IsDir)
}

// Procs returns the ids of the processes in the group, those of its descendants left out.
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
		if pid > 0 { // 0 is a process that this pid namespace does not show
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func (g *Group) kill() error {
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

// Join moves the process into the group: for memory, and where that is another hierarchy also for the account of disk
// reads and of pressure. pid 0 is the caller. What it was charged for before stays with the group that it leaves.
func (g *Group) Join(pid int) error {
	for _, file := range g.ProcsFiles() {
		if err := write(file, strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("move process %d to control group %s: %w", pid, g.Name(), err)
		}
	}
	return nil
}

// ProcsFiles returns the cgroup.procs files of the group, memory's first: a process that writes 0 to each has joined.
func (g *Group) ProcsFiles() []string {
	var files []string
	for _, h := range g.hierarchies() {
		files = append(files, h.file("cgroup.procs"))
	}
	return files
}

// SetLimit limits the group and keeps it from swapping. A limit below the usage reclaims first; if that does not suffice,
// v1 refuses (EBUSY) and v2 kills.
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
		return errors.Join(ignoreAbsent(write(g.mem.file("memory.swap.max"), "0")), write(g.mem.file("memory.max"), limit))
	}
	// A group of v1 inherits its parent's swappiness; 0 keeps it from swapping as long as there is page cache to drop.
	if err := ignoreAbsent(write(g.mem.file("memory.swappiness"), "0")); err != nil {
		return err
	}
	// The limit of memory and swap may never be below that of memory: so it goes first on the way up and last on the way down.
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

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// AccountReads makes sure that ReadBytes counts what is read from this disk from now on. On v1 since Linux 6.10 nothing is counted for
// a disk until some group's reads from it were limited once; so this sets a limit that none reaches, and takes it back.
func (g *Group) AccountReads(major, minor uint32) error {
	if g.version != 1 || g.io == (hierarchy{}) {
		return nil
	}
	file := g.io.file("blkio.throttle.read_bps_device")
	for _, limit := range []uint64{1 << 62, 0} { // 0 is none
		if err := write(file, fmt.Sprintf("%d:%d %d", major, minor, limit)); err != nil {
			return fmt.Errorf("account for reads of disk %d:%d: %w", major, minor, err)
		}
	}
	return nil
}

// write writes to one of the kernel's files, which exist or do not: it never creates one.
func write(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
