package main

// This file tests --exec, with which prefetchd starts its target.

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"

	"tensorcast/experiments/llama"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch"
)

// execResult is the result of prefetchd --exec.
type execResult struct {
	status         int
	stdout, stderr string
}

// runExec runs prefetchd --exec with flags, a command, and additional environment variables.
func runExec(t *testing.T, flags, command, env []string) execResult {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), prefetchd,
		append(append([]string{"--exec"}, flags...), append([]string{"--"}, command...)...)...)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	return execResult{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// exec starts prefetchd --exec with the rig's target, both in the rig's cgroup.
func (r *rig) exec(flags ...string) *helper {
	r.t.Helper()
	script := `for f in $GROUPS_FILES; do echo $$ > $f; done; exec "$0" "$@"`
	args := append([]string{prefetchd, "--exec", "--json"}, append(flags, "--")...)
	h := &helper{Cmd: exec.Command("sh",
		append([]string{"-c", script}, append(args, r.in.Command(r.t.Context(), r.options).Args...)...)...)}
	h.Env = append(os.Environ(), "GROUPS_FILES="+strings.Join(r.group.ProcsFiles(), " "))
	h.Cmd.Stdout, h.Cmd.Stderr = &r.stdout, &h.stderr
	if err := h.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = h.Process.Kill(); _ = h.Wait() })
	return h
}

// execSummary waits for prefetchd to end with a status, and returns the summary that it wrote to
// standard error.
func (r *rig) execSummary(h *helper, status int) (s prefetch.Summary) {
	r.t.Helper()
	_ = h.Wait()
	stderr := h.stderr.String()
	begin := strings.Index(stderr, "{\n")
	if got := h.ProcessState.ExitCode(); got != status || begin < 0 {
		r.t.Fatalf("prefetchd's status is %d, want %d with a summary: %s", got, status, stderr)
	}
	if err := json.NewDecoder(strings.NewReader(stderr[begin:])).Decode(&s); err != nil { // its device may end after it
		r.t.Fatalf("%v: %s", err, stderr)
	}
	return s
}

// TestExec checks a target that prefetchd starts. It generates the same text as without help, is
// helped from its load on by a guess that is right, and is not killed for memory.
func TestExec(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0.6, 36)
	h := r.exec("--always", "-v")
	s := r.execSummary(h, 0)
	log := h.stderr.String()
	if !s.Guessed || !hasLearnedOnce(s, log) || s.Stored || s.Tokens < r.options.Tokens*9/10 ||
		s.Pinned < r.size/4 || s.Streamed == 0 {
		t.Errorf("summary %+v\n%s", s, log)
	}
	kills, err := r.group.OOMKills()
	if err != nil || kills != 0 {
		t.Errorf("%d processes were killed for memory, %v", kills, err)
	}
	got, err := llama.ParseResult(r.stdout.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if plain := plainRun(r); got.Text != plain.Text {
		t.Errorf("the text is %q, want %q", got.Text, plain.Text)
	}
}

// TestExecFits checks models that fit in memory. If the model just fits, prefetchd helps with the
// load: it reads the head of the file first and the rest by a guess, unless the target is faster.
// Then it sleeps without probes until the target ends. If there is much more room, it sets no
// probes, and the whole file is read ahead of the target. Signals reach the target in both cases.
func TestExecFits(t *testing.T) {
	for name, tc := range map[string]struct {
		share  float64
		probes bool
	}{"just": {1.2, true}, "easily": {8, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const tries = 3 // a target is faster now and then, on a busy machine
			for try := 1; ; try++ {
				s, read, size := execFitting(t, tc.share, tc.probes)
				if s.Guessed || read <= size/2 {
					break
				}
				if try == tries {
					t.Fatalf("there was no guess, and the target read %d of %d bytes itself", read, size)
				}
			}
		})
	}
}

