package auto

// This file tests which processes are found, and that each has a helper.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tensorcast/internal/testenv"
)

// mapperVariable makes the test's program a process that maps files, and waits for the end of its input.
const mapperVariable = "TENSORCAST_MAPS"

func TestMain(m *testing.M) {
	if files := os.Getenv(mapperVariable); files != "" {
		for _, name := range filepath.SplitList(files) {
			f, err := os.Open(name)
			if err == nil {
				_, err = unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
			}
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}
		fmt.Println("mapped")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// startProcess starts a process that maps files of these names. Its executable has the given name; with "" it is
// this program.
func startProcess(t *testing.T, name string, files ...string) (pid int, end func()) {
	t.Helper()
	dir := t.TempDir()
	exe := filepath.Join(dir, name)
	if name != "" { // a copy, because a Finder leaves out this program itself
		data, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(exe, data, 0o700); err != nil {
			t.Fatal(err)
		}
	} else {
		exe = "/proc/self/exe"
	}
	for i, f := range files {
		files[i] = filepath.Join(dir, f)
		if err := os.WriteFile(files[i], make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), mapperVariable+"="+strings.Join(append(files, exe), ":"))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	said := make([]byte, 100)
	if n, _ := stdout.Read(said); string(said[:n]) != "mapped\n" {
		t.Fatalf("the process says %q, want that it has mapped the files", said[:n])
	}
	return cmd.Process.Pid, end
}

// findNow calls FindNew, and returns the processes' numbers, and whether each has loaded ggml.
func findNow(t *testing.T, f *Finder, now time.Time) (pids []int, loaded []bool) {
	t.Helper()
	found, err := f.FindNew(now)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range found {
		pids, loaded = append(pids, c.PID), append(loaded, c.Loaded)
	}
	return pids, loaded
}

// Each process that maps ggml or a model is found once, if it has one of the names. Others are never found.
func TestFinder(t *testing.T) {
	const name = "finder-target"
	library, _ := startProcess(t, name, "libggml-base.so.0")
	model, end := startProcess(t, name, "some.gguf")
	startProcess(t, name, "notes.txt")
	startProcess(t, "", "own.gguf")
	other, _ := startProcess(t, "another", "libggml.so")
	named, err := NewFinder(name)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	pids, loaded := findNow(t, named, now)
	if want := []int{library, model}; !slices.Equal(pids, want) || !slices.Equal(loaded, []bool{true, false}) {
		t.Fatalf("found %v, loaded %v; want %v, of which the first has loaded ggml", pids, loaded, want)
	}
	if pids, _ := findNow(t, named, now.Add(time.Hour)); len(pids) > 0 {
		t.Errorf("found again: %v, want none", pids)
	}
	everybody, err := NewFinder()
	if err != nil {
		t.Fatal(err)
	}
	pids, _ = findNow(t, everybody, now)
	if !slices.Contains(pids, other) || !slices.Contains(pids, library) || slices.Contains(pids, os.Getpid()) {
		t.Errorf("of any name: found %v, want %d and %d among them, but not this process", pids, other, library)
	}
	end()
	late, _ := startProcess(t, name, "late.gguf")
	if pids, _ := findNow(t, named, now.Add(2*time.Hour)); !slices.Equal(pids, []int{late}) {
		t.Errorf("found %v, want %d", pids, late)
	}
	if _, still := named.known[model]; still {
		t.Error("a process that has ended is remembered")
	}
}

// A process that is no candidate is looked at again, less and less often.
func TestLater(t *testing.T) {
	pid, _ := startProcess(t, "later-target", "notes.txt")
	f, err := NewFinder("later-target")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, tc := range []struct{ after, next time.Duration }{
		{0, 1}, {1, 3}, {2, 3}, {3, 7}, {100, 108}, {108, 124}, {200, 230}, {300, 330},
	} {
		if found, _ := findNow(t, f, now.Add(tc.after*time.Second)); len(found) > 0 {
			t.Fatalf("found %v, want none", found)
		}
		if got := f.known[pid].next.Sub(now); got != tc.next*time.Second {
			t.Errorf("after %d s the next look is at %v, want %d s", tc.after, got, tc.next)
		}
	}
}

// Wait returns the first candidate, or an error when its context ends.
func TestWait(t *testing.T) {
	f, err := NewFinder("wait-target")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := f.Wait(ctx); !errors.Is(err, ErrNone) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody came: %v, want %v and %v", err, ErrNone, context.DeadlineExceeded)
	}
	pid, _ := startProcess(t, "wait-target", "libggml.so")
	if c, err := f.Wait(t.Context()); err != nil || c.PID != pid || c.Name != "wait-target" {
		t.Errorf("Wait = %+v, %v; want process %d", c, err, pid)
	}
}

// shares notes which share each helper was told.
type shares struct {
	mu  sync.Mutex
	now map[int]int64
}

func (s *shares) of(pid int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now[pid]
}

// Helpers come and go with their targets, no more than Most at once. The budget is divided among them. Lines that
// they write begin with their target. When Run ends, it ends them.
func TestRun(t *testing.T) {
	first, endFirst := startProcess(t, "run-target", "libggml.so")
	second, _ := startProcess(t, "run-target", "libggml.so")
	third, _ := startProcess(t, "run-target", "libggml.so")
	f, err := NewFinder("run-target")
	if err != nil {
		t.Fatal(err)
	}
	var out, said syncBuffer
	told := shares{now: map[int]int64{}}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	log := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	go func() {
		ran <- Run(ctx, f, Options{
			MaxHelpers: 2, Budget: 1000, Out: &out, Err: &said, Log: log,
			Helper: func(c Candidate, budget int64) []string {
				told.mu.Lock()
				told.now[c.PID] = budget
				told.mu.Unlock()
				const script = `trap 'echo summary %d; exit 0' TERM; echo begun >&2; ` +
					`while kill -0 %d 2>/dev/null; do sleep 0.05; done; echo "sh: no end" >&2; exit 3`
				return []string{"sh", "-c", fmt.Sprintf(script, c.PID, c.PID)}
			},
			SetShare: func(_ context.Context, target int, bytes int64) error {
				told.mu.Lock()
				defer told.mu.Unlock()
				told.now[target] = bytes
				return nil
			},
		})
	}()
	hasBegun := func(pid int) bool {
		return strings.Contains(said.String(), fmt.Sprintf("%d run-target: begun\n", pid))
	}
	testenv.WaitFor(t, "two helpers to begin, with a half each", func() bool {
		return hasBegun(first) && hasBegun(second) && told.of(first) == 500 && told.of(second) == 500
	})
	if told.of(third) != 0 {
		t.Error("a third target was helped at once")
	}
	endFirst()
	testenv.WaitFor(t, "the third to be helped", func() bool {
		return hasBegun(third) && told.of(third) == 500
	})
	lastLine := fmt.Sprintf("%d run-target: no end\n", first)
	if !strings.Contains(said.String(), lastLine) || !strings.Contains(said.String(), `"exit status 3"`) {
		t.Errorf("it wrote\n%s\nwant %q, and that the helper failed with exit status 3", said.String(), lastLine)
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	for _, pid := range []int{second, third} {
		if !strings.Contains(out.String(), fmt.Sprintf("summary %d\n", pid)) {
			t.Errorf("no summary of %d: %q", pid, out.String())
		}
		if syscall.Kill(pid, 0) != nil {
			t.Errorf("target %d has ended, want that it goes on", pid)
		}
	}
}

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Lines are whole, whatever the writes. A last line without an end is written by flush, and a long line in parts.
func TestLines(t *testing.T) {
	var b bytes.Buffer
	l := &lineWriter{to: &b, mu: &sync.Mutex{}, prefix: "7: "}
	for _, s := range []string{"a", "b\nc\n\nd", "e"} {
		if n, err := l.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	l.flush()
	l.flush()
	if got := b.String(); got != "7: ab\n7: c\n7: \n7: de\n" {
		t.Errorf("wrote %q, want four lines with a prefix each", got)
	}
	b.Reset()
	if _, err := l.Write(bytes.Repeat([]byte("x"), 3*maxLine)); err != nil || len(l.rest) >= maxLine || b.Len() == 0 {
		t.Errorf("a long line: %d bytes are kept, %d written, %v; want less than %d kept",
			len(l.rest), b.Len(), err, maxLine)
	}
}
