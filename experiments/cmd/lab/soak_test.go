package main

// This file tests "lab soak": its flags, its errors and its output.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/results"
	"tensorcast/experiments/soak"
	"tensorcast/internal/testenv"
)

func TestSoakUsage(t *testing.T) {
	testUsage(t, "soak", []usageTest{
		{[]string{"model.gguf"}, "model.gguf"},
		{[]string{"--minutes", "0"}, "--minutes 0"},
		{[]string{"--minutes", "NaN"}, "--minutes NaN"},
		{[]string{"--threads", "0"}, "--threads 0"},
		{[]string{"--tokens", "0"}, "--tokens 0"},
		{[]string{"--size", "much"}, `--size "much"`},
	})
}

// An interrupted soak prints and writes a whole report without findings, and leaves nothing behind.
func TestSoakInterrupted(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	llamatest.ForTest(t)
	dir, saved := t.TempDir(), filepath.Join(t.TempDir(), "soak.json")
	args := []string{"soak", "-q", "--minutes", "60", "--size", "50MB", "-t", "1", "-n", "12", "--dir", dir,
		"--save", saved}
	for _, name := range []string{"prefetchd", "tracer"} {
		program, remove, err := testenv.BuildPackage(name, "tensorcast/cmd/"+name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(remove)
		args = append(args, "--"+name, program)
	}
	targets := map[string]bool{}
	code, stdout, stderr := interruptedOnce(t, func(pid int) bool {
		// prefetchd --auto sees its second target: each lane had a life from beginning to end.
		found, err := filepath.Glob("/proc/[0-9]*/comm")
		if err != nil {
			t.Error(err)
		}
		for _, path := range found {
			if name, err := os.ReadFile(path); err == nil && string(name) == fmt.Sprintf("soak-b-%d\n", pid) {
				targets[path] = true
			}
		}
		return len(targets) == 2
	}, args...)
	if strings.Contains(stderr, "a file system in memory") {
		t.Skip("set TMPDIR to a directory on a disk")
	}
	if code != 1 || stderr != "lab soak: interrupted by SIGINT\n" || !strings.Contains(stdout, "interrupted") {
		t.Fatalf("exit %d, %q, want 1 and that it was interrupted\n%s", code, stderr, stdout)
	}
	var r soak.Report
	d := readSaved(t, saved, results.Soak, &r)
	if !r.Interrupted || len(r.Findings) > 0 || r.Targets == 0 || r.Checks != r.Targets || !d.Interrupted {
		t.Errorf("%+v, want an interrupted report without findings", r)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files %v, %v; want none", left, err)
	}
}
