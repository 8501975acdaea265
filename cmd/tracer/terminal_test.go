package main

// The tests of this file run tracer on a pseudo-terminal.

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
	t.Parallel()
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: "line", Tokens: 100, Threads: 1, NoRepack: true,
		Repeat: 1 << 20, Pause: 5,
	}
	t.Run("pid", func(t *testing.T) {
		target := in.Command(t.Context(), o)
		if err := target.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
		testenv.WaitMapped(t, target.Process.Pid, o.Model)
		term := testenv.NewTerminal(t)
		cmd := exec.Command(tracerBinary,
			"-o", filepath.Join(t.TempDir(), "capture"), "--pid", fmt.Sprint(target.Process.Pid))
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
		args := []string{
			"--no-probe", "-o", filepath.Join(t.TempDir(), "capture"), "--", "sh", "-c", `echo own; exec "$@"`, "sh",
		}
		cmd := exec.Command(tracerBinary, append(args, in.Command(t.Context(), o).Args...)...)
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		cmd.Stdout = out
		output := func() string {
			text, err := os.ReadFile(out.Name())
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		term.Start(cmd)
		testenv.WaitFor(t, "a status line", func() bool { return strings.Contains(term.Text(), " tok/s ") })
		// It may still be loading the model.
		testenv.WaitFor(t, "the driver's first text", func() bool { return len(output()) > len("own\n") })
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != 128+int(syscall.SIGTERM) {
			t.Errorf("status %d, want %d", got, 128+int(syscall.SIGTERM))
		}
		// The driver prints one long line of JSON while it runs.
		text := output()
		if !strings.HasPrefix(text, "own\n{") || strings.Count(text, "\n") > 2 || strings.Contains(text, "\x1b") ||
			strings.Contains(text, " tok/s ") {
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

// listener is a program that prints who sent it SIGINT. (A shell would take two that arrive close
// together for one.)
const listener = `#include <signal.h>
#include <string.h>
#include <unistd.h>

static void say(const char *text) { if (write(1, text, strlen(text)) < 0) _exit(4); }
static void got(int signal, siginfo_t *info, void *context)
{
	say(info->si_code == SI_KERNEL ? "got from terminal\n" : "got from process\n");
}

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

// On a terminal the command gets Ctrl-C from the terminal, and not again from tracer. No status
// line is mixed with its text.
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
	// There are many presses, because a signal from tracer would be lost while the terminal's is
	// pending.
	const got, presses = "got from terminal", 16
	for i := range presses {
		term.Press(testenv.CtrlC)
		testenv.WaitFor(t, "the command to get Ctrl-C", func() bool { return strings.Count(term.Text(), got) > i })
	}
	// tracer passes this signal on after those before. It ends the command.
	if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got, want := cmd.ProcessState.ExitCode(), 128+int(syscall.SIGUSR1); got != want {
		t.Errorf("status %d, want %d", got, want)
	}
	text := term.Text()
	if strings.Count(text, got) != presses || strings.Contains(text, "got from process") ||
		strings.Contains(text, "\x1b") {
		t.Errorf("the terminal shows %q, want %d times %q and nothing of tracer", text, presses, got)
	}
}
