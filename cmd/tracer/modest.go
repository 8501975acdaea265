package main

// This file keeps our own threads out of the target's way, whose compute threads spin on all cores: each of our threads that wakes would push one
// aside, and the other compute threads wait for it at their next barrier.

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// giveWay has this process's threads wait for the next tick of the scheduler where they would preempt another, without having less of the
// processor. Children inherit that: call it when the target has been started. It is a courtesy, which the kernel may refuse.
func giveWay() {
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
