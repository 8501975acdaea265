package proc

// This file keeps this process's threads from disturbing a target.

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// GiveWay changes the scheduling policy of this process's threads to SCHED_BATCH. Then a thread
// that wakes up does not preempt another thread but waits for the next scheduler tick. Its share of
// the processor is unchanged. It is meant for a process beside a target whose compute threads spin
// on all cores: preempting one of them would make all others wait at their next barrier.
//
// Children inherit the policy, so call it after the target has been started. If the kernel refuses,
// nothing changes.
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
