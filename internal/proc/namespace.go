package proc

// This file finds out in which namespaces this process is. Process ids are valid within one PID
// namespace only, and the kernel grants eBPF only to processes in the first user namespace.

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// ErrForeignProc says that the process ids in /proc are not those that this process knows.
var ErrForeignProc = errors.New("/proc is not mounted here, or shows the ids of another PID namespace: " +
	"mount proc on /proc in this one")

// The kernel gives the first namespaces fixed inode numbers (PROC_PID_INIT_INO and
// PROC_USER_INIT_INO in include/linux/proc_ns.h, since Linux 3.8).
const (
	firstUserNamespace = 0xEFFFFFFD
	firstPIDNamespace  = 0xEFFFFFFC
)

// CheckMount returns ErrForeignProc if /proc does not show this process's PID namespace. In a new
// PID namespace, /proc shows the old one until it is mounted anew. Then /proc/N is not the process
// N to which signals and probes go.
func CheckMount() error {
	// the caller's id in the namespace of the mount; nothing if it has none there
	self, err := os.Readlink("/proc/self")
	if err != nil || self != strconv.Itoa(os.Getpid()) {
		return ErrForeignProc
	}
	p, err := procfs.NewProc(os.Getpid())
	if err != nil {
		return fmt.Errorf("read this process's entry in /proc: %w", err)
	}
	status, err := p.NewStatus()
	if err != nil {
		return fmt.Errorf("read this process's status: %w", err)
	}
	// NSpids has an id for each namespace from that of the mount down. With more than one, the ids
	// above are equal by chance.
	if len(status.NSpids) > 1 {
		return ErrForeignProc
	}
	return nil
}

// PIDNamespace returns the inode number of this process's PID namespace. It returns 0 for the first
// one, whose ids are the kernel's own.
func PIDNamespace() (uint32, error) {
	ino, err := namespaceInode("pid")
	if ino == firstPIDNamespace || errors.Is(err, os.ErrNotExist) { // a kernel without PID namespaces
		return 0, nil
	}
	return uint32(ino), err
}

// InUserNamespace reports whether this process is in another user namespace than the first, as in a
// container without root. There, capabilities apply only to what belongs to the namespace. eBPF
// does not belong to it.
func InUserNamespace() (bool, error) {
	ino, err := namespaceInode("user")
	if errors.Is(err, os.ErrNotExist) { // a kernel without user namespaces
		return false, nil
	}
	return ino != firstUserNamespace, err
}

func namespaceInode(kind string) (ino uint64, err error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/"+kind, &st); err != nil {
		return 0, fmt.Errorf("read this process's %s namespace: %w", kind, err)
	}
	return st.Ino, nil
}
