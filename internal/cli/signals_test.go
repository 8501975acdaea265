package cli

// This file sends signals to real processes that a shell has started.

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tensorcast/internal/outfile"
)

// waiting returns a command that writes a file until its context ends. With --deaf it ignores the
// context.
func waiting() *cobra.Command {
	var deaf bool
	cmd := &cobra.Command{Use: "wait FILE", Short: "Write a file until told to end", Args: cobra.ExactArgs(1)}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return outfile.Write(args[0], func(w io.Writer) error {
			for i := 0; deaf || cmd.Context().Err() == nil; i++ {
				if _, err := fmt.Fprintln(w, i); err != nil {
					return err
				}
				if i == 0 {
					fmt.Fprintln(cmd.OutOrStdout(), "pid", os.Getpid())
				}
				time.Sleep(time.Millisecond)
			}
			return cmd.Context().Err()
		})
	}
	cmd.Flags().BoolVar(&deaf, "deaf", false, "do not listen")
	return cmd
}

// started is a command that a shell has started.
type started struct {
	shell  *exec.Cmd
	pid    int
	out    io.Reader
	stderr bytes.Buffer
}

// start runs a shell script, in which "$0" is the command, and waits until the command writes its file.
func start(t *testing.T, script string, args ...string) *started {
	t.Helper()
	args = append([]string{"-c", script, os.Args[0]}, args...)
	s := &started{shell: exec.CommandContext(t.Context(), "/bin/sh", args...)}
	s.shell.Env = append(os.Environ(), asCommand+"=1")
	s.shell.Stderr = &s.stderr
	out, err := s.shell.StdoutPipe()
	if err == nil {
		err = s.shell.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	line, _ := r.ReadString('\n')
	if s.pid, err = strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "pid "))); err != nil {
		t.Fatalf("%v: %q", err, s.stderr.String())
	}
	s.out = r
	t.Cleanup(func() { _ = unix.Kill(s.pid, unix.SIGKILL) }) // it has ended, unless the test failed
	return s
}

func (s *started) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := unix.Kill(s.pid, signal); err != nil {
		t.Fatal(err)
	}
}

// wait waits for the end of the shell, and returns its exit code.
func (s *started) wait(t *testing.T) int {
	t.Helper()
	_, _ = io.Copy(io.Discard, s.out)
	err := s.shell.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return s.shell.ProcessState.ExitCode()
}

func TestSignals(t *testing.T) {
	for name, tt := range map[string]struct {
		script string
		signal syscall.Signal
	}{
		"SIGINT":                     {`exec "$0" wait "$1"`, unix.SIGINT},
		"SIGTERM":                    {`exec "$0" wait "$1"`, unix.SIGTERM},
		"SIGHUP":                     {`exec "$0" wait "$1"`, unix.SIGHUP},
		"SIGINT to a background job": {`"$0" wait "$1" & wait $!`, unix.SIGINT},
		"SIGTERM under nohup":        {`nohup "$0" wait "$1" 2>&1 | cat; exit 1`, unix.SIGTERM},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tt.signal == unix.SIGHUP && signal.Ignored(unix.SIGHUP) {
				t.Skip("SIGHUP is ignored: these tests run under nohup")
			}
			dir := t.TempDir()
			old := filepath.Join(dir, "old")
			if err := os.WriteFile(old, []byte("old"), 0o644); err != nil {
				t.Fatal(err)
			}
			s := start(t, tt.script, old)
			if name == "SIGINT to a background job" && !isInMask(t, s.pid, unix.SIGINT, "SigCgt") {
				t.Error("SIGINT is not handled")
			}
			s.signal(t, tt.signal)
			code := s.wait(t)
			want := "demo wait: interrupted by " + unix.SignalName(tt.signal) + "\n"
			if code != 1 || !strings.Contains(tt.script, "nohup") && s.stderr.String() != want {
				t.Errorf("exit %d, %q; want 1, %q", code, s.stderr.String(), want)
			}
			entries, err := os.ReadDir(dir)
			if b, _ := os.ReadFile(old); err != nil || len(entries) != 1 || string(b) != "old" {
				t.Errorf("%d files (%v), the old one has %q; want 1, old", len(entries), err, b)
			}
		})
	}
}

// A script's background job starts with SIGINT ignored. Without that, the test above would prove
// nothing.
func TestShellIgnoresSIGINT(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", `cat /proc/self/status & wait $!`).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !maskHas(string(out), unix.SIGINT, "SigIgn") {
		t.Skip("this shell does not ignore SIGINT in background jobs")
	}
}

