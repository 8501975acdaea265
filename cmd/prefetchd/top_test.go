package main

// This file tests the live view: on a terminal, in a pipe, and with a real target.

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch"
	"tensorcast/prefetch/monitor"
)

// actor plays a prefetchd at a socket.
type actor struct {
	target   int
	listener *net.UnixListener
	http     http.Server

	mu   sync.Mutex
	told []string // what it was asked to change
}

// startActor starts one in a directory. report is what it says.
func startActor(t *testing.T, dir string, report monitor.Report) *actor {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, fmt.Sprint(report.Target, ".sock"))})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as one that is killed
	a := &actor{target: report.Target, listener: l}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		now := report
		now.OwnRead += time.Now().UnixMilli() * 2000 // 1.9 MiB/s
		_ = json.NewEncoder(w).Encode(now)
	})
	mux.HandleFunc("PUT /{what}", func(w http.ResponseWriter, r *http.Request) {
		value, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		a.told = append(a.told, r.PathValue("what")+" "+string(value))
		a.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	})
	a.http.Handler = mux
	var serving sync.WaitGroup
	serving.Go(func() { _ = a.http.Serve(l) })
	t.Cleanup(func() { a.kill(); serving.Wait() })
	return a
}

// kill ends it as a SIGKILL would: its socket stays.
func (a *actor) kill() { _ = a.http.Close() }

// wasTold says whether it was asked to change something.
func (a *actor) wasTold(what string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.told {
		if strings.HasPrefix(one, what) {
			return true
		}
	}
	return false
}

// helpingReport is what a prefetchd says that helps this process.
func helpingReport() monitor.Report {
	return monitor.Report{
		PID: 26801, Target: os.Getpid(), Command: "a\x1b[31mtarget", Began: time.Now(),
		Models: []string{"/" + strings.Repeat("deep/", 16) + "model.gguf"},
		Status: prefetch.Status{
			Activity: prefetch.Helping, LoopPhase: prefetch.Stream, Since: time.Now(), Held: 600 << 20,
			PerToken: 764 << 20, Needs: 764 << 20, Room: 670 << 20, Level: "/box memory.max",
			Now: 11.4, Before: 1.25, Tokens: 20, Decodes: 20,
		},
		Detail: &prefetch.Detail{
			Usable: 670 << 20, Bound: "/box memory.max", Window: 48 << 20, Speeds: []float32{1, 2, 11},
		},
	}
}

// TestTop checks the live view on a terminal: keys, another size of the terminal, a prefetchd that dies, and the end.
// It takes little time, and never clears the screen, which would flicker.
func TestTop(t *testing.T) {
	testenv.NeedQuiet(t)
	dir := t.TempDir()
	report := helpingReport()
	a := startActor(t, dir, report)
	term := testenv.NewTerminal(t)
	cmd := exec.Command(prefetchd, "top", "--run-dir", dir)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "NO_COLOR=")
	term.Start(cmd)
	testenv.WaitFor(t, "the speed and what is kept", func() bool {
		text := term.Text()
		return strings.Contains(text, "11.4") && strings.Contains(text, "600 MiB") && strings.Contains(text, "disk")
	})
	if text := term.Text(); strings.Contains(text, "\x1b[31mtarget") || !strings.Contains(text, `a\x1b[31mtarget`) {
		t.Errorf("the target's name controls the terminal: %q", text)
	}
	begun := len(term.Text())
	used := cpuTime(t, cmd.Process.Pid)
	const watched = 5 * time.Second
	time.Sleep(watched)
	share := 100 * (cpuTime(t, cmd.Process.Pid) - used).Seconds() / watched.Seconds()
	if share >= mostAsleep { // 1.2 to 1.8 where each wake-up costs much; the aim is 1
		t.Errorf("it takes %.1f %% of a core, want less than %.1f %%", share, mostAsleep)
	}
	if more := term.Text()[begun:]; strings.Contains(more, "\x1b[2J") || len(more) > 5*2000 {
		t.Errorf("in %v it wrote %d bytes, want only what has changed: %q", watched, len(more), more)
	}

	term.Press("p")
	testenv.WaitFor(t, "the pause", func() bool { return a.wasTold("paused true") })
	term.Press("-")
	testenv.WaitFor(t, "a smaller budget", func() bool { return a.wasTold("budget 6") })
	if strings.Contains(term.Text(), report.Models[0]) {
		t.Fatal("80 columns have room for the whole path, which is to be cut there")
	}
	size := &unix.Winsize{Row: 40, Col: 120}
	if err := unix.IoctlSetWinsize(int(term.Slave.Fd()), unix.TIOCSWINSZ, size); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "the whole path in 120 columns", func() bool {
		return strings.Contains(term.Text(), report.Models[0])
	})
	a.kill()
	testenv.WaitFor(t, "that it was killed", func() bool { return strings.Contains(term.Text(), "was killed") })
	term.Press("q")
	if err := cmd.Wait(); err != nil {
		t.Errorf("q: %v", err)
	}
	if screen := term.End(); !strings.Contains(screen, "\x1b[?1049l") {
		t.Errorf("the terminal's own screen does not come back: %q", screen)
	}
}

