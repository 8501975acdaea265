package main

// This file tests that tracer's threads give way to the target.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
)

// threadPolicies returns the scheduling policies of a process's threads, in the order of /proc.
func threadPolicies(t *testing.T, pid int) (found []uint32) {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		if attr, err := unix.SchedGetAttr(tid, 0); err == nil { // otherwise it has ended
			found = append(found, attr.Policy)
		}
	}
	if len(found) == 0 {
		t.Fatalf("process %d has no thread", pid)
	}
	return found
}

// Once the target decodes, all threads of tracer give way. The policy of the target, which is its
// child, does not change.
func TestGivesWay(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: "w", Tokens: 100, Threads: 2, NoRepack: true, Repeat: 1 << 20,
	}
	flags := []string{"--no-probe", "-o", filepath.Join(t.TempDir(), "c"), "--"}
	cmd := exec.Command(tracerBinary, append(flags, in.Command(t.Context(), o).Args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // tracer passes it on to the target
		_ = cmd.Wait()                          // its status is that of the target
	})
	testenv.WaitFor(t, "all threads to give way", func() bool {
		for _, p := range threadPolicies(t, cmd.Process.Pid) {
			if p != unix.SCHED_BATCH {
				return false
			}
		}
		return true
	})
	targets := children(cmd.Process.Pid)
	if len(targets) != 1 {
		t.Errorf("children %v, want the target", targets)
	}
	for _, pid := range targets {
		for _, p := range threadPolicies(t, pid) {
			if p != unix.SCHED_NORMAL {
				t.Errorf("a thread of the target has policy %d, want %d", p, unix.SCHED_NORMAL)
			}
		}
	}
}
