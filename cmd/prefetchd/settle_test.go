package main

// This file tests which control group prefetchd joins.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/testenv"
)

// TestHostileGroup checks that a control group's name, which others choose, is never taken as an
// option: no program is run with it, and a group that may be a service is not joined.
func TestHostileGroup(t *testing.T) {
	r := newRig(t, 2, 100)
	if err := r.group.Remove(); err != nil {
		t.Fatal(err)
	}
	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	if r.group, err = cgroup.Create(root, fmt.Sprintf("--host=evil%d.service", os.Getpid())); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	called := filepath.Join(dir, "called")
	if err := os.WriteFile(filepath.Join(dir, "systemctl"),
		[]byte("#!/bin/sh\necho \"$@\" >> "+called+"\necho continue\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	r.options.Repeat = 1 << 20
	r.start()
	h := startHelper(t, r.target.Process.Pid, "--wait", "--lock", "--always", "--budget", fmt.Sprint(r.size/2))
	testenv.WaitFor(t, "the model to be held", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Process.Pid))
		return err == nil && field(status, "VmLck:")<<10 > r.size/4
	})
	if r.hasJoined(h) {
		t.Error("prefetchd has joined the group, want that it does not")
	}
	if err := r.target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.target.Wait()
	h.summary(t)
	if !strings.Contains(h.stderr.String(), "not joining") || !strings.Contains(h.stderr.String(), "--host=evil") {
		t.Errorf("standard error is %s, want that it is not joining", h.stderr.String())
	}
	if args, err := os.ReadFile(called); err == nil {
		t.Errorf("systemctl was run with %s, want that it is not run", args)
	}
}

// TestFollowsMovedTarget checks that prefetchd follows a target that is moved to another control
// group: from then on that group's limit counts, and it pays for what is read ahead.
func TestFollowsMovedTarget(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0.7, 60) // prefetchd joins only if it can help
	r.options.Repeat = 1 << 20
	r.start()
	h := startHelper(t, r.target.Process.Pid, "--wait", "--always")
	testenv.WaitFor(t, "prefetchd to join the target's group", func() bool { return r.hasJoined(h) })
	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	left := r.group
	t.Cleanup(func() {
		if err := left.Remove(); err != nil {
			t.Error(err)
		}
	})
	if r.group, err = cgroup.Create(root, fmt.Sprintf("tensorcast-test-%d-moved", os.Getpid())); err != nil {
		t.Fatal(err)
	}
	r.setLimit(0.7)
	if err := r.group.Join(r.target.Process.Pid); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "prefetchd to follow", func() bool { return r.hasJoined(h) })
	if err := left.Remove(); err != nil { // nobody is left in it
		t.Error(err)
	}
	if err := r.target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.target.Wait()
	if s := h.summary(t); !strings.HasPrefix(s.Level, r.group.Name()+" ") {
		t.Errorf("the room is bounded by %q, want by %s; standard error %s", s.Level, r.group.Name(), h.stderr.String())
	}
}

// TestNoJoin checks that prefetchd does not join the target's control group with --no-join.
func TestNoJoin(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, 100)
	r.options.Repeat = 1 << 20
	r.start()
	h := startHelper(t, r.target.Process.Pid, "--wait", "--always", "--no-join")
	h.waitSettled(t)
	joined := false
	for range 20 {
		joined = joined || r.hasJoined(h)
		time.Sleep(10 * time.Millisecond)
	}
	if joined {
		t.Error("prefetchd has joined the target's group, want that it does not")
	}
	if err := r.target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.target.Wait()
	h.summary(t)
}
