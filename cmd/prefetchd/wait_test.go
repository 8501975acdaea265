package main

// This file tests that prefetchd sleeps while it waits, that it waits no longer than it must, and
// `prefetchd status`.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch"
	"tensorcast/prefetch/monitor"
)

// processorTime returns the processor time that all threads of a process have used, and how often they were given a
// processor (/proc/PID/task/TID/schedstat).
func processorTime(t *testing.T, pid int) (sum time.Duration, runs int64) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d has no threads, %v", pid, err)
	}
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var ran, waited, count int64
		if _, err := fmt.Sscan(string(text), &ran, &waited, &count); err != nil {
			t.Fatalf("%s: %q: %v", file, text, err)
		}
		sum, runs = sum+time.Duration(ran), runs+count
	}
	return sum, runs
}

// startHelper starts prefetchd for a process. See also rig.help.
func startHelper(t *testing.T, pid int, flags ...string) *helper {
	t.Helper()
	h := &helper{Cmd: exec.Command(prefetchd, append([]string{"--pid", fmt.Sprint(pid), "--json"}, flags...)...)}
	h.Stdout, h.Stderr = &h.stdout, &h.stderr
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Process.Kill(); _ = h.Wait() })
	return h
}

// waitSettled waits until prefetchd has set up everything.
func (h *helper) waitSettled(t *testing.T) {
	t.Helper()
	testenv.WaitFor(t, "prefetchd to be settled", func() bool {
		if h.hasEnded() {
			t.Fatalf("prefetchd has ended: %s", h.stderr.String())
		}
		return h.isSettled()
	})
}

// isSettled reports whether prefetchd has set up everything.
func (h *helper) isSettled() bool {
	adj, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", h.Process.Pid))
	return err == nil && strings.TrimSpace(string(adj)) == "1000"
}

// Bounds on a prefetchd that waits. mostRuns is how often a second its threads run together: a few dozen wake-ups, and
// each runs several threads. mostAsleep is how much of a core it takes, in percent. The aim is 0.5. One day a virtual
// machine without other work took 2.7 to 5, and ran its threads 150 to 370 times a second. A prefetchd that does not
// sleep takes all of a core, and one that looks each millisecond runs its threads thousands of times.
const (
	mostRuns   = 800
	mostAsleep = 8.0
)

// checkAsleep checks that several prefetchd, by name, take hardly any processor time.
func checkAsleep(t *testing.T, helpers map[string]*helper) {
	t.Helper()
	type use struct{ share, runs float64 } // of a core, in percent; times a second that threads ran
	least := map[string]use{}
	for range 3 { // if other programs run on the machine, some of the few dozen wake-ups cost more
		begun, before, runsBefore := map[string]time.Time{}, map[string]time.Duration{}, map[string]int64{}
		for name, h := range helpers {
			begun[name] = time.Now()
			before[name], runsBefore[name] = processorTime(t, h.Process.Pid)
		}
		time.Sleep(4 * time.Second)
		isAsleep := true
		for name, h := range helpers {
			took, runs := processorTime(t, h.Process.Pid)
			passed := time.Since(begun[name]).Seconds()
			now := use{100 * (took - before[name]).Seconds() / passed, float64(runs-runsBefore[name]) / passed}
			t.Logf("%s: %.2f %% of a core, %.0f runs a second", name, now.share, now.runs)
			if was, ok := least[name]; ok {
				now = use{min(was.share, now.share), min(was.runs, now.runs)}
			}
			least[name] = now
			isAsleep = isAsleep && now.share < mostAsleep && now.runs < mostRuns
		}
		if isAsleep {
			break
		}
	}
	for name, l := range least {
		if l.share >= mostAsleep || l.runs >= mostRuns {
			t.Errorf("%s: waiting takes %.2f %% of a core and %.0f runs a second, want less than %.2f %% and %d", name,
				l.share, l.runs, mostAsleep, mostRuns)
		}
	}
}

// TestWaitsAsleep checks that prefetchd sleeps while the target has not loaded ggml, and while ggml
// has no model, and that a signal ends it.
func TestWaitsAsleep(t *testing.T) {
	testenv.NeedQuiet(t)
	in := llamatest.ForTest(t)
	libraries, err := filepath.Glob(filepath.Join(in.Dir, "libggml-cpu-x64.so"))
	if err != nil || len(libraries) == 0 {
		t.Skip("this llama.cpp has no CPU library that every processor runs")
	}
	loaded := exec.Command("sleep", "1000")
	loaded.Env = append(os.Environ(), "LD_PRELOAD="+filepath.Join(in.Dir, "libggml-base.so")+":"+libraries[0])
	helpers := map[string]*helper{}
	for name, target := range map[string]*exec.Cmd{"no ggml": exec.Command("sleep", "1000"), "no model": loaded} {
		if err := target.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = target.Process.Kill(); _ = target.Wait() })
		if target == loaded {
			testenv.WaitMapped(t, target.Process.Pid, libraries[0])
			helpers[name] = startHelper(t, target.Process.Pid)
		} else {
			helpers[name] = startHelper(t, target.Process.Pid, "--wait")
		}
	}
	for _, h := range helpers {
		h.waitSettled(t)
	}
	time.Sleep(4 * time.Second) // after its start it looks often for a while
	checkAsleep(t, helpers)
	for name, h := range helpers {
		h.signal(t, syscall.SIGINT)
		if err := h.Wait(); err != nil || strings.Contains(h.stderr.String(), "ggml") {
			t.Errorf("%s: interrupted: %v, %s", name, err, h.stderr.String())
		}
	}
}

