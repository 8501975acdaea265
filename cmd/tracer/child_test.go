package main

// The tests of this file are about the command that tracer starts: as which user it runs, how it
// begins and ends.

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// nobody is an account that every Linux has.
const nobody = 65534

// nobodysDir creates a directory that belongs to nobody and that everybody can reach.
func nobodysDir(t *testing.T) string {
	t.Helper()
	dir := testenv.PublicDir(t)
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	return dir
}

// publicModel is a model that every user can read.
func publicModel(t *testing.T) string {
	t.Helper()
	path := filepath.Join(testenv.PublicDir(t), "model.gguf")
	data, err := os.ReadFile(llamatest.Model(t, denseModel))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// sudo returns a command that starts tracer as sudo would for the user nobody. It starts a process
// named sudo with the user's environment. That process replaces variables and starts tracer.
func sudo(t *testing.T, userPath string, args ...string) *exec.Cmd {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "sudo")
	if err := os.Symlink(sh, link); err != nil {
		t.Fatal(err)
	}
	const script = `unset LD_LIBRARY_PATH
export SUDO_UID=65534 SUDO_GID=65534 SUDO_USER=nobody SUDO_COMMAND=tracer PATH=/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root USER=root LOGNAME=root SHELL=/bin/sh MAIL=/var/mail/root
"$@"
exit $?`
	cmd := exec.Command(link, append([]string{"-c", script, "sudo", tracerBinary}, args...)...)
	cmd.Env = []string{"PATH=" + userPath, "HOME=/elsewhere", "LD_LIBRARY_PATH=/user/lib", "TERM=dumb"}
	return cmd
}

func ownership(t *testing.T, path string) (uid, gid uint32) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return st.Uid, st.Gid
}

func TestCommandRunsAsTheInvokingUser(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	in := llamatest.Public(t, llamatest.ForTest(t))
	// A script starts it, so its libraries are found only while it runs. That is why it repeats often.
	o := llama.Options{Model: publicModel(t), Prompt: "me", Tokens: 4, Threads: 1, NoRepack: true, Repeat: 300}
	bin := testenv.PublicDir(t)
	script := "#!/bin/sh\nid -u; id -G; env\necho end\nexec \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "own-llama"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	userPath := bin + ":/usr/bin:/bin"
	home := nobodysDir(t)
	run := func(t *testing.T, flags ...string) (string, map[string]string) {
		t.Helper()
		args := append(append(flags, "--", "own-llama"), in.Command(t.Context(), o).Args...)
		cmd := sudo(t, userPath, args...)
		cmd.Dir = home
		r := finish(t, cmd)
		if r.status != 0 {
			t.Fatalf("tracer ended with %d:\n%s", r.status, r.stderr)
		}
		report, _, _ := strings.Cut(r.stdout, "end\n")
		ids, rest := "", map[string]string{}
		for line := range strings.Lines(report) {
			name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			if ok {
				rest[name] = value
			} else {
				ids += line
			}
		}
		return ids, rest
	}

	ids, env := run(t)
	if want := "65534\n65534\n"; ids != want {
		t.Errorf("user and groups are %q, want %q", ids, want)
	}
	for name, want := range map[string]string{
		"PATH": userPath, "HOME": "/nonexistent", "USER": "nobody", "LOGNAME": "nobody",
		"LD_LIBRARY_PATH": "/user/lib", "TERM": "dumb",
	} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	if !strings.HasSuffix(env["SHELL"], "nologin") || env["MAIL"] != "" || env["SUDO_UID"] != "" {
		t.Errorf("root's or sudo's variables are left: %q", env)
	}
	files := 0
	err := filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		files++
		if uid, gid := ownership(t, path); uid != nobody || gid != nobody {
			t.Errorf("%s belongs to %d:%d, want %d:%d", path, uid, gid, nobody, nobody)
		}
		return nil
	})
	if err != nil || files < 5 {
		t.Errorf("%d files were written (%v), want at least 5", files, err)
	}
	if c, rows := readCapture(t, filepath.Join(home, tables.DefaultDir)); !c.Meta.Complete || len(rows) == 0 {
		t.Errorf("the capture has %d rows, want a complete one with rows: %+v", len(rows), c.Meta)
	}

	csv := filepath.Join(home, "reads.csv")
	run(t, "--csv", "-o", csv)
	if uid, gid := ownership(t, csv); uid != nobody || gid != nobody {
		t.Errorf("%s belongs to %d:%d, want %d:%d", csv, uid, gid, nobody, nobody)
	}
	for _, path := range []string{csv, filepath.Join(home, tables.DefaultDir)} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}

	// As root the command would be searched in root's PATH, so it is given with its path.
	args := append([]string{"--as-root", "--", filepath.Join(bin, "own-llama")}, in.Command(t.Context(), o).Args...)
	cmd := sudo(t, userPath, args...)
	cmd.Dir = home
	r := finish(t, cmd)
	if r.status != 0 || !strings.HasPrefix(r.stdout, "0\n") {
		t.Errorf("--as-root: status %d, %q, want 0 and user id 0 first\n%s", r.status, r.stdout, r.stderr)
	}
	if uid, _ := ownership(t, filepath.Join(home, tables.DefaultDir, trace.MetaFile)); uid != nobody {
		t.Errorf("--as-root: the capture belongs to %d, want %d", uid, nobody)
	}
}

