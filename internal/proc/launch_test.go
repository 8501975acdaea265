package proc

// This file tests children that are started stopped, and processes that are held by pidfd.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tensorcast/internal/testenv"
)

// launch starts a command stopped. The buffer has its output once it has ended.
func launch(t *testing.T, cmd *exec.Cmd) (*Child, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout = &out
	child, err := Launch(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return child, &out
}

// readStat reads /proc/PID/stat.
func readStat(t *testing.T, pid int) procfs.ProcStat {
	t.Helper()
	proc, err := procfs.NewProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := proc.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return stat
}

func TestLaunchStopsBehindExec(t *testing.T) {
	child, out := launch(t, exec.Command("sh", "-c", "echo ran; exit 3"))
	s := readStat(t, child.PID())
	if s.State != "t" || s.Comm != "sh" || s.UTime != 0 {
		t.Errorf("the child is %q in state %q after %d ticks; want sh, in state t (stopped by its tracer) after 0",
			s.Comm, s.State, s.UTime)
	}
	if s.PGRP != unix.Getpgrp() {
		t.Errorf("the child is in process group %d, want its parent's: %d", s.PGRP, unix.Getpgrp())
	}
	if err := child.Release(); err != nil {
		t.Fatal(err)
	}
	status, err := child.Wait()
	if err != nil || status != 3 || out.String() != "ran\n" {
		t.Errorf("status %d (%v), output %q; want 3, %q", status, err, out, "ran\n")
	}
}

func TestLaunchSignals(t *testing.T) {
	cases := map[string]struct {
		script string
		signal syscall.Signal
		want   int
	}{
		"dies of a signal":          {"kill -QUIT $$", 0, 128 + int(syscall.SIGQUIT)},
		"a signal before it began":  {"exit 0", syscall.SIGTERM, 128 + int(syscall.SIGTERM)},
		"killed while it stands":    {"exit 0", syscall.SIGKILL, 128 + int(syscall.SIGKILL)},
		"stop signals are no trace": {"kill -TRAP $$", 0, 128 + int(syscall.SIGTRAP)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			child, _ := launch(t, exec.Command("sh", "-c", tc.script))
			if tc.signal != 0 {
				if err := child.Signal(tc.signal); err != nil {
					t.Fatal(err)
				}
			}
			if err := child.Release(); err != nil {
				t.Fatal(err)
			}
			if status, err := child.Wait(); err != nil || status != tc.want {
				t.Errorf("status %d (%v), want %d", status, err, tc.want)
			}
		})
	}
}

// A child that is to be stopped at each execve may be killed before it runs. Its status is reported
// like any other.
func TestReleaseHeldKilled(t *testing.T) {
	child, _ := launch(t, exec.Command("sh", "-c", "exit 0"))
	if err := child.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	inspect := func(pid int) bool {
		t.Errorf("process %d was stopped at an execve, want none", pid)
		return true
	}
	if err := child.ReleaseHeld(true, inspect); err != nil {
		t.Error(err)
	}
	if status, err := child.Wait(); err != nil || status != 128+int(syscall.SIGKILL) {
		t.Errorf("status %d (%v), want %d", status, err, 128+int(syscall.SIGKILL))
	}
}

// The child is stopped at each execve while inspect runs. Once inspect returns true, it is not
// stopped any more.
func TestReleaseHeld(t *testing.T) {
	const script = "exec sh -c 'echo one; exec sh -c \"echo two; exec sh -c \\\"exit 4\\\"\"'"
	child, out := launch(t, exec.Command("sh", "-c", script))
	stops := 0
	err := child.ReleaseHeld(false, func(pid int) bool {
		stops++
		if s := readStat(t, pid); s.State != "t" || pid != child.PID() {
			t.Errorf("process %d is in state %q, want process %d in state t", pid, s.State, child.PID())
		}
		return stops == 2
	})
	if err != nil {
		t.Fatal(err)
	}
	if status, err := child.Wait(); err != nil || status != 4 || out.String() != "one\ntwo\n" || stops != 2 {
		t.Errorf("status %d (%v), output %q, %d stops; want 4, %q, 2", status, err, out, stops, "one\ntwo\n")
	}
}

func TestLaunchFails(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	if err := os.WriteFile(data, []byte("\x00no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("\x00no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		filepath.Join(dir, "missing"): unix.ENOENT, data: unix.EACCES, dir: unix.EACCES, broken: unix.ENOEXEC,
	} {
		_, err := Launch(&exec.Cmd{Path: path, Args: []string{path}})
		if !errors.Is(err, want) || strings.Count(err.Error(), path) != 1 {
			t.Errorf("%s: error %v, want %v and the path once", path, err, want)
		}
	}
}

// Under ptrace the kernel gives a set-user-ID program no privileges, unless root is the tracer.
func TestLaunchSetUserID(t *testing.T) {
	testenv.NeedRoot(t)
	dir := testenv.PublicDir(t)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Flags&unix.ST_NOSUID != 0 {
		t.Skipf("%s is mounted nosuid", dir)
	}
	id, err := exec.LookPath("id")
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	path := filepath.Join(dir, "id")
	to, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(to.Chmod(0o755|os.ModeSetuid), to.Close()); err != nil {
		t.Fatal(err)
	}
	users := map[string]*syscall.Credential{"as nobody": {Uid: 65534, Gid: 65534}, "as root": nil}
	for name, credential := range users {
		t.Run(name, func(t *testing.T) {
			child, out := launch(t, &exec.Cmd{
				Path: path, Args: []string{"id", "-u"},
				SysProcAttr: &syscall.SysProcAttr{Credential: credential},
			})
			if err := child.Release(); err != nil {
				t.Fatal(err)
			}
			if status, err := child.Wait(); err != nil || status != 0 || out.String() != "0\n" {
				t.Errorf("status %d (%v), user id %q; want 0, %q", status, err, out, "0\n")
			}
		})
	}
}

func TestProcess(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	p, err := Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if ended, err := p.Ended(); ended || err != nil {
		t.Errorf("Ended() of a running process = %v, %v; want false", ended, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Wait(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with a canceled context = %v, want %v", err, context.Canceled)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if ended, err := p.Ended(); !ended || err != nil { // another process may have its id now
		t.Errorf("Ended() of a process that has ended = %v, %v; want true", ended, err)
	}
	if _, err := Open(cmd.Process.Pid); !errors.Is(err, ErrNoProcess) {
		t.Errorf("Open of a process that has ended: error %v, want %v", err, ErrNoProcess)
	}

	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range threads {
		var tid int
		for _, c := range filepath.Base(path) {
			tid = 10*tid + int(c-'0')
		}
		if tid != os.Getpid() {
			if _, err := Open(tid); !errors.Is(err, ErrNoProcess) || !strings.Contains(err.Error(), "thread") {
				t.Errorf("Open of a thread: error %v, want %v that says so", err, ErrNoProcess)
			}
			return
		}
	}
}

func TestLaunch(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "ran")
	child, err := Launch(exec.Command("sh", "-c", "touch "+mark+"; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if _, err := os.Stat(mark); err == nil {
		t.Error("the command ran before Release")
	}
	if err := child.Release(); err != nil {
		t.Fatal(err)
	}
	if status, err := child.Wait(); status != 3 || err != nil {
		t.Errorf("status %d, %v; want 3", status, err)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Error("the command did not run")
	}
	if _, err := Launch(exec.Command("/no/such/program")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such program: error %v, want %v", err, os.ErrNotExist)
	}
}
