package main

// These tests run tracer on a terminal of their own.

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
)

// terminal is a pseudo-terminal and what was written to it.
type terminal struct {
	master, slave *os.File
	mu            sync.Mutex
	screen        bytes.Buffer
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	term := &terminal{master: master, slave: slave}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			if err != nil {
				return // all that have the terminal open have closed it
			}
			term.mu.Lock()
			term.screen.Write(buf[:n])
			term.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		slave.Close()
		<-done
		master.Close()
	})
	return term
}

func (t *terminal) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.screen.String()
}

// start starts a command in the terminal's foreground.
func (term *terminal) start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Stdin, cmd.Stderr = term.slave, term.slave
	if cmd.Stdout == nil {
		cmd.Stdout = term.slave
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (term *terminal) press(t *testing.T, key string) {
	t.Helper()
	if _, err := term.master.WriteString(key); err != nil {
		t.Fatal(err)
	}
}

const ctrlC = "\x03"

func TestStatusLine(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{Model: llamatest.Model(t, denseModel), Prompt: "line", Tokens: 100, Threads: 1, NoRepack: true, Repeat: 1 << 20}
	t.Run("pid", func(t *testing.T) {
		target := in.Command(t.Context(), o)
		if err := target.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
		testenv.WaitFor(t, "the target to map the model", func() bool {
			maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", target.Process.Pid))
			return err == nil && bytes.Contains(maps, []byte(o.Model))
		})
		term := newTerminal(t)
		cmd := exec.Command(tracerBinary, "-o", filepath.Join(t.TempDir(), "capture"), "--pid", fmt.Sprint(target.Process.Pid))
		term.start(t, cmd)
		testenv.WaitFor(t, "two status lines", func() bool { return strings.Count(term.text(), " tok/s ") >= 2 })
		term.press(t, ctrlC)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("tracer: %v\n%s", err, term.text())
		}
		if err := target.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("the target did not survive the tracer: %v", err)
		}
		testenv.WaitFor(t, "the summary", func() bool { return strings.Contains(term.text(), "filtered") })
		line := term.text()
		line = line[strings.LastIndex(line, "lost\r"):] // the last status line's end
		line, _, _ = strings.Cut(line, "tracer: ")
		if !strings.Contains(line, "\r\x1b[K") {
			t.Errorf("the line was not cleared before the summary: %q", term.text())
		}
		if !strings.Contains(term.text(), "generation  ") && !strings.Contains(term.text(), "prompt  ") {
			t.Errorf("the line has no phase: %q", term.text())
		}
	})
	t.Run("command whose output goes elsewhere", func(t *testing.T) {
		term := newTerminal(t)
		cmd := exec.Command(tracerBinary, append([]string{"-o", filepath.Join(t.TempDir(), "capture"), "--"}, in.Command(t.Context(), o).Args...)...)
		var out bytes.Buffer
		cmd.Stdout = &out
		term.start(t, cmd)
		testenv.WaitFor(t, "a status line", func() bool { return strings.Contains(term.text(), " tok/s ") })
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if strings.Contains(out.String(), "tok/s ") {
			t.Errorf("standard output is not the command's own: %q", out.String())
		}
	})
}

// On a terminal the command gets Ctrl-C from the terminal, and not again from tracer; its text is not written across.
func TestCommandOwnsTheTerminal(t *testing.T) {
	testenv.NeedRoot(t)
	term := newTerminal(t)
	flag := filepath.Join(t.TempDir(), "end")
	const script = `trap 'echo got INT' INT
[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo ready
while ! [ -e "$0" ]; do sleep 0.05; done
exit 3`
	cmd := exec.Command(tracerBinary, "-o", filepath.Join(t.TempDir(), "capture"), "--", "sh", "-c", script, flag)
	term.start(t, cmd)
	testenv.WaitFor(t, "the command to begin", func() bool { return strings.Contains(term.text(), "ready") })
	for i := range 3 {
		term.press(t, ctrlC)
		testenv.WaitFor(t, "the command to get Ctrl-C", func() bool { return strings.Count(term.text(), "got INT") > i })
	}
	if err := os.WriteFile(flag, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 3 {
		t.Errorf("status %d, want 3", got)
	}
	if text := term.text(); strings.Count(text, "got INT") != 3 || strings.Contains(text, "\x1b") {
		t.Errorf("the terminal shows %q", text)
	}
}