// tracer writes only where the invoking user could write, also through links.
func TestOutputKeepsToTheUser(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	in := llamatest.Public(t, llamatest.ForTest(t))
	o := llama.Options{Model: publicModel(t), Prompt: "me", Tokens: 2, Threads: 1, NoRepack: true}
	roots := testenv.PublicDir(t)
	precious := filepath.Join(testenv.PublicDir(t), "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		plant  func(t *testing.T, dir string)
		flags  func(dir string) []string
		status int
	}{
		"a directory of root's": {
			flags:  func(string) []string { return []string{"-o", filepath.Join(roots, "capture")} },
			status: 1,
		},
		"a link to a directory": {
			plant:  func(t *testing.T, dir string) { symlink(t, roots, filepath.Join(dir, "capture")) },
			flags:  func(dir string) []string { return []string{"-o", filepath.Join(dir, "capture")} },
			status: 1,
		},
		"links in the place of tables": { // they are replaced like the files of an earlier capture
			plant: func(t *testing.T, dir string) {
				for _, name := range []string{trace.AccessFile, trace.MetaFile, trace.MetaFile + ".tmp"} {
					symlink(t, precious, filepath.Join(dir, name))
				}
			},
			flags:  func(dir string) []string { return []string{"-o", dir} },
			status: 0,
		},
		"CSV through a link": {
			plant:  func(t *testing.T, dir string) { symlink(t, precious, filepath.Join(dir, "reads.csv")) },
			flags:  func(dir string) []string { return []string{"--csv", "-o", filepath.Join(dir, "reads.csv")} },
			status: 1,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := nobodysDir(t)
			if tc.plant != nil {
				tc.plant(t, dir)
			}
			args := append(append(tc.flags(dir), "--"), in.Command(t.Context(), o).Args...)
			r := finish(t, sudo(t, os.Getenv("PATH"), args...))
			if r.status != tc.status {
				t.Errorf("status %d, want %d\n%s", r.status, tc.status, r.stderr)
			}
			if tc.status == 0 {
				if c, rows := readCapture(t, dir); !c.Meta.Complete || len(rows) == 0 {
					t.Errorf("the capture has %d rows, want a complete one with rows: %+v", len(rows), c.Meta)
				}
			} else if line := oneError(t, r); !strings.Contains(line, "permission denied") {
				t.Errorf("the error is %q, want permission denied", line)
			}
			if data, err := os.ReadFile(precious); err != nil || string(data) != "precious" {
				t.Errorf("root's file has %q (%v), want precious", data, err)
			}
			if entries, err := os.ReadDir(roots); err != nil || len(entries) != 0 {
				t.Errorf("root's directory has %v (%v), want nothing", entries, err)
			}
		})
	}
}

// symlink creates a link that belongs to nobody.
func symlink(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(path, nobody, nobody); err != nil {
		t.Fatal(err)
	}
}

// A command that is no llama.cpp runs to its end. If it fails, tracer's status is its status.
func TestCommandThatIsNoLlama(t *testing.T) {
	testenv.NeedRoot(t)
	cases := map[string]struct {
		script string
		status int
		stdout string
	}{
		"succeeds":          {"echo out", 1, "out\n"},
		"fails":             {"echo out; exit 42", 42, "out\n"},
		"is killed":         {"kill -KILL $$", 128 + int(syscall.SIGKILL), ""},
		"reads its input":   {"cat; exit 3", 3, "input"},
		"has our directory": {"pwd; exit 3", 3, "/\n"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(tracerBinary,
				"--no-probe", "-o", filepath.Join(t.TempDir(), "capture"), "--", "sh", "-c", tc.script)
			cmd.Stdin = strings.NewReader("input")
			cmd.Dir = "/"
			r := finish(t, cmd)
			if r.status != tc.status || r.stdout != tc.stdout {
				t.Errorf("status %d, output %q; want %d, %q", r.status, r.stdout, tc.status, tc.stdout)
			}
			if line := oneError(t, r); !strings.Contains(line, "found no ggml") {
				t.Errorf("the error is %q, want found no ggml", line)
			}
		})
	}
}

