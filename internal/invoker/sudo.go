package invoker

// This file finds the environment that the user had when sudo was typed.

import (
	"os"

	"github.com/prometheus/procfs"
)

// maxAncestors bounds the walk towards process 1, which ends there anyway unless processes come and go meanwhile.
const maxAncestors = 100

// sudoEnviron returns the environment that sudo was started with: what the kernel keeps of sudo's own process, the first ancestor
// without variables of sudo. Where sudo has replaced itself with its command instead of waiting for it, that is the user's shell, as it was
// started. nil if neither is an ancestor any more.
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
				return nil // sudo is gone, and this is whoever took its children
			}
			return environ
		}
		if pid = stat.PPID; pid <= 1 {
			return nil
		}
	}
	return nil
}
