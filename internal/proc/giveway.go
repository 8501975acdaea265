package proc

// This file keeps this process's threads out of a target's way.

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// GiveWay makes this process's threads wait for the next tick of the scheduler where they would preempt another thread (SCHED_BATCH). They get
// as much of the processor as before. It is meant for a process beside a target whose compute threads spin on all cores: a thread that wakes
// would push one of them aside, and the others wait for it at their next barrier.
//
// Children inherit the policy: call it when the target has been started. It is a courtesy: where the kernel refuses, nothing changes.
func GiveWay() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if attr, err := unix.SchedGetAttr(tid, 0); err == nil && attr.Policy == unix.SCHED_NORMAL {
			attr.Policy = unix.SCHED_BATCH
			_ = unix.SchedSetAttr(tid, attr, 0)
		}
	}
}
