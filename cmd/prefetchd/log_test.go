package main

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

// logged is a line of --log json.
type logged struct {
	Time    time.Time         `json:"time"`
	Level   string            `json:"level"`
	Msg     string            `json:"msg"`
	Target  int               `json:"target"`
	Status  *prefetch.Status  `json:"status"`
	Summary *prefetch.Summary `json:"summary"`
}

// parse reads a log of which each line is an object.
func parse(t *testing.T, log string) (all []logged) {
	t.Helper()
	for line := range strings.Lines(log) {
		var l logged
		if err := json.Unmarshal([]byte(line), &l); err != nil || l.Time.IsZero() || l.Level == "" || l.Msg == "" {
			t.Errorf("%v: %s", err, line)
			continue
		}
		all = append(all, l)
	}
	return all
}

// With --log json each line is an object: what is done, warnings, the summary, and why it failed.
func TestLogJSON(t *testing.T) {
	r := newRig(t, 0.7, 300)
	r.start()
	pid := r.target.Process.Pid
	h := &helper{Cmd: exec.Command(prefetchd, "--pid", fmt.Sprint(pid), "--log", "json", "--always", "--lock")} // --lock warns
	h.Stdout, h.Stderr = &h.stdout, &h.stderr
	if err := h.Run(); err != nil {
		t.Fatal(err, h.stderr.String())
	}
	r.finish()
	all := parse(t, h.stderr.String())
	helping, warned := 0, 0
	for _, l := range all {
		if l.Target != pid {
			t.Errorf("%+v is not about %d", l, pid)
		}
		if l.Status != nil && l.Status.Activity == prefetch.Helping && l.Status.Held > 0 {
			helping++
		}
		if l.Level == "WARN" {
			warned++
		}
	}
	if helping == 0 || warned == 0 {
		t.Errorf("%d times helping, %d warnings:\n%s", helping, warned, h.stderr.String())
	}
	if len(all) == 0 || all[len(all)-1].Summary == nil || all[len(all)-1].Summary.Tokens == 0 || h.stdout.Len() > 0 {
		t.Errorf("it ends with %s; standard output %s", h.stderr.String(), h.stdout.String())
	}

	// Of something that is no llama.cpp.
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
		t.Errorf("%v", err)
	}
	if all := parse(t, stderr.String()); len(all) != 1 || all[0].Level != "ERROR" || !strings.Contains(all[0].Msg, "ggml") {
		t.Errorf("refused with %s", stderr.String())
	}
}
