package cmd_test

// This file tests that a signal ends every command soon, whatever it is doing.

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
)

// soon is the time within which a signal must end a command. On a busy machine everything may take
// longer sometimes, so the best of some attempts counts. No attempt may take as long as tooLate.
const (
	soon     = time.Second
	attempts = 4
	tooLate  = 30 * time.Second
)

// scene is a command that is signalled.
type scene struct {
	args []string // the command, by its name, and its arguments
	// ready reports whether the command has reached the moment of the signal. output is its
	// standard error until now.
	ready func(pid int, output string) bool
	// stalled says that nobody reads its standard output.
	stalled bool
	// signal sends the signal; nil: to the command.
	signal func(t *testing.T, pid int, sig syscall.Signal)
	status int // the wanted exit status; -1: any
}

func TestSignalsEndCommandsSoon(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	model := synth.Config{Layers: 3, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1}
	o := llama.Options{
		Model:  llamatest.Model(t, model),
		Prompt: "x", Tokens: 100, Threads: 1, NoRepack: true, Repeat: 1 << 20,
	}
	command := in.Command(t.Context(), o).Args
	running, stopped := startTarget(t, in, o), startTarget(t, in, o)
	if err := syscall.Kill(stopped, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	arrays := filepath.Join(t.TempDir(), "arrays.gguf")
	(&gguftest.Model{KVs: manyArrays()}).Write(t, arrays)
	capture := filepath.Join(t.TempDir(), "capture")
	long := exec.Command("timeout", "--signal=INT", "4", bin["tracer"], "-o", capture, "--pid", fmt.Sprint(running))
	out, err := long.CombinedOutput()
	if err != nil && long.ProcessState.ExitCode() != 124 { // 124 is the status of timeout
		t.Fatalf("%v\n%s", err, out)
	}
	tracer := func(dir string, args ...string) []string {
		return append([]string{"tracer", "-v", "-o", filepath.Join(t.TempDir(), dir)}, args...)
	}
	// The last probe has been set.
	attached := func(_ int, output string) bool { return strings.Contains(output, "ggml_backend_buffer_free") }
	after := func(d time.Duration) func(int, string) bool {
		var begun time.Time
		last := 0
		return func(pid int, _ string) bool {
			if pid != last {
				last, begun = pid, time.Now()
			}
			return time.Since(begun) > d
		}
	}
	// The command has used so much processor time, which does not depend on how busy the machine is.
	worked := func(d time.Duration) func(int, string) bool {
		return func(pid int, _ string) bool {
			p, err := procfs.NewProc(pid)
			if err != nil {
				return false
			}
			stat, err := p.Stat()
			return err == nil && stat.CPUTime() >= d.Seconds()
		}
	}
	// prefetchd has set up everything. From then on it would be the first to be killed for lack of
	// memory.
	settled := func(pid int, _ string) bool {
		adj, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		return err == nil && strings.TrimSpace(string(adj)) == "1000"
	}
	// The command that tracer has started ends by itself once the signal is passed on.
	computing := func(pid int, _ string) bool {
		child := childOf(pid)
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", child))
		return child != 0 && err == nil && bytes.Contains(maps, []byte(o.Model))
	}
	// The shell has set its traps and started the command.
	trapped := func(pid int, _ string) bool { return childOf(childOf(pid)) != 0 }
	deaf := append([]string{"--", "sh", "-c", `trap "" INT TERM; "$@"; exit 5`, "sh"}, "sleep", "600")
	pid, stoppedPID := fmt.Sprint(running), fmt.Sprint(stopped)
	for name, s := range map[string]scene{
		"tracer":            {args: tracer("a", "--pid", pid), ready: attached, status: -1},
		"tracer, graphs":    {args: tracer("b", "--detail", "graph", "--pid", pid), ready: attached, status: -1},
		"tracer, io":        {args: tracer("c", "--detail", "op+io", "--pid", pid), ready: attached, status: -1},
		"tracer, processes": {args: tracer("d", "--follow", "--pid", pid), ready: attached, status: -1},
		"tracer, a stopped target": {
			args: tracer("e", "--pid", stoppedPID), ready: attached, status: cli.Failure,
		},
		"tracer, its output is not read": {
			args: []string{"tracer", "-v", "--csv", "--pid", pid}, ready: attached, stalled: true, status: cli.Failure,
		},
		"tracer, a command": {
			args: tracer("f", append([]string{"--"}, command...)...), ready: computing, status: -1,
		},
		"tracer, a preloaded command": {
			args: tracer("g", append([]string{"--preload", "--"}, command...)...), ready: computing, status: -1,
		},
		"tracer, a deaf command": {args: tracer("h", deaf...), ready: trapped, signal: signalDeaf, status: -1},
		"tracer, a deaf one preloaded": {
			args:  tracer("i", append([]string{"--preload"}, deaf...)...),
			ready: trapped, signal: signalDeaf, status: -1,
		},
		"prefetchd": {
			args: []string{"prefetchd", "--pid", pid}, ready: settled, status: cli.OK,
		},
		"prefetchd, a stopped target": {
			args: []string{"prefetchd", "--pid", stoppedPID}, ready: settled, status: cli.OK,
		},
		"analyze": {
			args:  []string{"analyze", "-c", capture, "-o", filepath.Join(t.TempDir(), "analysis"), "--heatmap"},
			ready: after(30 * time.Millisecond), status: -1,
		},
		"ggufmap": {
			args: []string{
				"ggufmap", "--metadata", "--elements", "-1", "--format", "parquet",
				"-o", filepath.Join(t.TempDir(), "out"), arrays,
			},
			ready: worked(200 * time.Millisecond), status: cli.Failure,
		},
		"ggufmap, its output is not read": {
			args:  []string{"ggufmap", "--metadata", "--elements", "-1", arrays},
			ready: worked(20 * time.Millisecond), stalled: true, status: cli.Failure,
		},
		"prefetchd, while it attaches": {
			args: []string{"prefetchd", "--pid", pid}, ready: after(50 * time.Millisecond), status: -1,
		},
		"lab synth": {
			args: []string{
				"lab", "synth", "-o", filepath.Join(t.TempDir(), "m.gguf"), "--layers", "100", "--embd", "2048",
				"--ff", "8192", "--heads", "16", "--kv-heads", "4", "--type", "Q8_0",
			},
			ready: worked(200 * time.Millisecond), status: cli.Failure,
		},
	} {
		sig := syscall.SIGINT
		if len(name)%2 == 0 { // the commands handle both signals in the same way
			sig = syscall.SIGTERM
		}
		t.Run(name+", "+sig.String(), func(t *testing.T) {
			var took []time.Duration
			for range attempts {
				d := s.run(t, sig)
				if took = append(took, d); d < soon || t.Failed() {
					return
				}
			}
			t.Errorf("it ended after %v, want within %v once", took, soon)
		})
	}
}

// manyArrays returns metadata whose table takes seconds to write.
func manyArrays() (kvs []gguftest.KV) {
	for i := range 1000 {
		kvs = append(kvs, gguftest.KV{Key: fmt.Sprintf("array.%d", i), Value: make([]int32, 50_000)})
	}
	return kvs
}

// startTarget starts a llama.cpp that generates until the test ends. It leaves others most of the processor.
func startTarget(t *testing.T, in *llama.Installation, o llama.Options) (pid int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nice", append([]string{"-n", "10"}, in.Command(t.Context(), o).Args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	testenv.WaitMapped(t, cmd.Process.Pid, o.Model)
	return cmd.Process.Pid
}

// signalDeaf signals a tracer whose command ignores signals, and then kills that command.
func signalDeaf(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
	shell := childOf(pid)
	deadline := time.Now().Add(300 * time.Millisecond)
	for ; time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if childOf(pid) != shell {
			t.Fatal("the signal ended the command, want it ignored")
		}
	}
	for p := shell; p != 0; p = childOf(p) {
		defer syscall.Kill(p, syscall.SIGKILL) //nolint:errcheck
	}
}

