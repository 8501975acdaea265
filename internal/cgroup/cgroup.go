// Package cgroup knows the memory control group of a process: how much it may use, how much it uses, and who else limits it.
//
// Both versions are supported: the memory controller in its own hierarchy (v1) and the unified hierarchy (v2); also the mixed
// form, where memory is v1 and a v2 hierarchy without it stands beside, which then gives the group's pressure. The group's
// account of disk reads comes along: on v1 it is in another hierarchy (blkio), on v2 in the same directory.
//
// All amounts are bytes. A [Group] holds names only and no descriptors; every call reads the kernel's files anew, so its
// methods may be called concurrently. A file that this kernel does not have (an old kernel, a controller that is not enabled)
// is an error that wraps [fs.ErrNotExist] where the answer depends on it, and a zero where it is one number of several.
package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

var (
	// ErrNoController means that this kernel, or this container, has no memory controller that can be seen.
	ErrNoController = errors.New("no memory control group hierarchy is mounted")
	// ErrHidden means that the process is in a group outside of what this cgroup namespace or container shows.
	ErrHidden = errors.New("the control group of the process is not visible from here")
)

// hierarchy is one directory of one mounted cgroup hierarchy; the zero value is that of a hierarchy that is not mounted.
type hierarchy struct {
	mount string // where the hierarchy is mounted
	rel   string // the group below it: "/" or "/a/b"
}

func (h hierarchy) dir() string { return filepath.Join(h.mount, h.rel) }

func (h hierarchy) file(name string) string { return filepath.Join(h.mount, h.rel, name) }

// chain lists the group and its visible ancestors, from the group up.
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
	io      hierarchy // has the account of disk reads; on version 2 the same as mem
	v2      hierarchy // has the account of pressure; on version 2 the same as mem
}

// Version is 1 or 2.
func (g *Group) Version() int { return g.version }

// Name is the group's path in the hierarchy as far as it is visible here: "/" or "/a/b".
func (g *Group) Name() string { return g.mem.rel }

// Dir is the directory of the group's memory files.
func (g *Group) Dir() string { return g.mem.dir() }

// Hidden reports whether the group has ancestors that are not visible here, as in a container: their limits hold all the same.
func (g *Group) Hidden() bool {
	top := hierarchy{g.mem.mount, "/"}
	if g.version == 1 {
		_, err := os.Stat(top.file("release_agent")) // only the true root has it
		return err != nil
	}
	_, err := os.Stat(top.file("cgroup.type")) // only the true root has it not
	return err == nil
}

// system is where the kernel's files are; tests put a tree of fixtures there.
type system struct{ root string }

func (s system) proc() (procfs.FS, error) { return procfs.NewFS(filepath.Join(s.root, "/proc")) }

// Find returns the memory control group that the process is in. pid 0 is the caller.
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
	mounts, err := proc.GetMounts() // ours: it is we who open the files
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
		h, err := s.mounted(mounts, controller, c.Path)
		switch {
		case err != nil && controller != "blkio":
			hidden = errors.Join(hidden, err)
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
	if g.version == 0 {
		return nil, errors.Join(ErrNoController, hidden)
	}
	return g, nil
}

// hasMemory reports whether a unified hierarchy has the memory controller: not if a v1 hierarchy has taken it.
func hasMemory(mount string) bool {
	text, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	return err == nil && slices.Contains(strings.Fields(string(text)), "memory")
}

// mounted finds the group's directory. group is as /proc/PID/cgroup has it, controller is "" for the unified hierarchy. A
// hierarchy may be mounted in several places, each showing all of it or a part.
func (s system) mounted(mounts []*procfs.MountInfo, controller, group string) (hierarchy, error) {
	err := fmt.Errorf("the hierarchy of %s is not mounted", group)
	for _, m := range mounts {
		if controller == "" {
			if m.FSType != "cgroup2" {
				continue
			}
		} else if _, ok := m.SuperOptions[controller]; m.FSType != "cgroup" || !ok {
			continue
		}
		if rel, ok := below(group, m.Root); ok {
			h := hierarchy{filepath.Join(s.root, m.MountPoint), rel}
			if _, statErr := os.Stat(h.dir()); statErr == nil {
				return h, nil
			}
		}
		err = fmt.Errorf("%w: %s", ErrHidden, group)
	}
	return hierarchy{}, err
}

// below returns path relative to root, as an absolute path; false if it is not below root or leaves it.
func below(group, root string) (string, bool) {
	if slices.Contains(strings.Split(group, "/"), "..") {
		return "", false // how a namespace names what is outside of it
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

// unlimited is above any limit that means something; v1 says "no limit" by the largest number of whole pages.
const unlimited = 1 << 62

// number reads a file with one number. "max" is [unlimited].
func number(file string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	word := strings.TrimSpace(string(text))
	if word == "max" {
		return unlimited, nil
	}
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return int64(min(n, unlimited)), nil
}

// pairs reads a file of lines "name number".
func pairs(file string) (map[string]int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	m := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, name, err)
		}
		m[name] = int64(min(n, unlimited))
	}
	return m, nil
}
