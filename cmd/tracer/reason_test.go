package main

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

// A run in which nothing is seen ends with one line, which says how the target ended and what was found in it, whatever observes it. (What
// ends before the target runs is in TestErrors, a kernel without BTF in TestNoBTF.)
func TestNothingSeen(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	missing := filepath.Join(t.TempDir(), "missing.gguf")
	failing := in.Command(t.Context(), llama.Options{Model: missing, Prompt: "r", Tokens: 2, Threads: 1, NoRepack: true}).Args
	// A FIFO for a model: the driver has loaded ggml, and waits.
	fifo := filepath.Join(t.TempDir(), "fifo.gguf")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	waiting := in.Command(t.Context(), llama.Options{Model: fifo, Prompt: "r", Tokens: 2, Threads: 1, NoRepack: true}).Args
	static := filepath.Join(t.TempDir(), "static")
	build := exec.Command("gcc", "-static", "-s", "-o", static, "-x", "c", "-")
	build.Stdin = strings.NewReader("int ggml_graph_compute(void) { return 0; }\nint main(void) { return ggml_graph_compute(); }\n")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// What the lines say of a command without ggml: it may have started another.
	const followed = " If it starts one, add --follow"
	for name, tc := range map[string]struct {
		command []string
		pid     bool // tracer attaches to the command
		signal  syscall.Signal
		status  int
		probes  []string // what the line says
		preload []string
	}{
		"ends at once": {
			command: []string{"true"}, status: cli.Failure,
			probes:  []string{"the command ended with exit status 0 before anything was seen: found no ggml", followed},
			preload: []string{"the command ended with exit status 0 before anything was seen: no call of ggml_graph_compute", "without --preload"},
		},
		"fails at once": {
			command: []string{"sh", "-c", "exit 3"}, status: 3,
			probes:  []string{"the command ended with exit status 3 before anything was seen: found no ggml", followed},
			preload: []string{"the command ended with exit status 3 before anything was seen: no call of ggml_graph_compute"},
		},
		"is killed": {
			command: []string{"sh", "-c", "kill -KILL $$"}, status: 128 + 9,
			probes:  []string{"the command ended with exit status 137 (128 + SIGKILL) before anything was seen: found no ggml"},
			preload: []string{"the command ended with exit status 137 (128 + SIGKILL) before anything was seen: no call of ggml_graph_compute"},
		},
		"static and stripped": {
			command: []string{static}, status: cli.Failure,
			probes:  []string{"exit status 0", "found no ggml", "not stripped?"},
			preload: []string{"exit status 0", "the shim was not loaded", "linked statically", "without --preload"},
		},
		"loads ggml and fails": {
			command: failing, status: 1,
			probes:  []string{"no decode was seen: the command ended with exit status 1 before llama_decode was called"},
			preload: []string{"the command ended with exit status 1 before anything was seen: no call of ggml_graph_compute"},
		},
		"loads ggml and is ended": {
			command: waiting, signal: syscall.SIGTERM, status: 128 + 15,
			probes:  []string{"no decode was seen: the command ended with exit status 143 (128 + SIGTERM) before llama_decode was called"},
			preload: []string{"the command ended with exit status 143 (128 + SIGTERM) before anything was seen: no call of ggml_graph_compute"},
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
			says, flags := tc.probes, []string{"--detail", detail}
			if detail == "preload" {
				says, flags = tc.preload, []string{"--preload"}
			}
			if says == nil {
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
					awaitOpen(t, func() []int { return []int{target.Process.Pid} })
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
				said := func() string {
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
					testenv.WaitFor(t, "tracer to find ggml", func() bool { return strings.Contains(said(), "watching") })
					if tc.signal == syscall.SIGKILL {
						_ = target.Process.Kill()
					} else {
						_ = cmd.Process.Signal(tc.signal)
					}
				case tc.signal != 0:
					pid := awaitOpen(t, func() []int { return children(cmd.Process.Pid) })
					defer func() { _ = unix.Kill(pid, unix.SIGKILL) }() // it goes on without tracer
					_ = cmd.Process.Signal(tc.signal)
				}
				_ = cmd.Wait() // the test looks at the status
				r := result{stderr: said(), status: cmd.ProcessState.ExitCode()}
				if r.status != tc.status {
					t.Errorf("status %d, want %d", r.status, tc.status)
				}
				line := ""
				for l := range strings.Lines(r.stderr) {
					if rest, ok := strings.CutPrefix(l, "tracer: "); ok && !strings.Contains(l, "(detail ") { // not the summary's heading
						if line != "" {
							t.Errorf("a second error: %s", l)
						}
						line = rest
					}
				}
				for _, s := range says {
					if !strings.Contains(line, s) {
						t.Errorf("%q does not say %q", line, s)
					}
				}
				if t.Failed() {
					t.Log(r.stderr)
				}
			})
		}
	}
}

// awaitOpen waits until the first thread of one of the processes is in openat, which only a FIFO makes long. Of a tracer's children the first
// may be one that Go starts and ends at once, to find out whether the kernel has pidfds.
func awaitOpen(t *testing.T, candidates func() []int) (pid int) {
	t.Helper()
	at := map[int]int{}
	testenv.WaitFor(t, "the target to wait for its model", func() bool {
		for _, pid = range candidates() {
			call, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
			if err != nil || !strings.HasPrefix(string(call), fmt.Sprintf("%d ", unix.SYS_OPENAT)) {
				at[pid] = 0
				continue
			}
			if at[pid]++; at[pid] > 20 {
				return true
			}
		}
		return false
	})
	return pid
}