// execFitting runs a target that fits in memory, until the model was read. read is how many of the model's bytes the
// target has read itself.
func execFitting(t *testing.T, share float64, wantProbes bool) (s prefetch.Summary, read, size int64) {
	t.Helper()
	r := newRig(t, share, 100)
	r.options.Repeat = 1000 // it runs until it gets a signal
	h := r.exec("-v")
	testenv.WaitFor(t, "prefetchd to be idle", func() bool {
		return strings.Contains(h.stderr.String(), "prefetchd: idle: everything fits")
	})
	testenv.WaitFor(t, "the probes to be removed", func() bool { return mapMemory(h.Process.Pid) == 0 })
	testenv.WaitFor(t, "the model to be read", func() bool { return r.resident() > r.size*9/10 })
	read = r.readByOthers(h)
	h.signal(t, syscall.SIGTERM)
	s = r.execSummary(h, 128+int(syscall.SIGTERM))
	if s.Pinned != 0 || !strings.Contains(s.Idle, "fits") {
		t.Errorf("summary %+v", s)
	}
	if probes := strings.Contains(h.stderr.String(), "msg=attached"); probes != wantProbes {
		t.Errorf("probes were set: %t, want %t\n%s", probes, wantProbes, h.stderr.String())
	}
	return s, read, r.size
}

// resident returns how many bytes of the model are in the page cache.
func (r *rig) resident() int64 {
	r.t.Helper()
	f, err := os.Open(r.options.Model)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	n, err := pagecache.Resident(f, 0, r.size)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// readByOthers returns how many bytes the cgroup's processes have read from the disk, without those
// of prefetchd.
func (r *rig) readByOthers(h *helper) (read int64) {
	r.t.Helper()
	pids, err := os.ReadFile(r.group.ProcsFiles()[0])
	if err != nil {
		r.t.Fatal(err)
	}
	others := 0
	for _, text := range strings.Fields(string(pids)) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			r.t.Fatal(err)
		}
		if pid == h.Process.Pid {
			continue
		}
		p, err := procfs.NewProc(pid)
		if err != nil {
			r.t.Fatal(err)
		}
		io, err := p.IO()
		if err != nil {
			r.t.Fatal(err)
		}
		read += int64(io.ReadBytes)
		others++
	}
	if others == 0 {
		r.t.Fatal("the target is not in its cgroup")
	}
	return read
}

// startWaiting starts the target, which does nothing until begin is called.
func (r *rig) startWaiting() (begin func()) {
	r.t.Helper()
	script := `read go; for f in $GROUPS_FILES; do echo $$ > $f; done; exec "$0" "$@"`
	r.target = exec.Command("sh", append([]string{"-c", script}, r.command()...)...)
	r.target.Env = append(os.Environ(), "GROUPS_FILES="+strings.Join(r.group.ProcsFiles(), " "))
	r.target.Stdout, r.target.Stderr = &r.stdout, os.Stderr
	in, err := r.target.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.target.Start(); err != nil {
		r.t.Fatal(err)
	}
	target := r.target
	r.t.Cleanup(func() { _ = target.Process.Kill(); _ = target.Wait() })
	return func() {
		r.t.Helper()
		if _, err := in.Write([]byte("\n")); err != nil {
			r.t.Fatal(err)
		}
	}
}

// TestAttachBeforeLoad checks that a prefetchd that waits for its target to load ggml also helps with
// the load of the model. On a busy machine the target may have mapped its model first. Probes can then be set only when
// that is loaded, and prefetchd helps from the first decode that it sees all of.
func TestAttachBeforeLoad(t *testing.T) {
	t.Parallel()
	const tries = 3
	for range tries {
		r := newRig(t, 0.6, 36)
		begin := r.startWaiting()
		h := startHelper(t, r.target.Process.Pid, "--wait", "--always", "-v")
		h.waitSettled(t)
		begin()
		r.finish()
		s := h.summary(t)
		if !hasLearnedOnce(s, h.stderr.String()) || s.Streamed == 0 {
			t.Fatalf("summary %+v\n%s", s, h.stderr.String())
		}
		if s.Guessed {
			return
		}
		t.Log("the target had loaded its model before prefetchd was ready")
	}
	t.Errorf("prefetchd did not help with the load of the model in %d tries", tries)
}

