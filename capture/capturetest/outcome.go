package capturetest

// This file runs a tool on a target, and measures what it took.

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Outcome is how a tool ended, and what resources it used itself, without its children.
type Outcome struct {
	Status int // 128+n if signal n ended it
	Stderr string
	CPU    time.Duration
	RSS    int64 // bytes at most
	Wall   time.Duration
}

// These bounds hold whatever a target reports.
const (
	maxCPU   = 3 * time.Second
	maxRSS   = 500 << 20
	maxLines = 60 // a summary of one process has seven, one of many eight times as many
	maxWall  = time.Minute
)

// Run runs a tool to its end. While the tool runs, running (if not nil) is called again and again
// with what the tool has printed up to then, until running returns true. A tool that does not end
// is killed, and fails the test.
func Run(t testing.TB, cmd *exec.Cmd, running func(pid int, output string) (done bool)) Outcome {
	t.Helper()
	stderr, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	var o Outcome
	for !hasEnded(t, pid) {
		if time.Since(begun) > maxWall {
			t.Errorf("%v did not end", cmd.Args)
			_ = cmd.Process.Kill() // it may have ended
		}
		o.RSS = max(o.RSS, peakMemory(pid))
		if running != nil && running(pid, readOutput(t, stderr)) {
			running = nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	o.CPU, o.Wall = cpuTime(t, pid), time.Since(begun)
	_ = cmd.Wait() // the status says how it ended
	status, ok := cmd.ProcessState.Sys().(interface{ ExitStatus() int })
	if !ok {
		t.Fatal("no exit status")
	}
	if o.Status = status.ExitStatus(); o.Status < 0 {
		o.Status = 128 + int(cmd.ProcessState.Sys().(interface{ Signal() unix.Signal }).Signal())
	}
	o.Stderr = readOutput(t, stderr)
	return o
}

// Check fails the test if the tool used more resources than a target may cause, or did not print
// briefly and legibly how it went. Lines of a log are not counted.
func (o *Outcome) Check(t testing.TB) {
	t.Helper()
	lines := 0
	for line := range strings.Lines(o.Stderr) {
		if !strings.HasPrefix(line, "time=") || strings.Contains(line, "level=WARN") {
			lines++
		}
	}
	switch {
	case strings.Contains(o.Stderr, "goroutine ") || strings.Contains(o.Stderr, "panic:"):
		t.Errorf("it panicked:\n%s", o.Stderr)
	case lines > maxLines || lines == 0:
		t.Errorf("it printed %d lines, want 1 to %d:\n%.2000s", lines, maxLines, o.Stderr)
	case !utf8.ValidString(o.Stderr) || strings.ContainsFunc(o.Stderr,
		func(c rune) bool { return c < ' ' && c != '\n' || c == 0x7f }):
		t.Errorf("it printed control characters: %.2000q", o.Stderr)
	}
	if o.CPU > maxCPU || o.RSS > maxRSS {
		t.Errorf("it took %v of CPU time and %d MiB", o.CPU, o.RSS>>20)
	}
}

// String returns the figures in one line.
func (o *Outcome) String() string {
	return fmt.Sprintf("status %d, CPU %.2f s, %d MiB, %.1f s", o.Status, o.CPU.Seconds(), o.RSS>>20, o.Wall.Seconds())
}

func hasEnded(t testing.TB, pid int) bool {
	t.Helper()
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil); err != nil {
		t.Fatal(err)
	}
	return info.Signo != 0
}

func readOutput(t testing.TB, f *os.File) string {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// peakMemory returns the peak memory of a process in bytes, 0 if it has ended.
func peakMemory(pid int) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(data), "VmHWM:")
	kib, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, err := strconv.ParseInt(kib, 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

// cpuTime returns the CPU time of a process that has ended and was not waited for yet.
func cpuTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	ticks := int64(0)
	for _, f := range fields[11:13] { // utime and stime, in units of 10 ms
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
