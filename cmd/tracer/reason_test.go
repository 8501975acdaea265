package main

// This file tests the explanations of captures in which nothing was seen.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
)

// A run in which nothing was seen ends with one line. It says how the target ended and what was
// found in it, with every way of tracing. (TestBadInput has errors before the target runs,
// TestNoBTF a kernel without BTF.)
func TestNothingSeen(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	missing := filepath.Join(t.TempDir(), "missing.gguf")
	o := llama.Options{Model: missing, Prompt: "r", Tokens: 2, Threads: 1, NoRepack: true}
	failing := in.Command(t.Context(), o).Args
	// With a FIFO as its model, the driver loads ggml and then waits.
	fifo := filepath.Join(t.TempDir(), "fifo.gguf")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	o.Model = fifo
	waiting := in.Command(t.Context(), o).Args
	static := filepath.Join(t.TempDir(), "static")
	build := exec.Command("gcc", "-static", "-s", "-o", static, "-x", "c", "-")
	build.Stdin = strings.NewReader("int ggml_graph_compute(void) { return 0; }\n" +
		"int main(void) { return ggml_graph_compute(); }\n")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// A command without ggml may have started one that has it.
	const followed = " If it starts one, add --follow"
	for name, tc := range map[string]struct {
		command []string
		pid     bool // tracer attaches to the command
		signal  syscall.Signal
		status  int
		probes  []string // parts of the line, with probes
		preload []string // parts of the line, with --preload
	}{
		"ends at once": {
			command: []string{"true"}, status: cli.Failure,
			probes: []string{"the command ended with exit status 0 before anything was seen: found no ggml", followed},
			preload: []string{
				"the command ended with exit status 0 before anything was seen: no call of ggml_graph_compute",
				"without --preload",
			},
		},
		"fails at once": {
			command: []string{"sh", "-c", "exit 3"}, status: 3,
			probes: []string{"the command ended with exit status 3 before anything was seen: found no ggml", followed},
			preload: []string{
				"the command ended with exit status 3 before anything was seen: no call of ggml_graph_compute",
			},
		},
		"is killed": {
			command: []string{"sh", "-c", "kill -KILL $$"}, status: 128 + 9,
			probes: []string{
				"the command ended with exit status 137 (128 + SIGKILL) before anything was seen: found no ggml",
			},
			preload: []string{
				"the command ended with exit status 137 (128 + SIGKILL) before anything was seen: " +
					"no call of ggml_graph_compute",
			},
		},
		"static and stripped": {
			command: []string{static}, status: cli.Failure,
			probes:  []string{"exit status 0", "found no ggml", "not stripped?"},
			preload: []string{"exit status 0", "the shim was not loaded", "linked statically", "without --preload"},
		},
		"loads ggml and fails": {
			command: failing, status: 1,
			probes: []string{
				"no decode was seen: the command ended with exit status 1 before llama_decode was called",
			},
			preload: []string{
				"the command ended with exit status 1 before anything was seen: no call of ggml_graph_compute",
			},
		},
		"loads ggml and is ended": {
			command: waiting, signal: syscall.SIGTERM, status: 128 + 15,
			probes: []string{
				"no decode was seen: the command ended with exit status 143 (128 + SIGTERM) " +
					"before llama_decode was called",
			},
			preload: []string{
				"the command ended with exit status 143 (128 + SIGTERM) before anything was seen: " +
					"no call of ggml_graph_compute",
			},
		},
		"found, and ends": {
			command: waiting, pid: true, signal: syscall.SIGKILL, status: cli.Failure,
			probes: []string{"process ", " ended "}, // before llama_decode was called, or while probes were set
		},
		"found, and goes on": {
			command: waiting, pid: true, signal: syscall.SIGINT, status: cli.Failure,
			probes: []string{"no decode was seen: the capture ended before llama_decode was called"},
		},
	} {
		details := []string{"op", "preload"}
		if strings.HasPrefix(name, "loads") {
			details = []string{"op", "graph", "op+io", "preload"}
		}
		for _, detail := range details {
			wants, flags := tc.probes, []string{"--detail", detail}
			if detail == "preload" {
				wants, flags = tc.preload, []string{"--preload"}
			}
			if wants == nil {
				continue
			}
			t.Run(name+", "+detail, func(t *testing.T) {
				flags = append(flags, "-o", filepath.Join(t.TempDir(), "capture"))
				var target *exec.Cmd
				if tc.pid {
					target = exec.Command(tc.command[0], tc.command[1:]...)
					if err := target.Start(); err != nil {
						t.Fatal(err)
					}
					defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
					waitInOpen(t, func() []int { return []int{target.Process.Pid} })
					flags = append(flags, "-v", "--pid", fmt.Sprint(target.Process.Pid))
				} else {
					flags = append(append(flags, "--"), tc.command...)
				}
				cmd := exec.Command(tracerBinary, flags...)
				log := filepath.Join(t.TempDir(), "log")
				stderr, err := os.Create(log)
				if err != nil {
					t.Fatal(err)
				}
				defer stderr.Close()
				cmd.Stderr = stderr
				readLog := func() string {
					text, err := os.ReadFile(log)
					if err != nil {
						t.Fatal(err)
					}
					return string(text)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
				switch {
				case tc.pid:
					testenv.WaitFor(t, "tracer to find ggml", func() bool {
						return strings.Contains(readLog(), "watching")
					})
					if tc.signal == syscall.SIGKILL {
						_ = target.Process.Kill()
					} else {
						_ = cmd.Process.Signal(tc.signal)
					}
				case tc.signal != 0:
					pid := waitInOpen(t, func() []int { return children(cmd.Process.Pid) })
					defer func() { _ = unix.Kill(pid, unix.SIGKILL) }() // it goes on without tracer
					_ = cmd.Process.Signal(tc.signal)
				}
				_ = cmd.Wait() // the status is checked below
				r := result{stderr: readLog(), status: cmd.ProcessState.ExitCode()}
				if r.status != tc.status {
					t.Errorf("status %d, want %d", r.status, tc.status)
				}
				line := ""
				for l := range strings.Lines(r.stderr) {
					// not the summary's heading
					if rest, ok := strings.CutPrefix(l, "tracer: "); ok && !strings.Contains(l, "(detail ") {
						if line != "" {
							t.Errorf("a second line of error: %s, want one", l)
						}
						line = rest
					}
				}
				for _, want := range wants {
					if !strings.Contains(line, want) {
						t.Errorf("the line is %q, want %q in it", line, want)
					}
				}
				if t.Failed() {
					t.Log(r.stderr)
				}
			})
		}
	}
}

// waitInOpen waits until the first thread of one of the processes is in openat for a while, which
// happens only with a FIFO. It takes several candidates, because Go's runtime starts a short-lived
// child to find out whether the kernel has pidfds.
func waitInOpen(t *testing.T, candidates func() []int) (pid int) {
	t.Helper()
	seen := map[int]int{} // how often each process was in openat in a row
	testenv.WaitFor(t, "the target to wait for its model", func() bool {
		for _, pid = range candidates() {
			call, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
			if err != nil || !strings.HasPrefix(string(call), fmt.Sprintf("%d ", unix.SYS_OPENAT)) {
				seen[pid] = 0
				continue
			}
			if seen[pid]++; seen[pid] > 20 {
				return true
			}
		}
		return false
	})
	return pid
}