// childOf returns a process that the process has started; 0 if there is none.
func childOf(pid int) (child int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			continue
		}
		if n, _ := fmt.Sscan(string(data), &child); n == 1 {
			return child
		}
	}
	return 0
}

// run starts the command, signals it, and returns how long it took to end.
func (s *scene) run(t *testing.T, sig syscall.Signal) time.Duration {
	t.Helper()
	cmd := exec.Command(bin[s.args[0]], s.args[1:]...)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	readLog := func() string {
		text, err := os.ReadFile(log.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if s.stalled {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		w.Fd() // makes it blocking, like a shell's pipe
		cmd.Stdout = w
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the status is checked below
	}()
	defer func() {
		if child := childOf(cmd.Process.Pid); child != 0 {
			_ = syscall.Kill(child, syscall.SIGKILL)
		}
		_ = cmd.Process.Kill()
		<-ended
	}()
	testenv.WaitFor(t, "the command to get on", func() bool {
		select {
		case <-ended:
			return true
		default:
			return s.ready(cmd.Process.Pid, readLog())
		}
	})
	if s.stalled {
		time.Sleep(time.Second) // until the pipe is full
	}
	if s.signal == nil {
		_ = cmd.Process.Signal(sig)
	} else {
		s.signal(t, cmd.Process.Pid, sig)
	}
	begun := time.Now()
	select {
	case <-ended:
	case <-time.After(tooLate):
		t.Errorf("it still runs after %v, want it ended:\n%s", tooLate, readLog())
	}
	took := time.Since(begun)
	if got := cmd.ProcessState; s.status >= 0 && got != nil && got.ExitCode() != s.status {
		t.Errorf("%v, want status %d:\n%s", got, s.status, readLog())
	}
	return took
}
