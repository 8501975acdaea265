package proc

// This file finds out in which namespaces this process is. Process ids mean something only within a PID namespace, and the kernel grants eBPF to processes in the first
// user namespace only.

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// ErrForeignProc says that /proc cannot be read by the process ids that this process knows.
var ErrForeignProc = errors.New("/proc is not mounted here, or shows the ids of another PID namespace: mount proc on /proc in this one")

// The kernel gives the first namespaces fixed inode numbers (PROC_PID_INIT_INO and PROC_USER_INIT_INO in include/linux/proc_ns.h, since Linux 3.8).
const (
	firstUserNamespace = 0xEFFFFFFD
	firstPIDNamespace  = 0xEFFFFFFC
)

// CheckMount reports whether /proc is that of this process's PID namespace; the error is ErrForeignProc if not. In a new PID namespace it is the old one's until it is
// mounted anew: then /proc/N is another process than the N to which signals and probes go, or none.
func CheckMount() error {
	self, err := os.Readlink("/proc/self") // the caller's id in the namespace of the mount; nothing if it has none there
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
	if len(status.NSpids) > 1 { // the ids in all namespaces from the mount's down: the numbers are equal by chance
		return ErrForeignProc
	}
	return nil
}

// PIDNamespace returns the inode number of this process's PID namespace; 0 for the first one, in which ids are the kernel's own.
func PIDNamespace() (uint32, error) {
	ino, err := namespace("pid")
	if ino == firstPIDNamespace || errors.Is(err, os.ErrNotExist) { // a kernel without PID namespaces
		return 0, nil
	}
	return uint32(ino), err
}

// InUserNamespace reports whether this process is in another user namespace than the first, as in a container without root. There, capabilities are valid for what
// belongs to the namespace, and eBPF does not.
func InUserNamespace() (bool, error) {
	ino, err := namespace("user")
	if errors.Is(err, os.ErrNotExist) { // a kernel without user namespaces
		return false, nil
	}
	return ino != firstUserNamespace, err
}

func namespace(kind string) (ino uint64, err error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/"+kind, &st); err != nil {
		return 0, fmt.Errorf("read this process's %s namespace: %w", kind, err)
	}
	return st.Ino, nil
}