// cpuTime is the processor time that a process has taken.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	p, err := procfs.NewProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := p.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(stat.CPUTime() * float64(time.Second))
}

// TestTopOnce checks what is printed for a pipe, and what is said where there is nothing to show.
func TestTopOnce(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) (stdout, stderr string, status int) {
		var out, err strings.Builder
		cmd := exec.Command(prefetchd, append([]string{"top", "--run-dir", dir}, args...)...)
		cmd.Stdout, cmd.Stderr = &out, &err
		_ = cmd.Run()
		return out.String(), err.String(), cmd.ProcessState.ExitCode()
	}
	if out, stderr, status := run("--once"); status != 0 || stderr != "" ||
		out != "no prefetchd helps a process here\n" {
		t.Errorf("nobody: %d, %q, %q", status, out, stderr)
	}
	if out, stderr, status := run(); status != 2 || out != "" || !strings.Contains(stderr, "use --once") {
		t.Errorf("in a pipe without --once: %d, %q, %q, want an error that names it", status, out, stderr)
	}
	if out, stderr, status := run("--once", "--pid", "1"); status != 1 ||
		!strings.Contains(stderr, "no prefetchd helps") {
		t.Errorf("of a process without help: %d, %q, %q", status, out, stderr)
	}
	a := startActor(t, dir, helpingReport())
	for _, args := range [][]string{{"--once"}, {"--once", "--pid", fmt.Sprint(os.Getpid())}} {
		out, stderr, status := run(args...)
		for _, want := range []string{"11.4 tok/s", "1.25 before help", "600 MiB kept of 764 MiB", "/box memory.max",
			"MiB/s", `a\x1b[31mtarget`} {
			if status != 0 || !strings.Contains(out, want) {
				t.Errorf("%v: %d, %q, want %q in\n%s", args, status, stderr, want, out)
			}
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("%v: the text in a pipe controls a terminal: %q", args, out)
		}
	}
	if os.Geteuid() == 0 {
		private := filepath.Join(dir, "run")
		if err := os.Mkdir(private, 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(prefetchd, "top", "--once", "--run-dir", private)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 || strings.Count(string(out), "\n") != 1 ||
			!strings.Contains(string(out), "try sudo") {
			t.Errorf("without root: status %d, %s, want status 1 and a line that says what to do",
				cmd.ProcessState.ExitCode(), out)
		}
	}
	a.kill()
	if out, _, status := run("--once"); status != 0 || out != "no prefetchd helps a process here\n" {
		t.Errorf("after it was killed: %d, %q", status, out)
	}
}

// TestTopOfTarget checks with a real target that the view tells what is kept where in the file, and that the target is
// left alone while it is paused.
func TestTopOfTarget(t *testing.T) {
	testenv.NeedRoot(t)
	small := model
	small.Layers = 5
	r := newDenseRig(t, "dense of 5 layers", llamatest.Model(t, small), 0.5, 100)
	r.options.Repeat = 1 << 20 // until it is ended
	r.start()
	dir := filepath.Join(t.TempDir(), "run")
	h := r.help("--run-dir", dir)
	r.waitHelping(h)
	target := r.target.Process.Pid
	out, err := exec.Command(prefetchd, "top", "--once", "--run-dir", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wants := []string{"helping (stream)", "kept of", "for help", " file ", "█", " events ", r.options.Model[8:]}
	for _, want := range wants {
		if !strings.Contains(string(out), want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
	if err := monitor.SetPaused(t.Context(), dir, target, true); err != nil {
		t.Fatal(err)
	}
	var last monitor.Report
	defer func() {
		if t.Failed() {
			t.Logf("it said last: %+v\n%s", last, h.stderr.String())
		}
	}()
	isSo := func(so func(monitor.Report) bool) func() bool {
		return func() bool {
			report, err := monitor.Ask(t.Context(), dir, target)
			if err != nil {
				t.Fatal(err)
			}
			last = report
			return so(report)
		}
	}
	testenv.WaitFor(t, "the pause", isSo(func(r monitor.Report) bool {
		return r.Paused && r.Status.Activity == prefetch.Idle && r.Status.Held == 0
	}))
	if err := monitor.SetPaused(t.Context(), dir, target, false); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "help to go on", isSo(func(r monitor.Report) bool {
		return !r.Paused && r.Status.LoopPhase == prefetch.Stream && r.Status.Held > 0
	}))
	if err := r.target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.target.Wait()
	if err := h.Wait(); err != nil {
		t.Errorf("prefetchd: %v, %s", err, h.stderr.String())
	}
}
