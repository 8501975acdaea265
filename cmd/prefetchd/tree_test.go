package main

// This file tests that a process stands for those that it starts, which compute for it.

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	"tensorcast/processes/processestest"
)

// parentCommand is a command that waits for SIGUSR1, starts the real llama.cpp, and computes nothing itself. With ggml
// it has ggml's functions nevertheless.
func parentCommand(t *testing.T, name string, ggml bool) []string {
	t.Helper()
	in := llamatest.ForTest(t)
	model := llamatest.Model(t,
		synth.Config{Layers: 2, Embd: 128, FF: 256, Heads: 2, KVHeads: 2, Type: gguf.Q8_0, Seed: 1})
	blob := filepath.Join(t.TempDir(), "sha256-00ff")
	if err := os.Symlink(model, blob); err != nil {
		t.Fatal(err)
	}
	child := in.Command(t.Context(),
		llama.Options{Model: blob, Prompt: "x", Tokens: 100, Threads: 1, Repeat: 1 << 20, Pause: 10, NoRepack: true})
	command := []string{processestest.Program(t, name, ggml), "wait", "child", "/bin/sh", "-c",
		`exec "$0" "$@" > /dev/null`, child.Path}
	return append(append(command, child.Args[1:]...), ";")
}

// waitHelped waits until a process other than the parent is helped, and has decoded. It returns that process.
func waitHelped(t *testing.T, dir string, parent int) (child int) {
	t.Helper()
	testenv.WaitFor(t, "the child to be helped", func() bool {
		all, err := monitor.List(t.Context(), dir)
		if err != nil {
			t.Log(err) // one that is ending
		}
		for _, r := range all {
			if r.Target != parent && r.Status.Activity != prefetch.Waiting {
				child = r.Target
			}
		}
		return child != 0
	})
	return child
}

// --wait NAME and --pid mean a process or what computes below it: children that are there, and those that come. The
// help ends when the parent does.
func TestHelpsChildren(t *testing.T) {
	testenv.NeedRoot(t)
	for _, tc := range []struct {
		name  string
		ggml  bool // in the parent
		early bool // the child is there before prefetchd
		flags func(parent *processestest.Process) []string
	}{
		{"a router by name", true, false, func(*processestest.Process) []string {
			return []string{"--wait", "tree-target", "--budget", "600MB"}
		}},
		{"a router by pid", true, true, func(p *processestest.Process) []string {
			return []string{"--pid", fmt.Sprint(p.PID())}
		}},
		{"a parent by name", false, true, func(*processestest.Process) []string {
			return []string{"--wait", "tree-target"}
		}},
		{"a parent by pid", false, false, func(p *processestest.Process) []string {
			return []string{"--wait", "--pid", fmt.Sprint(p.PID())}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			parent := processestest.Start(t, parentCommand(t, "tree-target", tc.ggml)...)
			parent.Next()
			startChild := func() {
				if err := parent.Process.Signal(syscall.SIGUSR1); err != nil {
					t.Fatal(err)
				}
				parent.Next()
			}
			if tc.early {
				startChild()
				testenv.WaitFor(t, "the child to map its model", func() bool {
					maps, err := exec.Command("sh", "-c",
						fmt.Sprintf("cat /proc/$(pgrep -P %d)/maps", parent.PID())).Output()
					return err == nil && bytes.Contains(maps, []byte(".gguf"))
				})
			}
			dir := filepath.Join(t.TempDir(), "run")
			h := exec.Command(prefetchd, append(tc.flags(parent), "--run-dir", dir)...)
			var stderr bytes.Buffer
			h.Stderr = &stderr
			if err := h.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = h.Process.Kill(); _ = h.Wait() })
			if !tc.early {
				startChild()
			}
			child := waitHelped(t, dir, parent.PID())
			if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			testenv.WaitFor(t, "the child's helper to end", func() bool {
				all, err := monitor.List(t.Context(), dir)
				return err == nil && (len(all) == 0 || len(all) == 1 && all[0].Target == parent.PID())
			})
			if err := h.Process.Signal(syscall.Signal(0)); err != nil {
				t.Errorf("prefetchd has ended with the child: %v", err)
			}
			parent.End()
			if err := h.Wait(); err != nil {
				t.Errorf("%v: %s", err, stderr.String())
			}
			if text := stderr.String(); !strings.Contains(text, fmt.Sprintf("%d llamarun: ", child)) ||
				strings.Contains(text, "nothing was learned") {
				t.Errorf("it wrote\n%s\nwant that %d is helped", text, child)
			}
		})
	}
}

