package testenv

// This file puts commands into containers.

import (
	"os/exec"
	"syscall"
)

// Container says how a container differs from the host, besides having PID and mount namespaces of its own.
type Container struct {
	User   bool   // it has a user namespace of its own, too, in which the caller is root
	Cgroup bool   // it has a cgroup namespace of its own; the hierarchies that are mounted stay those of the host
	NoProc bool   // /proc stays that of the host
	First  string // shell commands that run in it before the command
}

// Command is a command in a new container, where it becomes process 1, from args: the program and its arguments. Kill its Process, and all of the container ends.
func (c Container) Command(args ...string) *exec.Cmd {
	script := "set -e\n"
	if !c.NoProc {
		script += "mount -t proc proc /proc\n"
	}
	cmd := exec.Command("sh", append([]string{"-c", script + c.First + "\nexec \"$@\"", "sh"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS} // which makes mounts private
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
