package main

// This file tests doctor's diagnosis of a process.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/gguf"
	"tensorcast/holding"
	"tensorcast/internal/cli"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch"
	"tensorcast/prefetch/monitor"
	"tensorcast/prefetch/plan"
	"tensorcast/prefetch/room"
)

// doctor runs the built command and returns its output and exit status. wrapper is a command that
// starts it, or nil.
func doctor(t *testing.T, wrapper []string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	args = slices.Concat(wrapper, []string{prefetchd, "doctor"}, args)
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// diagnosisOf waits until the process has loaded its model, and returns doctor's diagnosis of it.
func diagnosisOf(t *testing.T, pid int) (d diagnosis, status int) {
	t.Helper()
	examiner := holding.New(pid)
	testenv.WaitFor(t, "the target to load its model", func() bool {
		h, err := examiner.Examine(t.Context(), holding.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return h.Exact
	})
	stdout, stderr, status := doctor(t, nil, "--pid", fmt.Sprint(pid), "--json")
	if err := json.Unmarshal([]byte(stdout), &d); err != nil || stderr != "" {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	return d, status
}

// TestDoctorHelps runs doctor on a target with too little memory for its model: alone, with another
// prefetcher, and without a capability.
func TestDoctorHelps(t *testing.T) {
	r := newRig(t, 0.1, 100)
	r.options.Repeat = 1 << 20
	r.start()
	pid := r.target.Process.Pid
	d, status := diagnosisOf(t, pid)
	if status != cli.OK || !d.OK || !strings.HasPrefix(d.Line, "would help: keeps about ") ||
		d.Room == nil || !strings.Contains(d.Room.Level, "tensorcast-test") ||
		d.Verdict.Keep != plan.Keepable(*d.Room) || d.Verdict.Keep >= d.Verdict.PerToken ||
		d.Holding.Mode != holding.ModeMapped {
		t.Fatalf("status %d: %s\n%+v\n%+v", status, d.Line, d.Room, d.Verdict)
	}
	for _, m := range d.Means {
		if !m.OK {
			t.Errorf("%+v", m)
		}
	}
	target, err := proc.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	claim, err := room.Claim(target)
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, status := doctor(t, nil, "--pid", fmt.Sprint(pid))
	if err := claim.Close(); err != nil {
		t.Fatal(err)
	}
	if first, _, _ := strings.Cut(stdout, "\n"); status != cli.Failure || stderr != "" ||
		!strings.HasPrefix(first, "nothing to win: another prefetcher") ||
		!strings.Contains(stdout, "does not answer in /run/prefetchd: ") {
		t.Errorf("claimed: status %d\n%s%s", status, stdout, stderr)
	}
	for _, part := range []string{
		r.options.Model, "weights ", "mapped, as its own table", "bounded by the cgroup /",
		"yes  paging out", "yes  eBPF", "readahead ",
	} {
		if !strings.Contains(stdout, part) {
			t.Errorf("no %q in\n%s", part, stdout)
		}
	}
	// setpriv is part of util-linux, which every Debian has.
	stdout, _, status = doctor(t,
		[]string{"setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"}, "--pid", fmt.Sprint(pid))
	if first, _, _ := strings.Cut(stdout, "\n"); status != cli.Failure ||
		!strings.HasPrefix(first, "cannot help: paging out of the process: ") ||
		!strings.Contains(first, "CAP_SYS_NICE") {
		t.Errorf("without CAP_SYS_NICE: status %d\n%s", status, stdout)
	}
	testHelped(t, pid)
}

// testHelped checks that doctor says what the prefetchd does that helps a process already.
func testHelped(t *testing.T, pid int) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	h := startHelper(t, pid, "--run-dir", dir)
	h.waitSettled(t)
	want := fmt.Sprintf("prefetchd (process %d) helps it already, for ", h.Process.Pid)
	var stdout, stderr string
	var status int
	testenv.WaitFor(t, "doctor to say that it is helped", func() bool {
		stdout, stderr, status = doctor(t, nil, "--pid", fmt.Sprint(pid), "--run-dir", dir)
		return strings.HasPrefix(stdout, want)
	})
	if status != cli.OK || stderr != "" || strings.Contains(stdout, "another prefetcher") {
		t.Errorf("helped: status %d\n%s%s", status, stdout, stderr)
	}
	stdout, _, _ = doctor(t, nil, "--pid", fmt.Sprint(pid), "--run-dir", dir, "--json")
	var d diagnosis
	if err := json.Unmarshal([]byte(stdout), &d); err != nil || !d.OK || !d.Claimed || d.Helper == nil ||
		d.Helper.PID != h.Process.Pid || d.Helper.Target != pid || !d.Verdict.Helps {
		t.Errorf("helped: %v\n%s", err, stdout)
	}
}

// A prefetchd that has nothing to do says why, and what it says of a target cannot make a line of its own.
func TestHelperLine(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 30, 0, time.UTC)
	for want, s := range map[string]prefetch.Status{
		"prefetchd (process 7) looks after it already, and has nothing to do, for 30s: idle: everything fits": {
			Activity: prefetch.Idle, Why: "everything fits"},
		"prefetchd (process 7) looks after it already, for 30s: waiting: a\\nb, for 10s": {
			Activity: prefetch.Waiting, Why: "a\nb", Since: now.Add(-10 * time.Second)},
		"prefetchd (process 7) helps it already, for 30s: 11.4 tok/s, 1.25 before; keeping 600 MiB of 764 MiB, " +
			"streaming 164 MiB/token": {
			Activity: prefetch.Helping, Now: 11.4, Before: 1.25, Held: 600 << 20, PerToken: 764 << 20,
			Streamed: 164 << 20},
	} {
		h := &helperReport{Report: &monitor.Report{PID: 7, Target: 12, Began: now.Add(-30 * time.Second), Status: s}}
		if got := h.line(now); got != want || h.helps() != (s.Activity != prefetch.Idle) {
			t.Errorf("%q, helps: %v, want %q", got, h.helps(), want)
		}
	}
}

// Without a process doctor says whether anybody can be helped on this machine, and what is missing.
func TestDoctorMachine(t *testing.T) {
	testenv.NeedRoot(t)
	stdout, stderr, status := doctor(t, nil)
	if status != cli.OK || stderr != "" || !strings.HasPrefix(stdout, "prefetchd can help here: ") ||
		!strings.Contains(stdout, "\n  yes  eBPF probes\n") || !strings.Contains(stdout, "\n  yes  CAP_SYS_NICE\n") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	for lacks, wrapper := range map[string][]string{
		"nobody can be helped here: eBPF probes: this process lacks CAP_BPF: run this as root (sudo), ": {
			"setpriv", "--bounding-set", "-bpf,-sys_admin", "--inh-caps", "-all"},
		"nobody can be helped here: CAP_SYS_NICE: it takes this to page out what a target has read: ": {
			"setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-all"},
		"nobody can be helped here: eBPF probes: this process is in a user namespace ": {
			"unshare", "--user", "--map-root-user"},
	} {
		if err := exec.Command(wrapper[0], append(wrapper[1:], "true")...).Run(); err != nil {
			t.Logf("%v is not tested: %v", wrapper, err)
			continue
		}
		if stdout, stderr, status := doctor(t, wrapper); status != cli.Failure || stderr != "" ||
			!strings.HasPrefix(stdout, lacks) {
			t.Errorf("%v: status %d\n%s%s\nwant %q", wrapper, status, stdout, stderr, lacks)
		}
		var r machineReport
		stdout, _, _ := doctor(t, wrapper, "--json")
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || r.OK || !strings.HasPrefix(r.Line, lacks) {
			t.Errorf("%v: %v\n%s", wrapper, err, stdout)
		}
	}
}

// TestDoctorRefuses runs doctor on targets that prefetchd cannot help, and with wrong arguments.
func TestDoctorRefuses(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	repacked := tiny
	// Norms and embeddings are not repacked, so they must be a small part of the model.
	repacked.Type, repacked.FF = gguf.Q4_0, 4096
	o := llama.Options{
		Model: llamatest.Model(t, repacked), Prompt: "x", Tokens: 100, Threads: 1, Repeat: 1 << 20, Pause: 10,
	}
	target := in.Command(t.Context(), o)
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
	testenv.WaitMapped(t, target.Process.Pid, o.Model)
	var d diagnosis
	var status int
	testenv.WaitFor(t, "the weights to be copied", func() bool {
		d, status = diagnosisOf(t, target.Process.Pid)
		return !strings.Contains(d.Line, "still copying")
	})
	if status != cli.Failure || d.OK || len(d.Verdict.Findings) == 0 ||
		d.Verdict.Findings[0].Reason != holding.Copied ||
		!strings.HasPrefix(d.Line, "nothing to win: ") ||
		!strings.Contains(d.Line, "; leave it so, because prompts ") ||
		strings.Contains(d.Line, "--no-repack") { // it fits, and is faster so
		t.Errorf("repacked: status %d, %+v", status, d)
	}
	gone, sleep := exec.Command("true"), exec.Command("sleep", "1000")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleep.Process.Kill(); _ = sleep.Wait() }()
	for name, tc := range map[string]struct {
		args   []string
		status int
		stdout string // its first line
		stderr string
	}{
		"no llama.cpp": {[]string{"--pid", fmt.Sprint(sleep.Process.Pid)}, cli.Failure,
			"nothing to win: the process maps no GGUF file", ""},
		"gone":         {[]string{"--pid", fmt.Sprint(gone.Process.Pid)}, cli.Failure, "", "no such process"},
		"no process":   {[]string{"--costs"}, cli.BadUsage, "", "--pid N"},
		"0":            {[]string{"--pid", "0"}, cli.BadUsage, "", "--pid N"},
		"not a number": {[]string{"--pid", "x"}, cli.BadUsage, "", "whole number"},
		"an argument":  {[]string{"x", "--pid", "1"}, cli.BadUsage, "", "unexpected argument"},
		"an option":    {[]string{"--nope"}, cli.BadUsage, "", "unknown flag"},
	} {
		stdout, stderr, status := doctor(t, nil, tc.args...)
		first, _, _ := strings.Cut(stdout, "\n")
		if status != tc.status || !strings.HasPrefix(first, tc.stdout) ||
			(tc.stdout == "") != (stdout == "") || !strings.Contains(stderr, tc.stderr) ||
			(tc.stderr == "") != (stderr == "") || strings.Count(stderr, "\n") > 1 {
			t.Errorf("%s: status %d, want %d; standard output %q, want %q; standard error %q, want %q",
				name, status, tc.status, stdout, tc.stdout, stderr, tc.stderr)
		}
	}
}
