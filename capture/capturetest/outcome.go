package capturetest

// This file runs a tool on a target, and says what it took.

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

// Outcome is how a tool ended, and what it took for itself, without its children.
type Outcome struct {
	Status int // 128+n if signal n ended it
	Stderr string
	CPU    time.Duration
	RSS    int64 // bytes at most
	Wall   time.Duration
}

// Bounds that hold whatever a target says.
const (
	maxCPU   = 3 * time.Second
	maxRSS   = 500 << 20
	maxLines = 60 // a summary of one process has seven, one of many eight times as many
	maxWall  = time.Minute
)

// Run runs a tool to its end. Once it has started, running is called with what it has said up to
// then, again and again until that returns true (nil: not at all). A tool that does not end is
// killed, and fails the test.
func Run(t testing.TB, cmd *exec.Cmd, running func(pid int, said string) (done bool)) Outcome {
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
	for !ended(t, pid) {
		if time.Since(begun) > maxWall {
			t.Errorf("%v did not end", cmd.Args)
			_ = cmd.Process.Kill() // it may have ended
		}
		o.RSS = max(o.RSS, rss(pid))
		if running != nil && running(pid, said(t, stderr)) {
			running = nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	o.CPU, o.Wall = cpu(t, pid), time.Since(begun)
	_ = cmd.Wait() // the status says how it ended
	status, ok := cmd.ProcessState.Sys().(interface{ ExitStatus() int })
	if !ok {
		t.Fatal("no exit status")
	}
	if o.Status = status.ExitStatus(); o.Status < 0 {
		o.Status = 128 + int(cmd.ProcessState.Sys().(interface{ Signal() unix.Signal }).Signal())
	}
	o.Stderr = said(t, stderr)
	return o
}

// Check fails the test if the tool took more than a target may cause, or did not say briefly and
// legibly how it went. Lines of a log are not counted.
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
		t.Errorf("it said %d lines:\n%.2000s", lines, o.Stderr)
	case !utf8.ValidString(o.Stderr) || strings.ContainsFunc(o.Stderr,
		func(c rune) bool { return c < ' ' && c != '\n' || c == 0x7f }):
		t.Errorf("it said what a terminal obeys: %.2000q", o.Stderr)
	}
	if o.CPU > maxCPU || o.RSS > maxRSS {
		t.Errorf("it took %v of CPU time and %d MiB", o.CPU, o.RSS>>20)
	}
}

// String has the figures in a line.
func (o *Outcome) String() string {
	return fmt.Sprintf("status %d, CPU %.2f s, %d MiB, %.1f s", o.Status, o.CPU.Seconds(), o.RSS>>20, o.Wall.Seconds())
}

func ended(t testing.TB, pid int) bool {
	t.Helper()
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil); err != nil {
		t.Fatal(err)
	}
	return info.Signo != 0
}

func said(t testing.TB, f *os.File) string {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// rss is the most memory that a process had; 0 if it has ended.
func rss(pid int) int64 {
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

// cpu is the CPU time of a process that has ended and is not waited for yet.
func cpu(t testing.TB, pid int) time.Duration {
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
