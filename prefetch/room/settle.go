package room

// This file arranges this process beside its target: it must be the first to be killed when memory is short, pay for
// what it reads like the target would, and get a core when it needs one.

import (
	gocontext "context"
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

// Settle prepares this process, in this order: it makes itself the out-of-memory killer's choice, lifts its limit on
// locked memory, and raises the calling thread's priority. Only the first is indispensable; what else fails is
// logged. See also [ProcessMemory.Join]. others says that there are processes which the killer is to choose before
// this one, as they go if it goes.
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
	// ggml's threads spin at barriers on all cores: at equal priority a read ahead would wait for a time slice. This
	// is the priority of the calling thread.
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, niceness); err != nil {
		log.Warn("cannot raise the priority", "error", err)
	}
	return nil
}

// SetUrgent has the calling thread run whenever it can (SCHED_FIFO), or, with false, as [Settle] left it. A nice value
// does not do that: where ggml's threads spin on all processors, a thread that has used its share waits for the next
// tick, 2 ms for one in ten of a router's choices. Threads that it starts do not inherit it.
func SetUrgent(urgent bool) error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: niceness}
	if urgent {
		attr = unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK}
	}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		return fmt.Errorf("change how this thread is scheduled: %w", err)
	}
	return nil
}

// niceness is this process's while it helps.
const niceness = -15

// join moves this process to the target's memory cgroup, so that pages that it reads are charged where the target's
// are; not where a kill there would take all of it. It says whether it did; if not, the log says why. It asks
// systemd, which may take askTime.
func join(ctx gocontext.Context, group *cgroup.Group, log *slog.Logger) bool {
	if dir, err := oomGroup(group); err != nil {
		log.Warn("not joining the target's cgroup: it is not known whether an out-of-memory kill there takes all of it", "cgroup", group.Name(), "error", err)
		return false
	} else if dir != "" {
		log.Warn("not joining the target's cgroup: an out-of-memory kill there takes all of it (memory.oom.group)", "cgroup", dir)
		return false
	}
	switch unit, err := fragile(ctx, systemd.System, group.Name()); {
	case err != nil:
		log.Warn("not joining the target's cgroup: an out-of-memory kill there may end the whole unit", "unit", unit, "error", err)
		return false
	case unit != "":
		log.Warn("not joining the target's cgroup: an out-of-memory kill there ends the whole unit; set OOMPolicy=continue in it", "unit", unit)
		return false
	}
	debug.FreeOSMemory() // what setting up took is not the target's to pay
	if err := group.Join(os.Getpid()); err != nil {
		log.Warn("cannot join the target's memory cgroup: pages read ahead are charged elsewhere", "error", err)
		return false
	}
	return true
}

// oomGroup returns the first cgroup on the way up whose processes are killed together.
func oomGroup(group *cgroup.Group) (string, error) {
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

// askTime is how long systemd may take to answer.
const askTime = 5 * time.Second

// fragile returns the control group of the systemd unit that is, or may be, ended as a whole after one of its
// processes was killed for memory, if group is one or in one; else nothing. The error says why that is not known.
//
// A unit in another one (of a user's systemd, or of a container's) is watched by somebody else, whom root should not
// ask: it may be ended, for all that we know.
func fragile(ctx gocontext.Context, bus, group string) (unit string, err error) {
	units := systemd.Units(group)
	switch len(units) {
	case 0:
		return "", nil
	case 1:
		ctx, cancel := gocontext.WithTimeout(ctx, askTime)
		defer cancel()
		survives, err := systemd.SurvivesOOM(ctx, bus, units[0])
		if survives {
			return "", nil
		}
		return units[0], err
	}
	return units[len(units)-1], systemd.ErrUnknown
}
