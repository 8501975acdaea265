// Package cgroup reads and manages memory control groups: how much memory a process's group may
// use, how much it uses, which ancestors limit it, and how much the group reads from disk. Package
// prefetch uses it to find out how much memory is left. The experiments use it to create groups
// with limits.
//
// Both versions are supported: version 1, where memory and disk reads (blkio) have separate
// hierarchies, and version 2 with one hierarchy. In the mixed form, memory is version 1, and a
// version 2 hierarchy without the memory controller gives the group's pressure.
//
// All amounts are bytes. A [Group] holds only names, no descriptors, and every call reads the
// kernel's files, so its methods may be called concurrently. If a file does not exist (an old
// kernel, a controller that is not enabled), the result is an error that wraps [fs.ErrNotExist];
// where the file holds just one of several numbers, that number is 0.
package cgroup

// This file finds the control groups of a process, and reads the files of a group.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

var (
	// ErrNoController says that no memory controller is visible in this kernel or container.
	ErrNoController = errors.New("no memory control group hierarchy is mounted")
	// ErrHidden says that the process's group is not visible in this cgroup namespace or container.
	ErrHidden = errors.New("the control group of the process is not visible from here")
)

// hierarchy is a group's directory in a mounted cgroup hierarchy. The zero value stands for a
// hierarchy that is not mounted.
type hierarchy struct {
	mount string // mount point of the hierarchy
	rel   string // path of the group below mount: "/" or "/a/b"
}

func (h hierarchy) dir() string { return filepath.Join(h.mount, h.rel) }

func (h hierarchy) file(name string) string { return filepath.Join(h.mount, h.rel, name) }

// chain lists the group and its visible ancestors, the group first.
func (h hierarchy) chain() []hierarchy {
	var all []hierarchy
	for rel := h.rel; ; rel = path.Dir(rel) {
		all = append(all, hierarchy{h.mount, rel})
		if rel == "/" {
			return all
		}
	}
}

// Group is a memory control group.
type Group struct {
	version int
	sys     system
	mem     hierarchy
	io      hierarchy // where disk reads are accounted; on version 2 the same as mem
	v2      hierarchy // where pressure is accounted; on version 2 the same as mem
}

// Version is 1 or 2.
func (g *Group) Version() int { return g.version }

// Name is the visible part of the group's path in the hierarchy: "/" or "/a/b".
func (g *Group) Name() string { return g.mem.rel }

// Dir is the directory with the group's memory files.
func (g *Group) Dir() string { return g.mem.dir() }

// Inode returns the number of the group's directory in the file system of its memory controller, by which the kernel
// names the group where it tells who pays for a page.
func (g *Group) Inode() (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(g.Dir(), &stat); err != nil {
		return 0, fmt.Errorf("stat the control group %s: %w", g.Dir(), err)
	}
	return stat.Ino, nil
}

// Hidden reports whether the group has ancestors that are not visible here, as in a container.
// Their limits apply nevertheless.
func (g *Group) Hidden() bool {
	top := hierarchy{g.mem.mount, "/"}
	if g.version == 1 {
		_, err := os.Stat(top.file("release_agent")) // only the real root has this file
		return err != nil
	}
	_, err := os.Stat(top.file("cgroup.type")) // all groups except the real root have this file
	return err == nil
}

// system is the root directory of the kernel's files. It is "/" except in tests, which use a tree
// of fixtures.
type system struct{ root string }

func (s system) file(name string) string { return filepath.Join(s.root, name) }

func (s system) proc() (procfs.FS, error) { return procfs.NewFS(filepath.Join(s.root, "/proc")) }

// Find returns the memory control group of a process. pid 0 is the caller.
func Find(pid int) (*Group, error) { return system{"/"}.find(pid) }

func (s system) find(pid int) (*Group, error) {
	if pid == 0 {
		pid = os.Getpid()
	}
	g, err := s.lookup(pid)
	if err != nil {
		return nil, fmt.Errorf("memory control group of process %d: %w", pid, err)
	}
	return g, nil
}

