package accounting

// This file tests the source of ops, and checks a real tracer with it on a small scale.

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/event"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
)

var tracerBinary string

func TestMain(m *testing.M) {
	path, remove, err := testenv.BuildPackage("tracer", "tensorcast/cmd/tracer")
	if err != nil {
		fmt.Fprintln(os.Stderr, "build tracer:", err)
		os.Exit(1)
	}
	tracerBinary = path
	status := m.Run()
	remove()
	os.Exit(status)
}

func newSource(t *testing.T) *Source {
	t.Helper()
	s, err := NewSource(t.Context(), t.TempDir(), llamatest.ForTest(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSource(t *testing.T) {
	s := newSource(t)
	for _, test := range []struct {
		load Load
		want Count
	}{
		{Load{Ops: 1}, Count{Graphs: 1, Ops: 1000, WeightOps: 876, Threads: 1}},
		{Load{Ops: 41, Nodes: 10}, Count{Graphs: 5, Ops: 50, WeightOps: 45, Threads: 1}},
		{Load{Ops: 40, Nodes: 8, Threads: 2, Rate: 1e6}, Count{Graphs: 5, Ops: 40, WeightOps: 40, Threads: 2}},
	} {
		args := s.Args(test.load)
		out, err := exec.Command(args[0], args[1:]...).Output()
		if err != nil {
			t.Fatal(err)
		}
		var got Count
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if got.Seconds <= 0 || got.Rate <= 0 {
			t.Errorf("%+v: %s", test.load, out)
		}
		got.Seconds, got.Rate = 0, 0
		if got != test.want {
			t.Errorf("%+v: %+v, want %+v", test.load, got, test.want)
		}
	}
}

func TestSourceRefuses(t *testing.T) {
	s := newSource(t)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("GGUF? no"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{nil, 2, "no model"},
		{[]string{"-m", s.model, "--ops", "x"}, 2, "--ops x"},
		{[]string{"-m", s.model, "--nodes", "1"}, 2, "--nodes 1"},
		{[]string{"-m", s.model, "more"}, 2, "more"},
		{[]string{"-m", text}, 1, "not a GGUF file"},
		{[]string{"-m", text + "s"}, 1, "No such file"},
		{[]string{"-m", s.model, "--lib", t.TempDir()}, 1, "no libggml-base.so"},
	} {
		cmd := exec.Command(s.program, test.args...)
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != test.status || !strings.HasPrefix(string(out), "opsource: ") ||
			!strings.Contains(string(out), test.want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%q: %d, %s; want %d and one line with %q", test.args, cmd.ProcessState.ExitCode(), out,
				test.status, test.want)
		}
	}
}

// TestAccounting does on a small scale what the instrument does with ten million ops.
func TestAccounting(t *testing.T) {
	testenv.NeedRoot(t)
	s := newSource(t)
	// There is room for all of them, however late the reader is.
	room := []string{"--buffer", "65536"}
	for _, test := range []struct {
		name  string
		load  Load
		flags []string
		loss  bool
	}{
		{name: "steady", load: Load{Ops: 100_000, Rate: 50_000}, flags: room},
		{name: "small graphs", load: Load{Ops: 20_000, Rate: 20_000, Nodes: 20}, flags: room},
		{name: "two threads", load: Load{Ops: 20_000, Rate: 20_000, Nodes: 500, Threads: 2}, flags: room},
		// The pauses between graphs let even a late reader see the beginning of some graph.
		{
			name: "a buffer of 4 KiB", load: Load{Ops: 100_000, Rate: 100_000}, flags: []string{"--buffer", "4"},
			loss: true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, err := s.Run(t.Context(), tracerBinary, filepath.Join(t.TempDir(), "capture"), test.load, test.flags...)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Check(); err != nil {
				t.Errorf("%v\n%+v", err, a)
			}
			if loss := a.Counters.OpsLost > 0; loss != test.loss {
				t.Errorf("lost: %d ops; want any: %v", a.Counters.OpsLost, test.loss)
			}
		})
	}
}

// TestCheck checks that each sum that is wrong is found.
func TestCheck(t *testing.T) {
	good := Account{
		Count:    Count{Graphs: 2, Ops: 100, WeightOps: 80, Threads: 2},
		Counters: event.Counters{Hits: 200, OtherThreads: 100, NoWeight: 20, OpsSent: 80, Received: 80}, Steps: 2,
		Rows: 80,
	}
	lossy := good
	lossy.Counters.OpsSent, lossy.Counters.Received, lossy.Counters.OpsLost, lossy.Counters.Unfinished = 70, 70, 9, 1
	lossy.Rows, lossy.Steps = 60, 1
	missed := good
	missed.Counters.Hits, missed.Counters.OtherThreads, missed.Counters.Misses = 195, 95, 5
	for i, a := range []Account{good, lossy, missed} {
		if err := a.Check(); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	for want, change := range map[string]func(*Account){
		"threads x ops":      func(a *Account) { a.Count.Ops++ },
		"against hits":       func(a *Account) { a.Counters.OpsLost++ },
		"against sent":       func(a *Account) { a.Counters.OpsSent++ },
		"another thread":     func(a *Account) { a.Counters.OtherThreads--; a.Counters.NoWeight++ },
		"want of a weight":   func(a *Account) { a.Count.WeightOps++ },
		"with a weight that": func(a *Account) { a.Rows-- },
		"steps":              func(a *Account) { a.Steps++ },
	} {
		a := good
		change(&a)
		if err := a.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
