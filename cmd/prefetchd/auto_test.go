package main

// This file tests --auto and --wait NAME, where prefetchd finds the processes to help.

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch"
	"tensorcast/prefetch/monitor"
)

// startNamed starts the real llama.cpp under another name. It decodes until it is killed.
func startNamed(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	in := llamatest.ForTest(t)
	model := llamatest.Model(t,
		synth.Config{Layers: 2, Embd: 128, FF: 256, Heads: 2, KVHeads: 2, Type: gguf.Q8_0, Seed: 1})
	cmd := in.Command(t.Context(),
		llama.Options{Model: model, Prompt: "x", Tokens: 100, Threads: 1, Repeat: 1000, Pause: 10, NoRepack: true})
	link := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(cmd.Path, link); err != nil {
		t.Fatal(err)
	}
	cmd.Path = link
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// TestAuto checks that a new process is helped, and that it goes on when the help ends, because
// prefetchd was killed or because it was told to end.
func TestAuto(t *testing.T) {
	testenv.NeedQuiet(t)
	const name = "auto-target"
	dir := filepath.Join(t.TempDir(), "run")
	start := func(flags ...string) (*exec.Cmd, *bytes.Buffer) {
		var stderr bytes.Buffer
		cmd := exec.Command(prefetchd,
			append([]string{"--auto", "--name", name, "--budget", "600MB", "--run-dir", dir}, flags...)...)
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd, &stderr
	}
	helperOf := func(target int) (helper int) {
		testenv.WaitFor(t, "the target to be helped", func() bool {
			all, err := monitor.List(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range all {
				if r.Target == target {
					helper = r.PID
				}
			}
			return helper > 0
		})
		return helper
	}
	waitEnded := func(helper int) {
		testenv.WaitFor(t, "the helper to end", func() bool { return syscall.Kill(helper, 0) != nil })
	}

	all, stderr := start()
	target := startNamed(t, name)
	helper := helperOf(target.Process.Pid)
	if err := monitor.SetBudget(t.Context(), dir, target.Process.Pid, 100e6); err != nil {
		t.Error(err)
	}
	if err := all.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	waitEnded(helper)
	_ = all.Wait()
	if !strings.Contains(stderr.String(), "msg=helping") {
		t.Errorf("standard error is %q", stderr.String())
	}

	all, stderr = start("--log", "json")
	helper = helperOf(target.Process.Pid)
	if err := all.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := all.Wait(); err != nil {
		t.Errorf("%v: %s", err, stderr.String())
	}
	if syscall.Kill(helper, 0) == nil {
		t.Error("the helper still runs")
	}
	if lines := parseLog(t, stderr.String()); len(lines) < 2 {
		t.Errorf("standard error is %q", stderr.String())
	}
	if err := target.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the target has ended: %v", err)
	}
}

// TestWaitForName checks that --wait NAME helps one process of that name, and ends with it.
func TestWaitForName(t *testing.T) {
	testenv.NeedRoot(t)
	const name = "named-target"
	dir := filepath.Join(t.TempDir(), "run")
	cmd := exec.Command(prefetchd, "--run-dir", dir, "--wait", name)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	target := startNamed(t, name)
	testenv.WaitFor(t, "prefetchd to find the target and examine it", func() bool {
		all, err := monitor.List(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 1 && all[0].Target == target.Process.Pid && all[0].Status.Activity != prefetch.Waiting
	})
	if err := target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, stderr.String())
	}
}

// TestAutoArguments checks that flags that do not go together with --auto, --name or --wait are
// refused.
func TestAutoArguments(t *testing.T) {
	for args, want := range map[string]string{
		"--auto --pid 1":                 "not with --pid",
		"--auto --exec x":                "not with --pid or --exec",
		"--auto llama-server":            "--auto --name NAME",
		"--auto --dry-run":               "--dry-run",
		"--auto --pattern x":             "--pattern is of one model",
		"--auto --most 0":                "--most is 0",
		"--auto --budget 1GB --run-dir=": "--run-dir",
		"--auto --name=":                 "--name is empty",
		"--name x --pid 1":               "--name is for --auto",
		"--never x --pid 1":              "--never is for --auto",
		"--auto --never=":                "--never is empty",
		"--auto --budget 12":             "that is 12 bytes: write the unit, as in 12MiB or 12GiB",
		"--auto --budget 0%":             "want a share of more than 0%",
		"--auto --budget-of x":           "want NAME=SIZE",
		"--auto --budget-of x=12":        "write the unit",
		"--auto --keep-warm=soon":        "want true, false or a time such as 30m",
		"--wait a b":                     "unexpected argument",
		"--wait":                         "say which process",
	} {
		var stdout, stderr bytes.Buffer
		code := cli.Run(t.Context(), command(func() {}), strings.Fields(args), &stdout, &stderr)
		if code != cli.BadUsage || !strings.Contains(stderr.String(), want) ||
			strings.Count(stderr.String(), "\n") > 2 {
			t.Errorf("%s: status %d, %q, want status %d, %q", args, code, stderr.String(), cli.BadUsage, want)
		}
	}
}

// TestHelperFlags checks that helpers get the flags that were given, with sizes exact to the byte,
// except the flags that only concern --auto.
func TestHelperFlags(t *testing.T) {
	cmd := command(func() {})
	err := cmd.ParseFlags(strings.Fields("--auto --name a,b --most 3 --budget 2GB --leave 600000001 " +
		"--lock --strategy pin --window 64MiB --never c --budget-of d=2GB --keep-warm=30m --config /x"))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(helperFlags(cmd.Flags()), " ")
	if want := "--leave=600000001B --lock=true --strategy=pin --window=64 MiB --keep-warm=30m0s"; got != want {
		t.Errorf("the flags are %s, want %s", got, want)
	}
}
