package main

// This file tests what is said before prefetchd waits, and while it does.

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch/monitor"
)

// TestCheckedBeforeWaiting checks that prefetchd ends at once where it could help nobody, with a line for each thing
// that is missing.
func TestCheckedBeforeWaiting(t *testing.T) {
	testenv.NeedRoot(t)
	without := func(capabilities string) []string {
		return []string{"setpriv", "--bounding-set", capabilities, "--inh-caps", "-all"}
	}
	for name, tc := range map[string]struct {
		wrapper []string
		want    []string // the beginning of each line
	}{
		"no probes": {without("-bpf,-perfmon,-sys_admin"), []string{
			"prefetchd: nobody can be helped here: this process lacks CAP_BPF and CAP_PERFMON: run this as root (sudo), "}},
		"no paging out": {without("-sys_nice"), []string{
			"prefetchd: nobody can be helped here: this process lacks CAP_SYS_NICE: run this as root (sudo), "}},
		"neither": {without("-bpf,-sys_admin,-sys_nice"), []string{
			"prefetchd: nobody can be helped here, because\n",
			"this process lacks CAP_BPF: ", "this process lacks CAP_SYS_NICE: "}},
		"user namespace": {[]string{"unshare", "--user", "--map-root-user"}, []string{
			"prefetchd: nobody can be helped here: this process is in a user namespace "}},
		"foreign /proc": {[]string{"unshare", "--pid", "--fork"}, []string{"prefetchd: /proc is not mounted here"}},
	} {
		if _, err := exec.LookPath(tc.wrapper[0]); err != nil {
			t.Logf("%s is not tested: %v", name, err)
			continue
		}
		if err := exec.Command(tc.wrapper[0], append(tc.wrapper[1:], "true")...).Run(); err != nil {
			t.Logf("%s is not tested: %v", name, err)
			continue
		}
		for _, args := range [][]string{
			{"--auto", "--name", "no-such-program"}, {"--wait", "no-such-program"},
			{"--wait", "--pid", strconv.Itoa(os.Getpid())},
		} {
			cmd := exec.CommandContext(t.Context(), tc.wrapper[0], append(append(tc.wrapper[1:], prefetchd,
				"--run-dir", filepath.Join(t.TempDir(), "run")), args...)...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err := cmd.Run()
			lines := strings.SplitAfter(stderr.String(), "\n")
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != cli.Failure || len(lines) != len(tc.want)+1 {
				t.Errorf("%s, %v: %v\n%s\nwant status %d and %d lines",
					name, args, err, &stderr, cli.Failure, len(tc.want))
				continue
			}
			for i, want := range tc.want {
				if !strings.HasPrefix(lines[i], want) {
					t.Errorf("%s, %v: line %q, want it to begin with %q", name, args, lines[i], want)
				}
			}
		}
	}
}

// TestWaitTold checks what is said while prefetchd looks for somebody: on a terminal a line that is renewed, in a pipe
// one that is written once, and the same in `prefetchd status`, until it is interrupted.
func TestWaitTold(t *testing.T) {
	testenv.NeedRoot(t)
	for name, tc := range map[string]struct {
		args []string
		line string
	}{
		"wait": {[]string{"--wait", "no-such-program"}, "waiting for no-such-program, for "},
		"auto": {[]string{"--auto", "--name", "no-such-program"}, "waiting for no-such-program, for "},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		isListed := func() bool {
			all, err := monitor.List(t.Context(), dir)
			return err == nil && len(all) == 1 && all[0].Search != nil && all[0].Search.All == (name == "auto") &&
				all[0].Search.Names[0] == "no-such-program"
		}
		args := append([]string{"--run-dir", dir}, tc.args...)

		term := testenv.NewTerminal(t)
		cmd := exec.Command(prefetchd, args...)
		term.Start(cmd)
		testenv.WaitFor(t, "a line that is renewed", func() bool {
			return strings.Contains(term.Text(), tc.line+"0s") && strings.Contains(term.Text(), tc.line+"1s")
		})
		testenv.WaitFor(t, "it to be listed", isListed)
		term.Press(testenv.CtrlC)
		_ = cmd.Wait()
		screen := term.End()
		if last := screen[strings.LastIndex(screen, tc.line):]; !strings.Contains(last, "\r\x1b[K") {
			t.Errorf("%s: the line is left on the screen: %q", name, screen)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("%s: the directory still has %v, %v", name, left, err)
		}

		var stdout, stderr bytes.Buffer
		cmd = exec.Command(prefetchd, args...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		testenv.WaitFor(t, "it to be listed", isListed)
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		want := "prefetchd: waiting for no-such-program\n"
		if name == "wait" {
			want += "prefetchd: interrupted by SIGINT before a process named no-such-program came\n"
		}
		if stdout.Len() > 0 || stderr.String() != want {
			t.Errorf("%s in a pipe: %q and %q, want only %q", name, &stdout, &stderr, want)
		}
	}
}
