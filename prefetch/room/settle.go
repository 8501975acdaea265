package room

// This file prepares this process to be beside its target. When memory is short, this process must be killed
// first. It must pay for what it reads where the target would pay. It must get a core when it needs one.

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/systemd"
)

// Settle makes this process the out-of-memory killer's choice, lifts its limit on locked memory, and raises
// the calling thread's priority, in this order. Only the first is indispensable. If one of the others fails,
// that is logged. others says that there are processes which the killer is to choose before this one, because
// they end with it. See also [ProcessMemory.Join].
func Settle(log *slog.Logger, others bool) error {
	score := "1000"
	if others {
		score = "500"
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(score), 0); err != nil {
		return fmt.Errorf("offer itself to the out-of-memory killer: %w", err)
	}
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited); err != nil {
		log.Debug("cannot lift the limit on locked memory, which CAP_IPC_LOCK overrides", "error", err)
	}
	// ggml's threads spin at barriers on all cores. At equal priority a read ahead would wait for a time
	// slice. This sets the priority of the calling thread.
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, niceness); err != nil {
		log.Warn("cannot raise the priority", "error", err)
	}
	return nil
}

// SetUrgent makes the calling thread run whenever it can (SCHED_FIFO), or, with false, as [Settle] left it. A
// nice value is not enough. Where ggml's threads spin on all processors, a thread that has used its share
// waits for the next tick, which was 2 ms for one in ten of a router's choices. Threads that it starts do not
// inherit this.
func SetUrgent(urgent bool) error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: niceness}
	if urgent {
		attr = unix.SchedAttr{
			Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
		}
	}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		return fmt.Errorf("change how this thread is scheduled: %w", err)
	}
	return nil
}

// niceness is the nice value of this process's threads while it helps.
const niceness = -15

// joinGroup moves this process to the target's memory cgroup, so that the pages that it reads are charged
// where the target's are. It does not where an out-of-memory kill would take all of the group. It returns
// false if it did not, and logs why. It asks systemd, which may take systemdTimeout.
func joinGroup(ctx context.Context, group *cgroup.Group, log *slog.Logger) bool {
	dir, err := findOOMGroup(group)
	switch {
	case err != nil:
		log.Warn("not joining the target's cgroup: it is not known whether an out-of-memory kill there takes all of it",
			"cgroup", group.Name(), "error", err)
		return false
	case dir != "":
		log.Warn("not joining the target's cgroup: an out-of-memory kill there takes all of it (memory.oom.group)",
			"cgroup", dir)
		return false
	}
	unit, err := findFragileUnit(ctx, systemd.System, group.Name())
	switch {
	case err != nil:
		log.Warn("not joining the target's cgroup: an out-of-memory kill there may end the whole unit",
			"unit", unit, "error", err)
		return false
	case unit != "":
		log.Warn("not joining the target's cgroup: an out-of-memory kill there ends the whole unit; "+
			"set OOMPolicy=continue in it", "unit", unit)
		return false
	}
	debug.FreeOSMemory() // the target is not to pay for what setting up took
	if err := group.Join(os.Getpid()); err != nil {
		log.Warn("cannot join the target's memory cgroup: pages read ahead are charged elsewhere", "error", err)
		return false
	}
	return true
}

// findOOMGroup returns the directory of the first cgroup on the way up whose processes are killed together;
// empty if there is none.
func findOOMGroup(group *cgroup.Group) (string, error) {
	for dir := group.Dir(); ; dir = filepath.Dir(dir) {
		data, err := os.ReadFile(filepath.Join(dir, "memory.oom.group"))
		if os.IsNotExist(err) { // v1, or above the root
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("ask whether a cgroup is killed as a whole: %w", err)
		}
		if strings.TrimSpace(string(data)) == "1" {
			return dir, nil
		}
	}
}

// systemdTimeout is how long systemd may take to answer.
const systemdTimeout = 5 * time.Second

// findFragileUnit returns the control group of the systemd unit that group is, or is in, if systemd ends the
// unit as a whole after one of its processes was killed for memory. It returns "" if there is no such unit.
// If it is not known whether systemd does that, it returns the unit and an error.
//
// A unit within another one (of a user's systemd, or of a container's) is watched by another systemd, which
// root should not ask. It is taken to be fragile.
func findFragileUnit(ctx context.Context, bus, group string) (unit string, err error) {
	units := systemd.Units(group)
	switch len(units) {
	case 0:
		return "", nil
	case 1:
		ctx, cancel := context.WithTimeout(ctx, systemdTimeout)
		defer cancel()
		survives, err := systemd.SurvivesOOM(ctx, bus, units[0])
		if survives {
			return "", nil
		}
		return units[0], err
	}
	return units[len(units)-1], systemd.ErrUnknown
}
