package main

// This file tests that tracer finds those that compute below a process, which itself computes nothing.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
	"tensorcast/processes/processestest"
	"tensorcast/trace"
)

// parentCommand is a command that waits for SIGUSR1 and starts the real llama.cpp, which computes until it is killed.
// Its own program has ggml's functions, too.
func parentCommand(t *testing.T) []string {
	t.Helper()
	in := llamatest.ForTest(t)
	child := in.Command(t.Context(), llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: "x", Tokens: 8, Threads: 1, NoRepack: true, Repeat: 1 << 20,
	})
	command := []string{processestest.Program(t, "trace-target", true), "wait", "child", "/bin/sh", "-c",
		`exec "$0" "$@" > /dev/null`, child.Path}
	return append(append(command, child.Args[1:]...), ";")
}

// startChild lets a parent start its child, and waits until that has mapped its model.
func startChild(t *testing.T, parent int) (child int) {
	t.Helper()
	if err := syscall.Kill(parent, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "the child to map its model", func() bool {
		out, err := exec.Command("pgrep", "-P", fmt.Sprint(parent)).Output()
		if err != nil {
			return false
		}
		if _, err := fmt.Sscan(string(out), &child); err != nil {
			return false
		}
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", child))
		return err == nil && bytes.Contains(maps, []byte(".gguf"))
	})
	return child
}

// With --pid of a process that only starts others, those that it has started before are traced, as they are with
// --follow, and with what pidof prints.
func TestPIDOfParent(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	parent := processestest.Start(t, parentCommand(t)...)
	parent.Next()
	child := startChild(t, parent.PID())
	ofParent := []string{"--pid", fmt.Sprint(parent.PID())}
	for name, flags := range map[string][]string{
		"parent":      ofParent,
		"followed":    append([]string{"--follow"}, ofParent...),
		"two numbers": {"--pid", fmt.Sprint(child), fmt.Sprint(parent.PID())},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "capture")
			cmd := exec.Command(tracerBinary, append(flags, "--no-probe", "-o", out)...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			dir := filepath.Join(out, fmt.Sprint(child))
			testenv.WaitFor(t, "a capture of the child", func() bool {
				info, err := os.Stat(filepath.Join(dir, "access.arrows"))
				return err == nil && info.Size() > 10000
			})
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%v: %s", err, stderr.String())
			}
			c, err := trace.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			if c.Meta.PID != child || c.Meta.Parent != parent.PID() || c.Meta.Steps == 0 {
				t.Errorf("captured process %d of %d with %d steps, want %d of %d",
					c.Meta.PID, c.Meta.Parent, c.Meta.Steps, child, parent.PID())
			}
		})
	}
}

// doctor reports on the process that computes, also of what pidof prints.
func TestDoctorOfParent(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	parent := processestest.Start(t, parentCommand(t)...)
	parent.Next()
	child := startChild(t, parent.PID())
	for _, args := range [][]string{{fmt.Sprint(parent.PID())}, {fmt.Sprint(child), fmt.Sprint(parent.PID())}} {
		out, err := exec.Command(tracerBinary, append([]string{"doctor", "--json", "--pid"}, args...)...).Output()
		var r struct {
			Target struct {
				PID int `json:"pid"`
			} `json:"target"`
		}
		if jsonErr := json.Unmarshal(out, &r); err != nil || jsonErr != nil || r.Target.PID != child {
			t.Errorf("doctor --pid %v: %v, %v, %s; want a report on %d", args, err, jsonErr, out, child)
		}
	}
}

// CSV has no column for the process. So of a process that only starts another one, that one is traced.
func TestCSVOfParent(t *testing.T) {
	testenv.NeedRoot(t)
	parent := processestest.Start(t, parentCommand(t)...)
	parent.Next()
	child := startChild(t, parent.PID())
	cmd := exec.Command(tracerBinary, "--csv", "--pid", fmt.Sprint(parent.PID()))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewReader(stdout)
	for range 10 {
		if line, err := lines.ReadString('\n'); err != nil {
			t.Fatalf("%q, %v: %s", line, err, stderr.String())
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, lines)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, stderr.String())
	}
	if want := fmt.Sprintf("process %d (llamarun), which it started, is traced", child); !strings.Contains(
		stderr.String(), want) {
		t.Errorf("stderr %q, want %q", stderr.String(), want)
	}
}

// Without --follow, tracer names the process that a command has started and that loads a model, while it runs and at
// the end, and says how to trace it.
func TestNamesChild(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd := exec.Command(tracerBinary,
		append([]string{"--no-probe", "-o", filepath.Join(dir, "capture"), "--"}, parentCommand(t)...)...)
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var parent int
	if _, err := fmt.Fscan(stdout, &parent); err != nil { // it waits now
		t.Fatal(err)
	}
	child := startChild(t, parent)
	said := func(want string) bool {
		text, err := os.ReadFile(stderr.Name())
		return err == nil && strings.Contains(string(text), want)
	}
	const loaded = "tracer: process %d (llamarun), which the target has started, has loaded a model, and is not traced: " +
		"add --follow, or trace it with --pid %[1]d\n"
	testenv.WaitFor(t, "tracer to name the child", func() bool { return said(fmt.Sprintf(loaded, child)) })
	stdin.Close()
	_, _ = io.Copy(io.Discard, stdout)
	_ = cmd.Wait() // the status is checked below
	want := fmt.Sprintf("tracer: no decode was seen in the process itself: process %d (llamarun), which it started, "+
		"has loaded a model: add --follow\n", child)
	if !said(want) {
		t.Errorf("want %q in the end", want)
	}
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
}