// Each signal to tracer reaches the command once.
func TestSignalsArePassedOn(t *testing.T) {
	testenv.NeedRoot(t)
	log := filepath.Join(t.TempDir(), "log")
	const script = `for s in INT QUIT TERM HUP USR1 USR2; do trap "echo $s >> $0" $s; done
trap "echo end >> $0; exit 7" ALRM
echo $$ > $0
while :; do sleep 0.05; done`
	cmd := exec.Command(tracerBinary,
		"--no-probe", "-o", filepath.Join(t.TempDir(), "capture"), "--", "sh", "-c", script, log)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal sends signals of its own
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // in case the test fails
	readLog := func() []string {
		data, err := os.ReadFile(log)
		if err != nil {
			return nil
		}
		return strings.Fields(string(data))
	}
	testenv.WaitFor(t, "the command to begin", func() bool { return len(readLog()) == 1 })
	want := []string{readLog()[0]}
	for _, s := range []syscall.Signal{
		syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2,
	} {
		if signal.Ignored(s) {
			continue // under nohup a shell cannot trap SIGHUP
		}
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		want = append(want, strings.TrimPrefix(unix.SignalName(s), "SIG"))
		testenv.WaitFor(t, "the command to get "+s.String(), func() bool { return len(readLog()) == len(want) })
	}
	pid, err := strconv.Atoi(want[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGALRM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	status, got := cmd.ProcessState.ExitCode(), fmt.Sprint(readLog())
	if want := fmt.Sprint(append(want, "end")); got != want || status != 7 {
		t.Errorf("status %d, the command got %s; want 7, %s", status, got, want)
	}
}

// children lists the processes that a process has started.
func children(pid int) []int {
	var found []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(data)) {
			if n, err := strconv.Atoi(f); err == nil {
				found = append(found, n)
			}
		}
	}
	return found
}

// If the command is killed early, tracer ends with its status, or with one line that says why.
func TestCommandKilledWhileAttaching(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: "early", Tokens: 100, Threads: 1, NoRepack: true,
		Repeat: 1 << 20,
	}
	for i := range 6 {
		flags := []string{"--no-probe", "-o", filepath.Join(t.TempDir(), "capture"), "--"}
		cmd := exec.Command(tracerBinary, append(flags, in.Command(t.Context(), o).Args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var pid int
		testenv.WaitFor(t, "the command to start", func() bool {
			for _, pid = range children(cmd.Process.Pid) {
				// Go's runtime once starts a child of its own, to try pidfds.
				exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
				if err == nil && filepath.Base(exe) == "llamarun" {
					return true
				}
			}
			return false
		})
		time.Sleep(time.Duration(i) * 25 * time.Millisecond) // somewhere between execve and the first decode
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		r := result{stderr: stderr.String(), status: cmd.ProcessState.ExitCode()}
		hasSummary := strings.Contains(r.stderr, "decodes")
		switch errs := errorLines(r); {
		case r.status == 128+int(syscall.SIGKILL) && (len(errs) == 1 || len(errs) == 0 && hasSummary):
		case r.status == cli.Failure && len(errs) == 1:
		default:
			t.Errorf("round %d: status %d, want the command's, or %d with one line that says why\n%s",
				i, r.status, cli.Failure, r.stderr)
		}
	}
}

// If a running target ends early, tracer ends with 0, or with one line that says why.
func TestTargetEndsWhileAttaching(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: "early", Tokens: 100, Threads: 1, NoRepack: true,
		Repeat: 1 << 20,
	}
	for i := range 6 {
		target := in.Command(t.Context(), o)
		if err := target.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.WaitMapped(t, target.Process.Pid, o.Model)
		cmd := exec.Command(tracerBinary,
			"-o", filepath.Join(t.TempDir(), "capture"), "--pid", fmt.Sprint(target.Process.Pid))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 25 * time.Millisecond) // somewhere between tracer's start and its first events
		if err := target.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = target.Wait()
		_ = cmd.Wait()
		r := result{stderr: stderr.String(), status: cmd.ProcessState.ExitCode()}
		errs := slices.DeleteFunc(errorLines(r), func(line string) bool { // it was begun in the middle of a token
			return strings.Contains(line, "ops came before the first whole decode")
		})
		switch {
		case r.status == 0 && len(errs) == 0 && strings.Contains(r.stderr, "decodes"): // with a summary
		case r.status == cli.Failure && len(errs) == 1:
		default:
			t.Errorf("round %d: status %d, want 0 with a summary, or %d with one line that says why\n%s",
				i, r.status, cli.Failure, r.stderr)
		}
	}
}
