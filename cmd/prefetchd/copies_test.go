package main

// This file tests what prefetchd says of a target that copies more of its model than there is memory.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/gguf"
	"tensorcast/internal/testenv"
)

// newCopyingRig is a target whose weights are copied when it loads them, in a cgroup that is too small for that.
func newCopyingRig(t *testing.T) *rig {
	t.Helper()
	copied := quantised
	copied.Type = gguf.Q4_0
	r := newRigOf(t, "copied", llamatest.Model(t, copied), 1, 8)
	r.options.NoRepack = false
	if err := r.group.SetLimit(r.size * 3 / 4); err != nil {
		t.Fatal(err)
	}
	return r
}

// thrashTime is how long a target may read its model again and again for lack of memory. If the kernel ends prefetchd
// first, that goes on for minutes, because reclaim finds a little each time.
const thrashTime = 4 * time.Second

// endThrashing waits until prefetchd and its target have ended, and ends what is left of them after thrashTime.
func (r *rig) endThrashing(h *helper) {
	r.t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = h.Wait() // it may be killed
	}()
	select {
	case <-ended:
		return
	case <-time.After(thrashTime):
	}
	pids, err := r.group.Procs()
	if err != nil {
		r.t.Error(err)
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-ended
}

// TestCopiesAreForeseen checks that prefetchd warns before it starts a command that copies too much, and not of one
// that copies nothing or has room for it.
func TestCopiesAreForeseen(t *testing.T) {
	const warning = "the target is about to copy "
	for name, tc := range map[string]struct {
		change func(r *rig)
		warns  string // a part of the warning; "" if there is none
	}{
		"layout": {func(*rig) {}, "to have Q4_0 in another layout, and its control group (/"},
		"memory of its own": {
			func(r *rig) { r.options.LoadMode, r.options.NoRepack = "none", true },
			"start llama.cpp without --load-mode=none\"\n",
		},
		"mapped": {func(r *rig) { r.options.NoRepack = true }, ""},
		"room": {func(r *rig) {
			if err := r.group.SetLimit(4*r.size + 2*ownMemory); err != nil {
				r.t.Fatal(err)
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newCopyingRig(t)
			tc.change(r)
			if tc.warns == "" && name == "mapped" { // otherwise prefetchd itself needs more than there is
				if err := r.group.SetLimit(r.size*3/4 + ownMemory); err != nil {
					t.Fatal(err)
				}
			}
			h := r.exec()
			r.endThrashing(h)
			log := h.stderr.String()
			if got := strings.Contains(log, warning); got != (tc.warns != "") || !strings.Contains(log, tc.warns) {
				t.Errorf("want %q in %q", tc.warns, log)
			}
		})
	}
}

// fillGroup takes all of the group's memory with a file in memory, so that the kernel has to end a process of it. The
// writer itself is not chosen. It ends when the target has ended, or at its limit.
func (r *rig) fillGroup() (writer *exec.Cmd) {
	r.t.Helper()
	limit, _, err := r.group.Limit()
	if err != nil {
		r.t.Fatal(err)
	}
	file := filepath.Join(testenv.Mount(r.t, "tmpfs"), "filler")
	const script = `echo -1000 > /proc/self/oom_score_adj; for f in $GROUPS_FILES; do echo $$ > $f; done
exec head -c $1 /dev/zero > $0`
	writer = exec.Command("sh", "-c", script, file, fmt.Sprint(limit-1<<20))
	writer.Env = append(os.Environ(), "GROUPS_FILES="+strings.Join(r.group.ProcsFiles(), " "))
	if err := writer.Start(); err != nil {
		r.t.Fatal(err)
	}
	return writer
}

// TestKilledWhileLoading checks that prefetchd says that the kernel has ended its target, in which group and with which
// limit, and what to do.
func TestKilledWhileLoading(t *testing.T) {
	testenv.NeedQuiet(t)
	r := newCopyingRig(t)
	script := `for f in $GROUPS_FILES; do echo $$ > $f; done; read x; exec "$0" "$@"`
	cmd := exec.Command("sh", append([]string{"-c", script}, r.in.Command(t.Context(), r.options).Args...)...)
	cmd.Env = append(os.Environ(), "GROUPS_FILES="+strings.Join(r.group.ProcsFiles(), " "))
	start, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	testenv.WaitFor(t, "the target to join its group", func() bool {
		pids, err := r.group.Procs()
		return err == nil && len(pids) == 1
	})
	h := startHelper(t, cmd.Process.Pid, "--wait")
	h.waitSettled(t)
	if _, err := start.Write([]byte("x\n")); err != nil {
		t.Fatal(err)
	}
	// Alone, the target may read its model again and again for minutes before the kernel gives up.
	testenv.WaitMapped(t, cmd.Process.Pid, r.options.Model)
	writer := r.fillGroup()
	defer func() { _ = writer.Process.Kill(); _ = writer.Wait() }()
	if err := cmd.Wait(); err == nil {
		t.Fatal("the target was not killed")
	}
	_ = h.Wait()
	log := h.stderr.String()
	for _, part := range []string{
		"the kernel has ended a process of its control group " + r.group.Name(), "which has a limit of ",
		"for lack of memory", "so that weights are not copied when they are loaded, start llama.cpp with --no-repack",
	} {
		if !strings.Contains(log, part) {
			t.Errorf("no %q in %q", part, log)
		}
	}
}