// Under nohup, SIGHUP stays ignored, and the command goes on.
func TestNohup(t *testing.T) {
	t.Parallel()
	s := start(t, `exec nohup "$0" wait "$1"`, filepath.Join(t.TempDir(), "file"))
	if !isInMask(t, s.pid, unix.SIGHUP, "SigIgn") {
		t.Fatal("SIGHUP is not ignored")
	}
	s.signal(t, unix.SIGHUP)
	time.Sleep(2 * oneRequest)
	s.signal(t, unix.SIGINT)
	if code := s.wait(t); code != 1 || !strings.Contains(s.stderr.String(), "interrupted by SIGINT") {
		t.Errorf("exit %d, %q; want 1, interrupted by SIGINT", code, s.stderr.String())
	}
}

func TestSecondSignal(t *testing.T) {
	t.Parallel()
	for _, background := range []string{`exec "$0" wait --deaf "$1"`, `"$0" wait --deaf "$1" & wait $!`} {
		s := start(t, background, filepath.Join(t.TempDir(), "file"))
		// timeout(1) sends two signals at once, which count as one.
		s.signal(t, unix.SIGINT)
		s.signal(t, unix.SIGINT)
		time.Sleep(2 * oneRequest)
		s.signal(t, 0)
		s.signal(t, unix.SIGINT)
		if code := s.wait(t); code != 128+int(unix.SIGINT) {
			t.Errorf("exit %d, %q; want %d", code, s.stderr.String(), 128+int(unix.SIGINT))
		}
	}
}

// With FirstSignal, only the first signal has an effect.
func TestFirstSignal(t *testing.T) {
	t.Parallel()
	s := start(t, asCommand+`=first exec "$0" wait --deaf "$1"`, filepath.Join(t.TempDir(), "file"))
	for range 2 {
		s.signal(t, unix.SIGINT)
		time.Sleep(2 * oneRequest)
	}
	s.signal(t, unix.SIGKILL)
	if s.wait(t); s.shell.ProcessState.String() != "signal: killed" {
		t.Errorf("%v, %q; want signal: killed", s.shell.ProcessState, s.stderr.String())
	}
	const want = "demo wait: interrupted by SIGTERM\n"
	other := start(t, asCommand+`=first exec "$0" wait "$1"`, filepath.Join(t.TempDir(), "file"))
	other.signal(t, unix.SIGTERM)
	if code := other.wait(t); code != 1 || other.stderr.String() != want {
		t.Errorf("exit %d, %q; want 1, %q", code, other.stderr.String(), want)
	}
}

// timeout(1) signals the command, and then its group. That counts as one signal.
func TestTimeout(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("timeout"); err != nil {
		t.Skip(err)
	}
	s := start(t, `exec timeout 1 "$0" wait "$1"`, filepath.Join(t.TempDir(), "file"))
	const want = "demo wait: interrupted by SIGTERM\n"
	if code := s.wait(t); code != 124 || s.stderr.String() != want {
		t.Errorf("exit %d, %q; want 124, %q", code, s.stderr.String(), want)
	}
}

// isInMask reports whether a set of signals in /proc/PID/status has a signal.
func isInMask(t *testing.T, pid int, signal syscall.Signal, set string) bool {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	return maskHas(string(b), signal, set)
}

// maskHas is isInMask for the text of the file.
func maskHas(status string, signal syscall.Signal, set string) bool {
	_, rest, _ := strings.Cut(status, set+":")
	mask, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
	return n>>(signal-1)&1 == 1
}

// Whoever takes SIGHUP is told each one, and the context goes on until another signal comes. A context that Signals has
// not made has none.
func TestTakeHangups(t *testing.T) {
	if signal.Ignored(unix.SIGHUP) {
		t.Skip("SIGHUP is ignored: these tests run under nohup")
	}
	if TakeHangups(t.Context()) != nil {
		t.Error("a context without signals has hangups")
	}
	ctx, stop := Signals(t.Context())
	defer stop()
	hangups := TakeHangups(ctx)
	send := func(s syscall.Signal) {
		t.Helper()
		if err := unix.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		send(unix.SIGHUP)
		select {
		case <-hangups:
		case <-time.After(10 * time.Second):
			t.Fatal("no hangup was told")
		}
		if err := ctx.Err(); err != nil {
			t.Fatalf("the context has ended: %v", err)
		}
	}
	send(unix.SIGTERM)
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("SIGTERM does not end the context")
	}
	if interrupted := (*Interrupted)(nil); !errors.As(context.Cause(ctx), &interrupted) ||
		interrupted.Signal != unix.SIGTERM {
		t.Errorf("the cause is %v, want SIGTERM", context.Cause(ctx))
	}
}
