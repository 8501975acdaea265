package main

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

// policies are those of the threads of a process, in /proc's order.
func policies(t *testing.T, pid int) (found []uint32) {
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
		if attr, err := unix.SchedGetAttr(tid, 0); err == nil { // it has not ended
			found = append(found, attr.Policy)
		}
	}
	if len(found) == 0 {
		t.Fatalf("process %d has no thread", pid)
	}
	return found
}

// Once the target decodes, all threads of tracer give way; the target, which is its child, has the processor as without it.
func TestGivesWay(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{Model: llamatest.Model(t, denseModel), Prompt: "w", Tokens: 100, Threads: 2, NoRepack: true, Repeat: 1 << 20}
	cmd := exec.Command(tracerBinary, append([]string{"-o", filepath.Join(t.TempDir(), "c"), "--"}, in.Command(t.Context(), o).Args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // which it passes on
		_ = cmd.Wait()                          // the target's status
	})
	testenv.WaitFor(t, "all threads to give way", func() bool {
		for _, p := range policies(t, cmd.Process.Pid) {
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
		for _, p := range policies(t, pid) {
			if p != unix.SCHED_NORMAL {
				t.Errorf("a thread of the target has policy %d", p)
			}
		}
	}
}
