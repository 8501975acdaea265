package main

// These tests let prefetchd find whom to help.

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

// named starts the real llama.cpp under another name, which decodes until it is killed.
func named(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, synth.Config{Layers: 2, Embd: 128, FF: 256, Heads: 2, KVHeads: 2, Type: gguf.Q8_0, Seed: 1})
	cmd := in.Command(t.Context(), llama.Options{Model: model, Prompt: "x", Tokens: 100, Threads: 1, Repeat: 1000, NoRepack: true})
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

// A process that comes is helped, and goes on when that ends: because prefetchd was killed, or told to end.
func TestAuto(t *testing.T) {
	testenv.NeedRoot(t)
	const name = "auto-target"
	dir := filepath.Join(t.TempDir(), "run")
	start := func(flags ...string) (*exec.Cmd, *bytes.Buffer) {
		var said bytes.Buffer
		cmd := exec.Command(prefetchd, append([]string{"--auto", "--name", name, "--budget", "600MB", "--run-dir", dir}, flags...)...)
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd, &said
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
	ended := func(helper int) {
		testenv.WaitFor(t, "the helper to end", func() bool { return syscall.Kill(helper, 0) != nil })
	}

	all, said := start()
	target := named(t, name)
	helper := helperOf(target.Process.Pid)
	if err := monitor.SetBudget(t.Context(), dir, target.Process.Pid, 100e6); err != nil {
		t.Error(err)
	}
	if err := all.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ended(helper)
	_ = all.Wait()
	if !strings.Contains(said.String(), "msg=helping") {
		t.Errorf("it says %q", said.String())
	}

	all, said = start("--log", "json")
	helper = helperOf(target.Process.Pid)
	if err := all.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := all.Wait(); err != nil {
		t.Errorf("%v: %s", err, said.String())
	}
	if syscall.Kill(helper, 0) == nil {
		t.Error("the helper goes on")
	}
	if lines := parse(t, said.String()); len(lines) < 2 {
		t.Errorf("it says %q", said.String())
	}
	if err := target.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the target does not: %v", err)
	}
}

// --wait NAME helps one process of that name, and ends with it.
func TestWaitForName(t *testing.T) {
	testenv.NeedRoot(t)
	const name = "named-target"
	dir := filepath.Join(t.TempDir(), "run")
	cmd := exec.Command(prefetchd, "--run-dir", dir, "--wait", name)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	target := named(t, name)
	testenv.WaitFor(t, "prefetchd to know what the target does", func() bool {
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
		t.Errorf("%v: %s", err, said.String())
	}
}

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
		"--wait a b":                     "unexpected argument",
		"--wait":                         "say which process",
	} {
		var stdout, stderr bytes.Buffer
		code := cli.Run(t.Context(), command(func() {}), strings.Fields(args), &stdout, &stderr)
		if code != cli.BadUsage || !strings.Contains(stderr.String(), want) || strings.Count(stderr.String(), "\n") > 2 {
			t.Errorf("%s: exit %d, %q, want %q", args, code, stderr.String(), want)
		}
	}
}

// Helpers get what was given, to the byte, but for what is --auto's own.
func TestHelperFlags(t *testing.T) {
	cmd := command(func() {})
	if err := cmd.ParseFlags(strings.Fields("--auto --name a,b --most 3 --budget 2GB --leave 600000001 --lock --strategy pin --window 64MiB")); err != nil {
		t.Fatal(err)
	}
	o := options{leave: 600000001}
	o.Window = 64 << 20
	if got := strings.Join(helperFlags(cmd.Flags(), &o), " "); got != "--leave=600000001 --lock=true --strategy=pin --window=67108864" {
		t.Errorf("%s", got)
	}
}
