package main

// The tests of this file run tracer and its target in containers, which have process ids of their own.

import (
	"fmt"
	"os"
	"os/exec"
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
	"tensorcast/internal/pagecache"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// dropCache drops a file from the page cache.
func dropCache(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if left, err := pagecache.Drop(t.Context(), f); left > 0 || err != nil {
		t.Fatalf("%d bytes stay in memory, %v", left, err)
	}
}

// threads returns the threads in which a capture's ops ran.
func threads(rows []tables.Access) (found []int32) {
	for _, a := range rows {
		if !slices.Contains(found, a.Thread) {
			found = append(found, a.Thread)
		}
	}
	return found
}

// countPageIns returns how many bytes each process read from disk.
func countPageIns(t *testing.T, c *trace.Capture) map[int32]int64 {
	t.Helper()
	by := map[int32]int64{}
	for p, err := range c.PageIns() {
		if err != nil {
			t.Fatal(err)
		}
		by[p.PID] += p.Bytes
	}
	return by
}

// In a container tracer sees the same as on the host. It identifies processes and threads by their
// ids in the container.
func TestInContainer(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{
		Model: llamatest.Model(t, moeModel), Prompt: "the quick brown fox", Tokens: 6, Threads: 1, NoRepack: true,
	}
	for _, detail := range []string{tables.DetailOp, tables.DetailGraph, tables.DetailOpIO} {
		t.Run(detail, func(t *testing.T) {
			dropCache(t, o.Model)
			outside, want := traced(t, in, o, "--detail", detail)
			dropCache(t, o.Model)
			dir := filepath.Join(t.TempDir(), "capture")
			args := []string{tracerBinary, "--no-probe", "-o", dir, "--strict", "--detail", detail, "--"}
			args = append(args, in.Command(t.Context(), o).Args...)
			r := finish(t, testenv.Container{}.Command(args...))
			if r.status != 0 {
				t.Fatalf("tracer ended with %d:\n%s", r.status, r.stderr)
			}
			result, err := llama.ParseResult([]byte(r.stdout))
			if err != nil {
				t.Fatal(err)
			}
			inside, got := readCapture(t, dir)
			compare(t, sequence(inside, got), sequence(outside, want))
			a, b := inside.Meta.Counters, outside.Meta.Counters
			if a.Hits != b.Hits || a.NoWeight != b.NoWeight || a.OpsSent != b.OpsSent ||
				inside.Meta.Tokens != o.Tokens {
				t.Errorf("counters %+v, tokens %d; on the host %+v, %d", a, inside.Meta.Tokens, b, o.Tokens)
			}
			// The target computes in its first thread.
			pid := int32(result.PID)
			if inside.Meta.PID != result.PID || !slices.Equal(threads(got), []int32{pid}) || pid > 1000 {
				t.Errorf("process %d, threads %d; want the target's own id %d", inside.Meta.PID, threads(got), pid)
			}
			if detail != tables.DetailOpIO {
				return
			}
			// tracer also reads the file, so the numbers differ a little.
			in := countPageIns(t, inside)[pid]
			out := countPageIns(t, outside)[int32(outside.Meta.PID)]
			if in < out*9/10 || out < in*9/10 || in == 0 {
				t.Errorf("%d bytes were read from disk, on the host %d", in, out)
			}
		})
	}
}

// The target runs in a container within tracer's container. Its processes have other ids there than
// in tracer's.
func TestDeeperContainer(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	unshare, err := exec.LookPath("unshare") // from util-linux, which every Debian has
	if err != nil {
		t.Fatal(err)
	}
	o := llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: "the quick brown fox", Tokens: 6, Threads: 1, NoRepack: true,
	}
	outside, want := traced(t, in, o)
	dir := filepath.Join(t.TempDir(), "capture")
	args := []string{tracerBinary, "--no-probe", "-o", dir, "--strict", "--follow", "--", unshare, "--fork", "--pid"}
	args = append(args, in.Command(t.Context(), o).Args...)
	r := finish(t, testenv.Container{}.Command(args...))
	if r.status != 0 {
		t.Fatalf("tracer ended with %d:\n%s", r.status, r.stderr)
	}
	result, err := llama.ParseResult([]byte(r.stdout))
	if err != nil {
		t.Fatal(err)
	}
	captures, err := os.ReadDir(dir)
	if err != nil || len(captures) != 1 {
		t.Fatalf("captures %v, %v; want one", captures, err)
	}
	pid, err := strconv.Atoi(captures[0].Name())
	if err != nil || pid == result.PID || result.PID != 1 || pid > 1000 {
		t.Errorf("process %d, its own id is %d, %v; want another id than its own, which is 1", pid, result.PID, err)
	}
	inside, got := readCapture(t, filepath.Join(dir, captures[0].Name()))
	compare(t, sequence(inside, got), sequence(outside, want))
	if !slices.Equal(threads(got), []int32{int32(pid)}) {
		t.Errorf("threads %d, want only %d", threads(got), pid)
	}
}

