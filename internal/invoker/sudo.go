package invoker

// This file finds the environment that the user had when sudo was run.

import (
	"os"

	"github.com/prometheus/procfs"
)

// maxAncestors bounds the walk up to process 1; without it, the walk might not end if processes
// come and go meanwhile.
const maxAncestors = 100

// sudoEnviron returns the environment that sudo was started with. It is that of sudo's own process,
// which is the first ancestor without sudo's variables. If sudo has replaced itself by its command
// instead of waiting for it, that ancestor is the user's shell, with the environment that the shell
// was started with. The result is nil if neither is an ancestor any more.
func sudoEnviron(uid uint32) []string {
	pid := os.Getppid()
	for range maxAncestors {
		proc, err := procfs.NewProc(pid)
		if err != nil {
			return nil
		}
		stat, err := proc.Stat()
		if err != nil {
			return nil
		}
		environ, err := proc.Environ()
		if err != nil {
			return nil
		}
		if _, inside := lookup(environ, "SUDO_UID"); !inside {
			status, err := proc.NewStatus()
			if err != nil || stat.Comm != "sudo" && status.UIDs[0] != uint64(uid) {
				return nil // sudo has ended; this process has adopted its children
			}
			return environ
		}
		if pid = stat.PPID; pid <= 1 {
			return nil
		}
	}
	return nil
}
