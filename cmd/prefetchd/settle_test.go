package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/testenv"
)

// The name of a control group, which others choose, is nobody's option: no program is run for it, and a group that may be a service is not joined.
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
	if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\necho \"$@\" >> "+called+"\necho continue\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	r.options.Repeat = 1 << 20
	r.start()
	h := waiting(t, r.target.Process.Pid, "--wait", "--lock", "--no-compare", "--budget", fmt.Sprint(r.size/2))
	testenv.WaitFor(t, "the model to be held", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Process.Pid))
		return err == nil && field(status, "VmLck:")<<10 > r.size/4
	})
	if r.joined(h) {
		t.Error("prefetchd is in the group")
	}
	if err := r.target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.target.Wait()
	h.summary(t)
	if !strings.Contains(h.stderr.String(), "not joining") || !strings.Contains(h.stderr.String(), "--host=evil") {
		t.Errorf("it said: %s", h.stderr.String())
	}
	if args, err := os.ReadFile(called); err == nil {
		t.Errorf("systemctl was run: %s", args)
	}
}