func (s system) lookup(pid int) (*Group, error) {
	proc, err := s.proc()
	if err != nil {
		return nil, err
	}
	p, err := proc.Proc(pid)
	if err != nil {
		return nil, err
	}
	groups, err := p.Cgroups()
	if err != nil {
		return nil, err
	}
	mounts, err := proc.GetMounts() // the mounts of this process, which opens the files
	if err != nil {
		return nil, err
	}
	g := &Group{sys: s}
	var hidden error
	for _, c := range groups {
		unified := c.HierarchyID == 0
		controller := ""
		switch {
		case unified:
		case slices.Contains(c.Controllers, "memory"):
			controller = "memory"
		case slices.Contains(c.Controllers, "blkio"):
			controller = "blkio"
		default:
			continue
		}
		h, err := s.findMounted(mounts, controller, c.Path)
		switch {
		case errors.Is(err, ErrHidden) && controller != "blkio":
			hidden = err
		case err != nil:
		case controller == "memory":
			g.version, g.mem = 1, h
		case controller == "blkio":
			g.io = h
		case unified:
			g.v2 = h
		}
	}
	if g.version == 0 && g.v2 != (hierarchy{}) && hasMemory(g.v2.mount) {
		g.version, g.mem, g.io = 2, g.v2, g.v2
	}
	switch {
	case g.version == 0 && hidden != nil:
		return nil, hidden
	case g.version == 0:
		return nil, ErrNoController
	}
	return g, nil
}

// hasMemory reports whether a version 2 hierarchy has the memory controller. It does not if a
// version 1 hierarchy uses the controller.
func hasMemory(mount string) bool {
	text, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	return err == nil && slices.Contains(strings.Fields(string(text)), "memory")
}

// findMounted finds the group's directory. group is the path in /proc/PID/cgroup; controller is ""
// for version 2. A hierarchy may be mounted at several mount points, each of which shows all of it
// or a part.
func (s system) findMounted(mounts []*procfs.MountInfo, controller, group string) (hierarchy, error) {
	err := ErrNoController
	for _, m := range mounts {
		if controller == "" {
			if m.FSType != "cgroup2" {
				continue
			}
		} else if _, ok := m.SuperOptions[controller]; m.FSType != "cgroup" || !ok {
			continue
		}
		if rel, ok := pathBelow(group, m.Root); ok {
			h := hierarchy{filepath.Join(s.root, m.MountPoint), rel}
			if _, statErr := os.Stat(h.dir()); statErr == nil {
				return h, nil
			}
		}
		err = fmt.Errorf("%w: %s", ErrHidden, group)
	}
	return hierarchy{}, err
}

// pathBelow returns group relative to root, as an absolute path; false if it is not below root.
func pathBelow(group, root string) (string, bool) {
	if slices.Contains(strings.Split(group, "/"), "..") {
		return "", false // a cgroup namespace shows groups outside of it like this
	}
	if root != "/" {
		rest, ok := strings.CutPrefix(group, root)
		if !ok || rest != "" && rest[0] != '/' {
			return "", false
		}
		group = rest
	}
	return path.Join("/", group), true
}

// unlimited is above any meaningful limit. Version 1 expresses "no limit" by the largest number of
// whole pages.
const unlimited = 1 << 62

// readNumber reads a file with a single number; "max" is [unlimited].
func readNumber(file string) (int64, error) {
	return readParsed(file, parseNumber)
}

// readParsed reads a file and parses its text; errors name the file.
func readParsed[T any](file string, parse func(text string) (T, error)) (T, error) {
	var none T
	text, err := read(file)
	if err != nil {
		return none, err
	}
	value, err := parse(text)
	if err != nil {
		return none, fmt.Errorf("%s: %w", file, err)
	}
	return value, nil
}

// read returns the text of one of the kernel's files. os.ReadFile takes several times as long,
// because it offers each descriptor to the runtime's poller first, and these files accept that.
// They are read some hundred times per second.
func read(file string) (string, error) {
	fd, err := open(file, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var buf [4096]byte
	var text []byte
	for {
		n, err := retry(func() (int, error) { return unix.Read(fd, buf[:]) })
		if err != nil {
			return "", &fs.PathError{Op: "read", Path: file, Err: err}
		}
		if n <= 0 {
			return string(text), nil
		}
		text = append(text, buf[:n]...)
	}
}

func open(file string, flags int) (fd int, err error) {
	if fd, err = retry(func() (int, error) { return unix.Open(file, flags|unix.O_CLOEXEC, 0) }); err != nil {
		return -1, &fs.PathError{Op: "open", Path: file, Err: err}
	}
	return fd, nil
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// parseNumber parses a single number. "max" and larger numbers are [unlimited].
func parseNumber(text string) (int64, error) {
	word := strings.TrimSpace(text)
	if word == "max" {
		return unlimited, nil
	}
	n, err := strconv.ParseUint(word, 10, 64)
	return int64(min(n, unlimited)), err
}

// readPairs reads a file with lines of the form "name number".
func readPairs(file string) (map[string]int64, error) {
	return readParsed(file, parsePairs)
}

func parsePairs(text string) (map[string]int64, error) {
	m := map[string]int64{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		m[name] = int64(min(n, unlimited))
	}
	return m, nil
}