// The target is in a container in which alone its model is visible. tracer is outside.
func TestContainerFromOutside(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: "the quick brown fox", Tokens: 6, Threads: 1, NoRepack: true,
	}
	c, want := traced(t, in, o)
	perGeneration := len(want) - len(rowsOfStep(want, 0)) // without the warm-up
	hidden := filepath.Join(t.TempDir(), "hidden")
	if err := os.Mkdir(hidden, 0o755); err != nil {
		t.Fatal(err)
	}
	first := fmt.Sprintf("mount -t tmpfs tmpfs %s; cp %s %s/m.gguf", hidden, o.Model, hidden)
	container := testenv.Container{First: first}
	o.Model, o.Repeat = filepath.Join(hidden, "m.gguf"), 1<<20
	target := container.Command(in.Command(t.Context(), o).Args...)
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = target.Process.Kill(); _ = target.Wait() })
	testenv.WaitMapped(t, target.Process.Pid, o.Model)
	dir := filepath.Join(t.TempDir(), "capture")
	tracer := exec.Command(tracerBinary, "--pid", fmt.Sprint(target.Process.Pid), "-o", dir)
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tracer.Process.Kill(); _ = tracer.Wait() })
	testenv.WaitFor(t, "some generations", func() bool { return countRows(dir) > 3*perGeneration })
	if err := tracer.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := tracer.Wait(); err != nil {
		t.Fatal(err)
	}
	got, rows := readCapture(t, dir)
	if got.Meta.PID != target.Process.Pid || len(got.Structure) != len(c.Structure) ||
		!slices.Equal(threads(rows), []int32{int32(got.Meta.PID)}) {
		t.Errorf("process %d, threads %d, %d tensors; want process and thread %d, %d tensors",
			got.Meta.PID, threads(rows), len(got.Structure), target.Process.Pid, len(c.Structure))
	}
}

// rowsOfStep returns the rows of a step.
func rowsOfStep(rows []tables.Access, step int32) []tables.Access {
	return slices.DeleteFunc(slices.Clone(rows), func(a tables.Access) bool { return a.Step != step })
}

// In a container where tracer cannot work, it says so at once, in one line.
func TestUselessContainer(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	// The command goes on for long. tracer must not wait for it.
	driver := in.Command(t.Context(), llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: "x", Tokens: 1000, Threads: 1, NoRepack: true, Repeat: 1 << 20,
		Pause: 10,
	}).Args
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		container testenv.Container
		through   []string // the command that runs tracer
		want      string   // part of the error
	}{
		"user namespace": {testenv.Container{User: true}, nil, "user namespace"},
		"no proc":        {testenv.Container{NoProc: true}, nil, "mount proc"},
		"no types":       {testenv.Container{First: "mount -t tmpfs tmpfs /sys/kernel/btf"}, nil, "/sys/kernel/btf"},
		"empty proc":     {testenv.Container{NoProc: true, First: "mount -t tmpfs tmpfs /proc"}, nil, "mount proc"},
		"capabilities": {
			testenv.Container{},
			[]string{"setpriv", "--bounding-set", "-sys_admin,-bpf", "--inh-caps", "-sys_admin,-bpf"},
			"CAP_BPF",
		},
		"seccomp": { // Docker's filter refuses bpf
			testenv.Container{First: "export " + testenv.RefuseCall(unix.SYS_BPF)}, []string{self}, "seccomp",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "capture")
			cmd := tc.container.Command(slices.Concat(tc.through, []string{tracerBinary, "-o", dir, "--"}, driver)...)
			stop := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
			defer stop.Stop()
			r := finish(t, cmd)
			if r.status != cli.Failure || !strings.HasPrefix(r.stderr, "tracer: ") ||
				!strings.Contains(r.stderr, tc.want) || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("status %d: %s, want %d and one line with %q", r.status, r.stderr, cli.Failure, tc.want)
			}
			if _, err := os.Stat(dir); err == nil {
				t.Error("a capture was written")
			}
			r = finish(t, tc.container.Command(append(tc.through, tracerBinary, "doctor")...))
			if r.status != cli.Failure || !strings.Contains(r.stdout+r.stderr, tc.want) ||
				strings.Count(r.stderr, "\n") > 1 {
				t.Errorf("doctor: status %d: %s%s, want %d and %q", r.status, r.stdout, r.stderr, cli.Failure, tc.want)
			}
		})
	}
	r := finish(t, testenv.Container{}.Command(tracerBinary, "doctor"))
	if r.status != cli.OK || !strings.Contains(r.stdout, "PID namespace") {
		t.Errorf("doctor in a container: status %d: %s%s, want 0 and a word of the PID namespace",
			r.status, r.stdout, r.stderr)
	}
}