// TestStatus checks `prefetchd status` in each format, and that nothing is left in the directory of
// sockets when prefetchd has ended.
func TestStatus(t *testing.T) {
	testenv.NeedRoot(t)
	target := exec.Command("sleep", "1000")
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
	dir := filepath.Join(t.TempDir(), "run")
	status := func(flags ...string) (string, error) {
		out, err := exec.Command(prefetchd, append([]string{"status", "--run-dir", dir}, flags...)...).Output()
		return string(out), err
	}
	if out, err := status(); err != nil || out != "no prefetchd helps a process here\n" {
		t.Errorf("%v: %s", err, out)
	}
	h := startHelper(t, target.Process.Pid, "--wait", "--run-dir", dir)
	h.waitSettled(t)
	pid := fmt.Sprint(target.Process.Pid)
	if out, err := status(); err != nil || !strings.HasPrefix(out, pid+" sleep, for ") ||
		!strings.Contains(out, ": waiting: the target has not loaded ggml, for ") ||
		!strings.Contains(out, "\n    no model is mapped; phase learn since ") {
		t.Errorf("%v: %s", err, out)
	}
	out, err := status("--json", "--pid", pid)
	var all []monitor.Report
	if err == nil {
		err = json.Unmarshal([]byte(out), &all)
	}
	if err != nil || len(all) != 1 || all[0].PID != h.Process.Pid ||
		all[0].Status.Activity != prefetch.Waiting || all[0].OwnBytes <= 0 {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := status("--metrics"); err != nil ||
		!strings.Contains(out, `tensorcast_prefetchd_phase{target_pid="`+pid+`",command="sleep",phase="waiting"} 1`) {
		t.Errorf("%v: %s", err, out)
	}
	parent := fmt.Sprint(os.Getpid()) // one that has started the target counts, as does a list that pidof prints
	for _, flags := range [][]string{{"--pid", parent}, {"--pid", parent, pid}, {"--pid", pid, parent}} {
		if out, err := status(flags...); err != nil || !strings.HasPrefix(out, pid+" sleep, for ") {
			t.Errorf("%q: %v: %s", flags, err, out)
		}
	}
	for _, flags := range [][]string{{"--pid", fmt.Sprint(h.Process.Pid)}, {"--pid", pid, "x"}, {pid}} {
		if out, err := status(flags...); err == nil || out != "" {
			t.Errorf("%q: the status is %q, want an error", flags, out)
		}
	}
	h.signal(t, syscall.SIGINT)
	if err := h.Wait(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the directory still has %v, %v", left, err)
	}
}

// TestWaits checks that a process that loads ggml after a while is helped from then on.
func TestWaits(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	model := llamatest.Model(t,
		synth.Config{Layers: 2, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1})
	o := llama.Options{Model: model, Prompt: "x", Tokens: 100, Threads: 1, NoRepack: true, Pause: 5, Repeat: 1 << 20}
	gate := filepath.Join(t.TempDir(), "gate")
	target := exec.Command("sh",
		append([]string{"-c", `while [ ! -e "$0" ]; do sleep 0.1; done; exec "$@"`, gate},
			in.Command(t.Context(), o).Args...)...)
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
	h := startHelper(t, target.Process.Pid, append([]string{"--wait", "--verbose"}, smallBudget...)...)
	h.waitSettled(t)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.WaitMapped(t, target.Process.Pid, model)
	locked := func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Process.Pid))
		return err == nil && field(status, "VmLck:") > 0
	}
	testenv.WaitFor(t, "the model to be held", locked)
	if err := target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = target.Wait()
	if s := h.summary(t); s.Learned == 0 || s.Tokens == 0 {
		t.Errorf("summary %+v", s)
	}
}

// TestWaitsInVain checks that prefetchd reports it if the target ends without having loaded ggml.
func TestWaitsInVain(t *testing.T) {
	testenv.NeedRoot(t)
	target := exec.Command("sleep", "1000")
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	h := startHelper(t, target.Process.Pid, "--wait")
	h.waitSettled(t)
	if err := target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = target.Wait()
	_ = h.Wait()
	want := fmt.Sprintf("prefetchd: process %d ended before anything was seen: found no ggml", target.Process.Pid)
	if text := h.stderr.String(); h.ProcessState.ExitCode() != 1 || !strings.HasPrefix(text, want) ||
		strings.Contains(text, "--wait") || strings.Count(text, "\n") != 1 {
		t.Errorf("status %d: %s, want status 1 and %s", h.ProcessState.ExitCode(), text, want)
	}
}

// TestStatusOfOthers checks that a user who may not ask the prefetchds of another one is told so in a line, and not
// that nobody is helped: neither where the directory is closed, nor where only the sockets are.
func TestStatusOfOthers(t *testing.T) {
	testenv.NeedRoot(t)
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("setpriv is missing (Debian package util-linux)")
	}
	const nobody = 65534
	for mode, name := range map[os.FileMode]string{0o700: "closed", 0o755: "open"} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", filepath.Join(dir, "12.sock"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		socket := filepath.Join(dir, "12.sock")
		if err := errors.Join(os.Chmod(socket, 0o600), os.Chown(socket, nobody, nobody), os.Chown(dir, nobody, nobody),
			os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		for _, format := range []string{"--json=false", "--json", "--metrics"} {
			cmd := exec.Command(setpriv, "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all",
				prefetchd, "status", "--run-dir", dir, format)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run()
			want := "prefetchd status: only the user who started the prefetchds of " + dir +
				" may ask them: run this as root (sudo)\n"
			if cmd.ProcessState.ExitCode() != cli.Failure || stdout.Len() > 0 || stderr.String() != want {
				t.Errorf("%s, %s: status %d, %q and %q, want %d and only %q", name, format,
					cmd.ProcessState.ExitCode(), &stdout, &stderr, cli.Failure, want)
			}
		}
	}
}
