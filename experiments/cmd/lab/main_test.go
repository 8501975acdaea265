package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"tensorcast/experiments/results"
	"tensorcast/internal/cli"
)

// When the variable asCommand is set, the test binary is the command: for tests of signals, and of
// commands that start lab again.
const asCommand = "TENSORCAST_LAB_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// lab runs the command in this process.
func lab(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = cli.Run(ctx, command(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// labProcess is the command as a process of its own. Its standard streams go to buffers.
func labProcess(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd = exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

// interrupted runs the command, interrupts it after a while, and returns how it ended.
func interrupted(t *testing.T, after time.Duration, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return interruptedOnce(t, func(int) bool { time.Sleep(after); return true }, args...)
}

// interruptedOnce runs the command as a script's background job, for which shells ignore SIGINT. It
// interrupts the command once ready, which gets its process id, returns true, and returns how it
// ended.
func interruptedOnce(t *testing.T, ready func(pid int) bool, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var errs bytes.Buffer
	shell := exec.CommandContext(t.Context(), "/bin/sh",
		append([]string{"-c", `"$0" "$@" & echo $!; wait $!`, os.Args[0]}, args...)...)
	shell.Env = append(os.Environ(), asCommand+"=1")
	shell.Stderr = &errs
	pipe, err := shell.StdoutPipe()
	if err == nil {
		err = shell.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(pipe)
	line, _ := out.ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); !ready(pid); time.Sleep(20 * time.Millisecond) {
		if time.Since(begun) > 5*time.Minute {
			t.Errorf("it is not where it is to be interrupted after five minutes: %q", args)
			break
		}
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			break // it has ended: the caller looks at why
		}
	}
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Errorf("interrupt it: %v", err)
	}
	all, err := io.ReadAll(out)
	if err != nil {
		t.Error(err)
	}
	return exitCode(t, shell.Wait()), string(all), errs.String()
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	t.Fatal(err)
	return -1
}

// usageTest is a command line that is refused.
type usageTest struct {
	args []string
	want string // part of the one line on stderr
}

// testUsage checks that a subcommand refuses each command line with exit code 2 and one line that
// names the command and where help is.
func testUsage(t *testing.T, name string, tests []usageTest) {
	t.Helper()
	for _, test := range append(tests, usageTest{[]string{"--no-such-flag"}, "unknown flag: --no-such-flag"}) {
		code, stdout, stderr := lab(t.Context(), append([]string{name}, test.args...)...)
		if code != cli.BadUsage || stdout != "" || !strings.HasPrefix(stderr, "lab "+name) ||
			!strings.HasSuffix(stderr, " --help)\n") ||
			!strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s %q: exit %d, %q, want one line with %q", name, test.args, code, stderr, test.want)
		}
	}
}

// readSaved reads the document that --save wrote, and its report.
func readSaved(t *testing.T, path string, kind results.Kind, report any) *results.Document {
	t.Helper()
	d, err := results.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(d.Report, report); err != nil || d.Kind != kind {
		t.Fatalf("kind %q, want %q; %v: %s", d.Kind, kind, err, d.Report)
	}
	return d
}

func TestHelp(t *testing.T) {
	_, stdout, _ := lab(t.Context(), "--help")
	for name, flag := range map[string]string{
		"pressure": "--variant NAME", "matrix": "--plan",
		"firsttoken": "--start", "harm": "--scenes", "soak": "--minutes",
		"overhead": "--observer NAME=COMMAND", "accounting": "--rate", "serverload": "--clients",
		"divergence": "--candidate",
		"attention":  "--tolerance", "hyper": "--coding", "fabricplan": "--profile accurate|balanced|fast",
		"synth": "--type F32|F16|Q8_0|Q4_0|Q4_K", "getllama": "--link PATH",
		"results": "lab results docs --check", "dataset": "--trained",
	} {
		if !strings.Contains(stdout, "\n  "+name+" ") {
			t.Errorf("lab --help does not name %s:\n%s", name, stdout)
		}
		code, help, stderr := lab(t.Context(), name, "--help")
		for _, want := range []string{flag, "lab " + name, "Exit codes:"} {
			if code != 0 || stderr != "" || !strings.Contains(help, want) {
				t.Errorf("%s: exit %d, %q, the help lacks %q:\n%s", name, code, stderr, want, help)
			}
		}
	}
	if code, stdout, _ := lab(t.Context(), "overhead", "trap", "--help"); code != 0 ||
		!strings.Contains(stdout, "sudo lab overhead trap --pid") {
		t.Errorf("exit %d, %s; want 0 and the help of trap", code, stdout)
	}
}

// No line of a help is too long for a window of 120 columns, those of hidden commands included.
func TestHelpWidth(t *testing.T) {
	const most = 120
	helps := 0
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		helps++
		args := append(strings.Fields(c.CommandPath())[1:], "--help")
		code, help, stderr := lab(t.Context(), args...)
		if code != 0 || stderr != "" {
			t.Errorf("%q: exit %d, %q", args, code, stderr)
		}
		for line := range strings.Lines(help) {
			if columns := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); columns > most {
				t.Errorf("%q has a line of %d columns, want %d at most: %s", args, columns, most, line)
			}
		}
		for _, sub := range c.Commands() {
			look(sub)
		}
	}
	look(command())
	if helps < 25 {
		t.Errorf("%d helps were looked at, want at least 25", helps)
	}
}

func TestNoCommand(t *testing.T) {
	for _, args := range [][]string{{}, {"presure"}, {"--no-such-flag"}} {
		if code, stdout, stderr := lab(t.Context(), args...); code != cli.BadUsage || stdout != "" ||
			strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "(see lab --help)") {
			t.Errorf("%q: exit %d, %q; want wrong usage and one line", args, code, stderr)
		}
	}
}

func TestCompletion(t *testing.T) {
	for want, args := range map[string][]string{
		"accurate\nbalanced\nfast\n": {"fabricplan", "--profile", ""},
		"F32\nF16\n":                 {"synth", "--type", ""},
		"majority\nthresholded\n":    {"hyper", "--coding", ""},
		"none\nop\ngraph\n":          {"overhead", "--observer", ""},
	} {
		if code, stdout, _ := lab(t.Context(), append([]string{"__complete"}, args...)...); code != 0 ||
			!strings.HasPrefix(stdout, want) {
			t.Errorf("%q: exit %d, %q; want %q", args, code, stdout, want)
		}
	}
}
