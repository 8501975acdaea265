package main

// This file tests --log json.

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"tensorcast/internal/cli"
	"tensorcast/prefetch"
)

// logLine is a line of --log json.
type logLine struct {
	Time    time.Time         `json:"time"`
	Level   string            `json:"level"`
	Msg     string            `json:"msg"`
	Target  int               `json:"target"`
	Status  *prefetch.Status  `json:"status"`
	Summary *prefetch.Summary `json:"summary"`
}

// parseLog reads a log whose lines are JSON objects.
func parseLog(t *testing.T, log string) (all []logLine) {
	t.Helper()
	for line := range strings.Lines(log) {
		var l logLine
		if err := json.Unmarshal([]byte(line), &l); err != nil || l.Time.IsZero() || l.Level == "" || l.Msg == "" {
			t.Errorf("%v: %s", err, line)
			continue
		}
		all = append(all, l)
	}
	return all
}

// TestLogJSON checks that with --log json each line is an object: statuses, warnings, the summary,
// and errors.
func TestLogJSON(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0.7, 60)
	r.startStopped()
	pid := r.target.Process.Pid
	// With --lock there is a warning.
	h := &helper{Cmd: exec.Command(prefetchd, "--pid", fmt.Sprint(pid), "--log", "json", "--always", "--lock")}
	h.Stdout, h.Stderr = &h.stdout, &h.stderr
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Process.Kill(); _ = h.Wait() })
	h.waitSettled(t)
	r.resumeTarget()
	r.finish()
	if err := h.Wait(); err != nil {
		t.Fatal(err, h.stderr.String())
	}
	all := parseLog(t, h.stderr.String())
	helping, warned := 0, 0
	for _, l := range all {
		if l.Target != pid {
			t.Errorf("the target of %+v is not %d", l, pid)
		}
		if l.Status != nil && l.Status.Activity == prefetch.Helping && l.Status.Held > 0 {
			helping++
		}
		if l.Level == "WARN" {
			warned++
		}
	}
	if helping == 0 || warned == 0 {
		t.Errorf("%d statuses of helping and %d warnings, want some of both:\n%s", helping, warned, h.stderr.String())
	}
	if len(all) == 0 || all[len(all)-1].Summary == nil || all[len(all)-1].Summary.Tokens == 0 || h.stdout.Len() > 0 {
		t.Errorf("the log is %s; standard output %s; want a summary in the last line, and no output",
			h.stderr.String(), h.stdout.String())
	}

	// A process that is no llama.cpp is refused.
	sleep := exec.Command("sleep", "100")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleep.Process.Kill(); _ = sleep.Wait() }()
	var stderr strings.Builder
	refused := exec.Command(prefetchd, "--log=json", "--pid", fmt.Sprint(sleep.Process.Pid))
	refused.Stderr = &stderr
	var exit *exec.ExitError
	if err := refused.Run(); !errors.As(err, &exit) || exit.ExitCode() != cli.Failure {
		t.Errorf("%v, want status %d", err, cli.Failure)
	}
	if all := parseLog(t, stderr.String()); len(all) != 1 || all[0].Level != "ERROR" ||
		!strings.Contains(all[0].Msg, "ggml") {
		t.Errorf("the log is %s, want one error about ggml", stderr.String())
	}
}