// What a command starts is helped, too, and its exit status is passed on.
func TestExecHelpsChildren(t *testing.T) {
	testenv.NeedRoot(t)
	dir := filepath.Join(t.TempDir(), "run")
	command := parentCommand(t, "exec-target", true)
	p := processestest.Start(t, append([]string{prefetchd, "--exec", "--run-dir", dir, "--"}, command...)...)
	parent := p.Next()
	if err := syscall.Kill(parent, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	p.Next()
	child := waitHelped(t, dir, parent)
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.End() // which checks the status
}

// Flags may follow the name of --wait. Only after --exec all that follows the first word belongs to the command.
func TestFlagsAfterArguments(t *testing.T) {
	for args, want := range map[string]string{
		"--wait llama-server --most":         "needs an argument: --most",
		"--wait llama-server --speculate x":  "speculate",
		"--wait llama-server --no-such-flag": "no-such-flag",
		"--pid 1 2 --strategy x":             "strategy",
	} {
		var stdout, stderr bytes.Buffer
		code := cli.Run(t.Context(), command(func() {}), strings.Fields(args), &stdout, &stderr)
		if code != cli.BadUsage || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: status %d, %q, want status %d, %q", args, code, stderr.String(), cli.BadUsage, want)
		}
	}
	cmd := command(func() {})
	if err := cmd.ParseFlags([]string{"--exec", "--as-root", "echo", "-v", "--wait"}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(cmd.Flags().Args(), " "); got != "echo -v --wait" {
		t.Errorf("the command is %q, want echo -v --wait", got)
	}
	if cmd.Flags().Changed("verbose") || cmd.Flags().Changed("wait") {
		t.Error("flags of the command were taken for prefetchd's")
	}
	if err := cmd.ParseFlags([]string{"--wait", "llama-server", "-v"}); err == nil && cmd.Flags().Changed("verbose") {
		t.Error("after --exec, flags behind a word were taken for prefetchd's")
	}
	cmd = command(func() {})
	err := cmd.ParseFlags([]string{"--wait", "llama-server", "-v"})
	if got := cmd.Flags().Args(); err != nil || !cmd.Flags().Changed("verbose") || len(got) != 1 {
		t.Errorf("-v after a name: %v, arguments %v, want that it counts", err, got)
	}
}

// doctor takes what pidof prints, a server and what it has started, and reports on those that compute. Of processes
// that run apart it takes none.
func TestDoctorOfParent(t *testing.T) {
	testenv.NeedRoot(t)
	parent := processestest.Start(t, parentCommand(t, "doctor-target", true)...)
	parent.Next()
	if err := parent.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	parent.Next()
	var child int
	testenv.WaitFor(t, "the child to map its model", func() bool {
		out, err := exec.Command("pgrep", "-P", fmt.Sprint(parent.PID())).Output()
		if err != nil {
			return false
		}
		if _, err := fmt.Sscan(string(out), &child); err != nil {
			return false
		}
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", child))
		return err == nil && bytes.Contains(maps, []byte(".gguf"))
	})
	out, err := exec.Command(prefetchd, "doctor", "--json", "--pid",
		fmt.Sprint(child), fmt.Sprint(parent.PID())).Output()
	var d diagnosis
	if json.Unmarshal(out, &d) != nil || d.Holding.PID != child || d.Parent != parent.PID() {
		t.Errorf("doctor: %v, %s; want a report on %d, started by %d", err, out, child, parent.PID())
	}
	text, _ := exec.Command(prefetchd, "doctor", "--pid", fmt.Sprint(parent.PID())).CombinedOutput() // 1: it fits
	want := fmt.Sprintf("process %d, which computes nothing itself", parent.PID())
	if !strings.Contains(string(text), want) {
		t.Errorf("doctor says %s, want %q", text, want)
	}
	apart := processestest.Start(t, processestest.Program(t, "apart", false)).PID()
	for _, args := range [][]string{
		{"doctor", "--pid", fmt.Sprint(child), fmt.Sprint(apart)}, {"--pid", fmt.Sprint(child), fmt.Sprint(apart)},
	} {
		cmd := exec.Command(prefetchd, args...)
		text, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != cli.BadUsage || !strings.Contains(string(text), "give one of them") ||
			strings.Count(string(text), "\n") != 1 {
			t.Errorf("%v: %v, %s; want one line that asks for one of them", args, err, text)
		}
	}
}
