package main

// This file tests doctor's diagnosis of a process.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/gguf"
	"tensorcast/holding"
	"tensorcast/internal/cli"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
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
		!strings.HasPrefix(first, "nothing to win: another prefetcher") {
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
}

// TestDoctorRefuses runs doctor on targets that prefetchd cannot help, and with wrong arguments.
func TestDoctorRefuses(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	repacked := tiny
	// Norms and embeddings are not repacked, so they must be a small part of the model.
	repacked.Type, repacked.FF = gguf.Q4_0, 4096
	o := llama.Options{Model: llamatest.Model(t, repacked), Prompt: "x", Tokens: 100, Threads: 1, Repeat: 1 << 20}
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
		"no process":   {nil, cli.BadUsage, "", "--pid N"},
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
