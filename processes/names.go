package processes

// This file says whether a process has a name that somebody asks for.

import (
	"path"
	"strings"

	"github.com/prometheus/procfs"

	"tensorcast/internal/proc"
	"tensorcast/internal/systemd"
)

// IsNamed says whether a process has a name: as the kernel calls it, as its executable is called, as it was called
// when it was started (argv[0]), or as the systemd unit is called that it belongs to, with or without ".service".
func IsNamed(pid int, name string) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	if comm, err := p.Comm(); err == nil && comm == name {
		return true
	}
	if exe, err := p.Executable(); err == nil && path.Base(strings.TrimSuffix(exe, " (deleted)")) == name {
		return true
	}
	if line := proc.CommandLine(pid); len(line) > 0 && path.Base(line[0]) == name {
		return true
	}
	return isInUnit(p, name)
}

// isInUnit says whether a process belongs to a service or scope of systemd.
func isInUnit(p procfs.Proc, name string) bool {
	groups, err := p.Cgroups()
	if err != nil {
		return false
	}
	for _, g := range groups {
		for _, unit := range systemd.Units(g.Path) {
			if base := path.Base(unit); base == name || base == name+".service" {
				return true
			}
		}
	}
	return false
}
