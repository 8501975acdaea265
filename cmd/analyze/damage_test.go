package main

// This file puts damaged captures through all of analyze.

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/cli"
	"tensorcast/trace/tracetest"
)

var (
	mutations = flag.Int("mutations", 300, "how many damaged captures are analysed")
	firstSeed = flag.Uint64("mutation", 0, "the first of them, to repeat one")
)

const (
	childVariable = "TENSORCAST_DAMAGED_CAPTURES" // is set in the process that analyses the captures

	maxCPU    = 5 * time.Second // for one capture
	maxMemory = 500 << 20       // Go's, from the operating system
	maxWait   = 2 * time.Minute // for one capture, on a busy machine
)

// Whatever a capture holds, analyze says in one line what is wrong with it, or analyses it. It neither
// panics nor hangs, and takes little memory. `make fuzz` tries more captures than `make test`.
func TestDamagedCaptures(t *testing.T) {
	if os.Getenv(childVariable) != "" {
		analyzeDamaged(t)
		return
	}
	// This runs in a process of its own, so that memory is measured, and that a crash is reported with
	// the capture that caused it.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestDamagedCaptures$", "-test.timeout=0",
		fmt.Sprint("-mutations=", *mutations), fmt.Sprint("-mutation=", *firstSeed))
	cmd.Env = append(os.Environ(), childVariable+"=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hang := time.AfterFunc(maxWait, cancel)
	last, said := "", ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		hang.Reset(maxWait)
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "capture "):
			last = line
		default:
			said += line + "\n"
		}
	}
	hung := !hang.Stop()
	err = cmd.Wait()
	switch {
	case hung:
		t.Fatalf("%s hangs\n%s", last, said)
	case err != nil:
		t.Fatalf("%v at %s (see -mutation)\n%s%.5000s", err, last, said, stderr.String())
	}
	t.Logf("%sat most %d MiB resident", said, cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss>>10)
}

// messageStart is how each message begins: with the command's name, and a failure with the subcommand's,
// too.
var messageStart = regexp.MustCompile(`^analyze( [a-z]+)?: `)

// nonsense matches what no capture of real files has: negative numbers of bytes, and exabytes.
var nonsense = regexp.MustCompile(`-[0-9.]+ [kMGTPE]?B\b|[0-9] EB|NaN|Inf\b`)

// analyzeDamaged prints which capture comes next, so that the parent knows it.
func analyzeDamaged(t *testing.T) {
	parent := t.TempDir()
	whole, rotated, killed := filepath.Join(parent, "whole"), filepath.Join(parent, "rotated"),
		filepath.Join(parent, "killed")
	for dir, o := range map[string]tracetest.Options{
		whole: {}, rotated: {Segments: 4, Keep: 3}, killed: {Segments: 2, Killed: true},
	} {
		if err := tracetest.Write(dir, o); err != nil {
			t.Fatal(err)
		}
	}
	damager, err := tracetest.NewDamager(filepath.Join("..", "..", "trace", "testdata", "capture-2"), whole, rotated,
		killed)
	if err != nil {
		t.Fatal(err)
	}
	var (
		worst, worstCPU time.Duration
		slowest         uint64
		codes           = map[int]int{}
	)
	for seed := *firstSeed; seed < *firstSeed+uint64(*mutations); seed++ {
		dir, out := filepath.Join(parent, "capture"), filepath.Join(parent, "analysis")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		done, err := damager.Write(dir, seed)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("capture %d: %s\n", seed, done)
		args := damagedArgs(seed, dir, out, whole)
		var stdout, stderr bytes.Buffer
		begin, cpu := time.Now(), cpuTime()
		code := cli.Run(context.Background(), command(), args, &stdout, &stderr)
		took, used := time.Since(begin), cpuTime()-cpu
		if used > worstCPU {
			worstCPU, slowest = used, seed
		}
		worst = max(worst, took)
		codes[code]++
		checkMessages(t, fmt.Sprintf("capture %d, %s", seed, done), code, stdout.String(), stderr.String())
		if most := allowedCPU(args); used > most {
			t.Errorf("capture %d, %s: %v of the processor, want at most %v", seed, done, used, most)
		}
		for _, d := range []string{dir, out} {
			if err := os.RemoveAll(d); err != nil {
				t.Fatal(err)
			}
		}
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	if mem.Sys > maxMemory {
		t.Errorf("Go took %d MiB, want at most %d", mem.Sys>>20, maxMemory>>20)
	}
	fmt.Fprintf(io.Writer(os.Stdout), "%d captures: %d analysed, %d refused; at most %v each, and %v of the "+
		"processor (capture %d); %d MiB of Go's memory, ",
		*mutations, codes[cli.OK], codes[cli.Failure], worst.Round(time.Millisecond),
		worstCPU.Round(time.Millisecond), slowest, mem.Sys>>20)
	fmt.Println()
}

// damagedArgs are the arguments with which the capture of a seed is analysed: each subcommand and flag has its turn.
func damagedArgs(seed uint64, dir, out, whole string) []string {
	args := []string{"-c", dir, "-o", out}
	switch {
	case seed%7 == 1:
		args = append([]string{"determinism"}, args...)
	case seed%7 == 2:
		args = []string{"compare", "-o", out, whole, dir}
	case seed%7 == 3:
		args = append(args, "--export")
	case seed%35 == 4:
		args = append(args, "--all")
	case seed%7 == 5:
		args = append([]string{kinds[int(seed/7)%len(kinds)].name}, args...)
	case seed%64 == 0:
		args = append(args, "--heatmap")
	}
	if seed%2 == 0 {
		args = append(args, "--json")
	}
	return args
}

// allowedCPU is how much of the processor an analysis may take.
func allowedCPU(args []string) time.Duration {
	most := maxCPU
	if slices.Contains(args, "--all") { // it draws a dozen pictures
		most *= 4
	}
	// It writes each table again, and Arrow makes a zstd encoder of megabytes for each column. This takes seconds
	// with the race detector.
	if slices.Contains(args, "--export") {
		most *= 3
	}
	return most
}

// checkMessages checks what an analysis printed: its answer without nonsense, or one line that says what is wrong.
func checkMessages(t *testing.T, what string, code int, stdout, stderr string) {
	t.Helper()
	if code != cli.OK && code != cli.Failure {
		t.Errorf("%s: exit %d, want %d or %d", what, code, cli.OK, cli.Failure)
	}
	if code == cli.OK && nonsense.MatchString(stdout) || code == cli.Failure && stdout != "" {
		t.Errorf("%s: exit %d, and stdout has what it should not\n%.3000s", what, code, stdout)
	}
	failures := 0
	for line := range strings.Lines(stderr) {
		if !messageStart.MatchString(line) || len(line) > 6000 || nonsense.MatchString(line) {
			t.Errorf("%s: stderr has a line that it should not: %.3000q", what, line)
		}
		if isFailure(line) {
			failures++
		}
	}
	if code == cli.Failure && failures != 1 || code == cli.OK && failures > 0 {
		t.Errorf("%s: exit %d with %d failures on stderr\n%.3000s", what, code, failures, stderr)
	}
}

// isFailure says whether a line of stderr is neither a warning nor a hint.
func isFailure(line string) bool {
	return !strings.HasPrefix(line, "analyze: warning: ") && !strings.Contains(line, ": figures are per decode") &&
		!strings.HasPrefix(line, "analyze: the capture holds several contexts") &&
		!strings.Contains(line, "check the draft's tokens")
}

// cpuTime is the processor time that this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
