package testenv

// This file runs commands in containers.

import (
	"os/exec"
	"syscall"
)

// Container describes a container. It always has PID and mount namespaces of its own.
type Container struct {
	User   bool   // it also has a user namespace of its own, in which the caller is root
	Cgroup bool   // it also has a cgroup namespace of its own; the mounted hierarchies stay those of the host
	NoProc bool   // /proc stays that of the host
	First  string // shell commands that run in it before the command
}

// Command returns a command that runs in a new container as process 1. args are the program and its
// arguments. Killing its Process ends the whole container.
func (c Container) Command(args ...string) *exec.Cmd {
	script := "set -e\n"
	if !c.NoProc {
		script += "mount -t proc proc /proc\n"
	}
	cmd := exec.Command("sh", append([]string{"-c", script + c.First + "\nexec \"$@\"", "sh"}, args...)...)
	// With CLONE_NEWNS in Unshareflags, package syscall also makes the mounts private.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	if c.Cgroup {
		cmd.SysProcAttr.Unshareflags |= syscall.CLONE_NEWCGROUP
	}
	if c.User {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{Size: 1, HostID: syscall.Getuid()}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{Size: 1, HostID: syscall.Getgid()}}
	}
	return cmd
}
