package main

// These tests run tracer on a terminal of their own.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
)

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
		testenv.WaitMapped(t, target.Process.Pid, o.Model)
		term := testenv.NewTerminal(t)
		cmd := exec.Command(tracerBinary, "-o", filepath.Join(t.TempDir(), "capture"), "--pid", fmt.Sprint(target.Process.Pid))
		term.Start(cmd)
		testenv.WaitFor(t, "two status lines", func() bool { return strings.Count(term.Text(), " tok/s ") >= 2 })
		term.Press(testenv.CtrlC)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("tracer: %v\n%s", err, term.Text())
		}
		if err := target.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("the target did not survive the tracer: %v", err)
		}
		testenv.WaitFor(t, "the summary", func() bool { return strings.Contains(term.Text(), "filtered") })
		before, _, _ := strings.Cut(term.Text(), "tracer: ")
		if _, rest, ok := cutLast(before, " lost"); !ok || !strings.Contains(rest, "\r\x1b[K") {
			t.Errorf("the line was not cleared before the summary: %q", term.Text())
		}
		if !strings.Contains(term.Text(), "generation  ") && !strings.Contains(term.Text(), "prompt  ") {
			t.Errorf("the line has no phase: %q", term.Text())
		}
	})
	t.Run("command whose output goes elsewhere", func(t *testing.T) {
		term := testenv.NewTerminal(t)
		cmd := exec.Command(tracerBinary, append([]string{"-o", filepath.Join(t.TempDir(), "capture"), "--", "sh", "-c", `echo own; exec "$@"`, "sh"}, in.Command(t.Context(), o).Args...)...)
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		cmd.Stdout = out
		said := func() string {
			text, err := os.ReadFile(out.Name())
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		term.Start(cmd)
		testenv.WaitFor(t, "a status line", func() bool { return strings.Contains(term.Text(), " tok/s ") })
		testenv.WaitFor(t, "the driver's first text", func() bool { return len(said()) > len("own\n") }) // it may still load the model
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != 128+int(syscall.SIGTERM) {
			t.Errorf("status %d", got)
		}
		// The driver prints as it goes, one long line of JSON.
		text := said()
		if !strings.HasPrefix(text, "own\n{") || strings.Count(text, "\n") > 2 || strings.Contains(text, "\x1b") || strings.Contains(text, " tok/s ") {
			t.Errorf("standard output is not the command's own: %q", text[:min(len(text), 200)])
		}
	})
}

// cutLast is strings.Cut around the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// listener is a command that tells who sent it SIGINT: to a shell, two that come close together are one.
const listener = `#include <signal.h>
#include <string.h>
#include <unistd.h>

static void say(const char *text) { if (write(1, text, strlen(text)) < 0) _exit(4); }
static void got(int signal, siginfo_t *info, void *context) { say(info->si_code == SI_KERNEL ? "got from terminal\n" : "got from process\n"); }

int main(void)
{
	struct sigaction action = { .sa_sigaction = got, .sa_flags = SA_SIGINFO };
	sigaction(SIGINT, &action, 0);
	if (isatty(0) && isatty(1) && isatty(2))
		say("ready\n");
	for (;;)
		pause();
}
`

// On a terminal the command gets Ctrl-C from the terminal, and not again from tracer; its text is not written across.
func TestCommandOwnsTheTerminal(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	source, program := filepath.Join(dir, "listener.c"), filepath.Join(dir, "listener")
	if err := os.WriteFile(source, []byte(listener), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	term := testenv.NewTerminal(t)
	cmd := exec.Command(tracerBinary, "-o", filepath.Join(dir, "capture"), "--", program)
	term.Start(cmd)
	testenv.WaitFor(t, "the command to begin", func() bool { return strings.Contains(term.Text(), "ready") })
	const got, presses = "got from terminal", 16 // many: where tracer sends a signal while the terminal's is pending, the two are one
	for i := range presses {
		term.Press(testenv.CtrlC)
		testenv.WaitFor(t, "the command to get Ctrl-C", func() bool { return strings.Count(term.Text(), got) > i })
	}
	if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil { // passed on behind what came before: it ends the command
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got, want := cmd.ProcessState.ExitCode(), 128+int(syscall.SIGUSR1); got != want {
		t.Errorf("status %d, want %d", got, want)
	}
	if text := term.Text(); strings.Count(text, got) != presses || strings.Contains(text, "got from process") || strings.Contains(text, "\x1b") {
		t.Errorf("the terminal shows %q", text)
	}
}