// TestExecStatus checks that prefetchd ends with the command's exit status, that the command's output
// is unchanged, and that signals reach the command.
func TestExecStatus(t *testing.T) {
	testenv.NeedRoot(t)
	if r := runExec(t, nil, []string{"sh", "-c", "echo out; exit 7"}, nil); r.status != 7 ||
		r.stdout != "out\n" ||
		!strings.Contains(r.stderr, "ended with exit status 7 before anything was seen") ||
		strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("%+v", r)
	}
	if r := runExec(t, nil, []string{"sh", "-c", "kill -9 $$"}, nil); r.status != 128+9 {
		t.Errorf("%+v", r)
	}
	if r := runExec(t, nil, []string{"true"}, nil); r.status != 0 ||
		!strings.Contains(r.stderr, "no ggml") || strings.Contains(r.stderr, "--wait") {
		t.Errorf("%+v", r)
	}
	for program, status := range map[string]int{"/no/such/program": 127, "no-such-program": 127, os.DevNull: 126} {
		if r := runExec(t, nil, []string{program}, nil); r.status != status ||
			!strings.Contains(r.stderr, program) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: %+v", program, r)
		}
	}
	started := filepath.Join(t.TempDir(), "started")
	cmd := exec.CommandContext(t.Context(), prefetchd, "--exec", "--", "sh", "-c",
		`trap 'exit 5' TERM; : > "$0"; while :; do sleep 0.05; done`, started)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "the command to begin", func() bool { _, err := os.Stat(started); return err == nil })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 5 {
		t.Errorf("after SIGTERM the status is %d, want 5", status)
	}
}

// TestExecUser checks that under sudo the command runs as the user who typed it.
func TestExecUser(t *testing.T) {
	testenv.NeedRoot(t)
	env := []string{"SUDO_UID=65534", "SUDO_GID=65534"}
	command := []string{"sh", "-c", "id -u; exit 3"}
	if r := runExec(t, nil, command, env); r.status != 3 || r.stdout != "65534\n" {
		t.Errorf("%+v", r)
	}
	if r := runExec(t, []string{"--as-root"}, command, env); r.status != 3 || r.stdout != "0\n" {
		t.Errorf("%+v", r)
	}
}

// TestExecKilled checks that the command goes on if prefetchd is killed.
func TestExecKilled(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	started, ended := filepath.Join(dir, "started"), filepath.Join(dir, "ended")
	cmd := exec.CommandContext(t.Context(), prefetchd, "--exec", "--", "sh", "-c",
		`p=$PPID; : > "$0"; while kill -0 $p 2> /dev/null; do sleep 0.05; done; : > "$1"`, started, ended)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "the command to begin", func() bool { _, err := os.Stat(started); return err == nil })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	testenv.WaitFor(t, "the command to end by itself", func() bool { _, err := os.Stat(ended); return err == nil })
}

// TestExecUsage checks that wrong usage is reported in one line.
func TestExecUsage(t *testing.T) {
	for line, want := range map[string]string{
		"--exec":                   "which command",
		"--exec --pid 1 -- true":   "not both",
		"--exec --wait -- true":    "--wait is for --pid",
		"--as-root --pid 1":        "--as-root is for --exec",
		"--pid 1 true":             "unexpected argument",
		"--pid 1 -- --exec":        "unexpected argument",
		"--exec --strategy x true": "strategy",
		"--pid 1 --readahead x":    "readahead",
		"guardian x":               "unexpected argument",
		"--exec --dry-run true":    "--dry-run is for --pid",
		"--exec --plan - true":     "name a file after --plan",
		"--pid 1 --fabric=fast":    "--fabric is for --exec",
		"--exec --fabric=x true":   "fabric",
		"--exec --error 20dB true": "--error is for --fabric",
	} {
		cmd := exec.CommandContext(t.Context(), prefetchd, strings.Fields(line)...)
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), want) ||
			strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s: status %d, %q, want status 2 and one line with %q",
				line, cmd.ProcessState.ExitCode(), out, want)
		}
	}
}
