package main

// This file tests "lab overhead": its flags, its errors and its output.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/procfs"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/overhead"
	"tensorcast/experiments/results"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
)

func TestOverheadUsage(t *testing.T) {
	testUsage(t, "overhead", []usageTest{
		{nil, "no model"},
		{[]string{"-m", "x", "--pairs", "5"}, "--pairs 5"},
		{[]string{"-m", "x", "--pairs", "7"}, "an even number"},
		{[]string{"-m", "x", "--tokens", "0"}, "--tokens 0"},
		{[]string{"-m", "x", "--threads", "0"}, "--threads 0"},
		{[]string{"-m", "x", "--settle", "-1s"}, "--settle -1s"},
		{[]string{"-m", "x", "--observer", "=c"}, "a name of its own"},
		{[]string{"-m", "x", "--observer", "op", "--observer", "op"}, "a name of its own"},
		{[]string{"-m", "x", "--observer", "strace"}, "give its command"},
		{[]string{"-m", "x", "--observer", "a=b {target}"}, "takes --whole"},
		{[]string{"trap", "x"}, "--pid"},
		{[]string{"trap", "--pid", "1"}, "accepts 1 arg"},
	})
}

func TestOverheadFails(t *testing.T) {
	code, _, stderr := lab(t.Context(), "overhead", "--", "false")
	want := "the target ended"
	if os.Geteuid() != 0 {
		want = "needs root"
	}
	if code != 1 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %q; want 1 and one line with %q", code, stderr, want)
	}
}

func TestOverheadObservers(t *testing.T) {
	o := overheadOptions{observers: []string{"none", "op", "trap", "mine=strace -p {pid} -o x=y"}}
	o.driver.Model, o.driver.Tokens, o.driver.Threads, o.Pairs = "m", 1, 1, overhead.LeastPairs
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	if got := o.Observers; got[0].Command != "" ||
		!strings.Contains(got[1].Command, "tracer --pid {pid} --detail op") ||
		!strings.HasSuffix(got[2].Command, " overhead trap --pid {pid} {ggml}") ||
		got[3] != (overhead.Observer{Name: "mine", Command: "strace -p {pid} -o x=y"}) {
		t.Errorf("%+v", got)
	}
}

// The trap is this command once more, on a real llama.cpp. An interrupted series prints and writes
// what it has.
func TestOverheadInterrupted(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	llamatest.ForTest(t)
	model := llamatest.Model(t, synth.Config{Layers: 2, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0,
		Seed: 1})
	path := filepath.Join(t.TempDir(), "pairs.json")
	this, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	traps := map[int]bool{}
	// When there is a second trap, the first round, which has pairs of both observers, is over.
	code, stdout, stderr := interruptedOnce(t, func(int) bool {
		all, err := procfs.AllProcs()
		if err != nil {
			t.Error(err)
		}
		for _, p := range all {
			if strings.HasPrefix(strings.Join(proc.CommandLine(p.PID), " "), this+" overhead trap --pid ") {
				traps[p.PID] = true
			}
		}
		return len(traps) >= 2
	}, "overhead", "-m", model, "-n", "16", "-t", "1",
		"--pairs", "10000", "--settle", "100ms", "--observer", "none", "--observer", "trap", "--save", path)
	if code != 1 || stderr != "lab overhead: interrupted by SIGINT\n" ||
		!strings.Contains(stdout, "INTERRUPTED after") {
		t.Fatalf("exit %d, %q, want 1 and that it was interrupted\n%s", code, stderr, stdout)
	}
	var r overhead.Report
	if d := readSaved(t, path, results.Overhead, &r); !r.Interrupted || len(r.Rows) != 2 || !d.Interrupted {
		t.Fatalf("%s, want 2 rows and that it was interrupted", d.Report)
	}
	for _, row := range r.Rows {
		if row.Error != "" || len(row.Pairs) == 0 || row.Plain <= 0 || (row.Probes > 0) != (row.Name == "trap") {
			t.Errorf("%+v", row)
		}
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", r.Run.PID)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the target is still there: %v", err)
	}
}
