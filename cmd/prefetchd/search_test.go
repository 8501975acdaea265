package main

// This file tests what --auto tells of processes that it cannot help, and of those that it does.

import (
	"cmp"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch/monitor"
)

// TestPassedOver checks that a process that --auto cannot help is told once, with the reason and not as a failure, and
// that it is not looked at again.
func TestPassedOver(t *testing.T) {
	testenv.NeedQuiet(t)
	const name = "passed-target"
	target := startNamed(t, name)
	first := startHelper(t, target.Process.Pid, "--wait")
	first.waitSettled(t)
	const reason = "another prefetcher helps this process"
	for format, prefix := range map[string]string{
		"text": fmt.Sprintf("%d %s: not helped: process %d: %s", target.Process.Pid, name, target.Process.Pid, reason),
		"json": "",
	} {
		dir := filepath.Join(t.TempDir(), "run")
		all := exec.Command(prefetchd, "--auto", "--name", name, "--log", format, "--run-dir", dir)
		var stderr proc.Tail
		all.Stderr = &stderr
		if err := all.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = all.Process.Kill(); _ = all.Wait() })
		testenv.WaitFor(t, "the reason", func() bool { return strings.Contains(stderr.String(), reason) })
		testenv.WaitFor(t, "nobody to be helped", func() bool {
			reports, err := monitor.List(t.Context(), dir)
			return err == nil && len(reports) == 1 && reports[0].Search != nil && len(reports[0].Search.Helped) == 0
		})
		if err := all.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := all.Wait(); err != nil {
			t.Error(err)
		}
		text := stderr.String()
		if strings.Count(text, reason) != 1 || !strings.Contains(text, prefix) ||
			strings.Contains(text, "exit status") || strings.Contains(text, "WARN") {
			t.Errorf("%s: the log is\n%s\nwant %q in it, once", format, text, cmp.Or(prefix, reason))
		}
		if format != "json" {
			continue
		}
		told := 0
		for _, l := range parseLog(t, text) {
			if l.Level == "INFO" && l.Msg == "not helped" && l.Target == target.Process.Pid {
				told++
			}
		}
		if told != 1 {
			t.Errorf("%d lines of level INFO that it is not helped, want 1:\n%s", told, text)
		}
	}
}

// TestAutoTold checks that `prefetchd status` names whom --auto helps and who waits, and that the terminal's line says
// what is done for the one.
func TestAutoTold(t *testing.T) {
	testenv.NeedQuiet(t)
	const name = "told-target"
	dir := filepath.Join(t.TempDir(), "run")
	status := func() string {
		out, err := exec.Command(prefetchd, "status", "--run-dir", dir).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	term := testenv.NewTerminal(t)
	all := exec.Command(prefetchd, "--auto", "--name", name, "--most", "1", "--run-dir", dir)
	term.Start(all)
	first := startNamed(t, name)
	helped := fmt.Sprintf("prefetchd --auto (process %d): helping %d %s; ", all.Process.Pid, first.Process.Pid, name)
	testenv.WaitFor(t, "the first to be helped", func() bool { return strings.Contains(status(), helped) })
	testenv.WaitFor(t, "the line to say what is done for it", func() bool {
		return strings.Contains(term.Text(), fmt.Sprintf("\x1b[K%d %s: ", first.Process.Pid, name))
	})
	model := filepath.Dir(first.Args[2])
	testenv.WaitFor(t, "its model to be named", func() bool { return strings.Contains(status(), "\n    model "+model) })
	second := startNamed(t, name)
	waits := fmt.Sprintf("waiting for their turn: %d %s; ", second.Process.Pid, name)
	testenv.WaitFor(t, "the second to wait", func() bool { return strings.Contains(status(), helped+waits) })
	term.Press(testenv.CtrlC)
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
	term.End()
}
