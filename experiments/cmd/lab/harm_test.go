package main

// This file tests "lab harm": its flags, its errors and its output.

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/experiments/harm"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/results"
	"tensorcast/internal/testenv"
)

func TestHarmUsage(t *testing.T) {
	testUsage(t, "harm", []usageTest{
		{nil, "no helper"},
		{[]string{"--helper", "h", "model.gguf"}, "model.gguf"},
		{[]string{"--helper", "h", "--pairs", "0"}, "--pairs 0"},
		{[]string{"--helper", "h", "--parallel", "0"}, "--parallel 0"},
		{[]string{"--helper", "h", "--settle", "0"}, "--settle 0"},
		{[]string{"--helper", "h", "--settle", "8", "--tokens", "8"}, "--tokens 8"},
		{[]string{"--helper", "h", "--threads", "0"}, "--threads 0"},
		{[]string{"--helper", "h", "--x", "0"}, "--x 0"},
		{[]string{"--helper", "h", "--x", "0.5,NaN"}, "--x NaN"},
		{[]string{"--helper", "h", "--hold", "-1s"}, "--hold -1s"},
		{[]string{"--helper", "h", "--timeout", "0s"}, "--timeout 0s"},
		{[]string{"--helper", "h", "--scenes", "instant:much"}, `--scenes: scene "instant:much"`},
		{[]string{"--helper", "h", "--scenes", "none,nothing"}, `--scenes: scene "nothing"`},
		{[]string{"--helper", "h", "--also", "two.gguf"}, "--also: several models want --server"},
		{[]string{"--helper", "h", "--also", "b", "--server", "s", "--parallel", "2"}, "one pair at a time"},
		{[]string{"--helper", "p -- {target}", "--server", "s"}, "--server: a helper that starts"},
		{[]string{"--helper", "h", "--size", "much"}, `--size "much"`},
	})
}

func TestHarmFails(t *testing.T) {
	code, _, stderr := lab(t.Context(), "harm", "--helper", "true", "-m", filepath.Join(t.TempDir(), "none.gguf"),
		"--dir", t.TempDir())
	want := "no such file"
	if os.Geteuid() != 0 {
		want = "needs root"
	}
	if code != 1 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %q; want 1 and one line with %q", code, stderr, want)
	}
}

// This runs a real llama.cpp on a model that is made for it. A helper that kills it is harm, which
// the exit code says. A series that is interrupted prints and writes its whole pairs, and leaves
// nothing behind.
func TestHarm(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	llamatest.ForTest(t)
	count := filepath.Join(t.TempDir(), "count")
	for name, test := range map[string]struct {
		helper string
		pairs  string
		stderr string
	}{
		"harm": {"kill -9 {pid}", "1", "lab harm: the target was lost in 1 runs with the helper and in 0 without it\n"},
		// The second helper interrupts its parent when the first pair is whole.
		"interrupted": {"sh -c 'echo >> " + count + "; [ $(wc -l < " +
			count + ") = 2 ] && kill -INT $PPID; exec sleep 1000'", "10000", "lab harm: interrupted by SIGINT\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "runs.json")
			cmd, out, errs := labProcess(t, "harm", "--helper", test.helper, "--size", "50MB", "--dir", dir,
				"--scenes", "instant:5MB", "--pairs", test.pairs, "--hold", "10ms", "-t", "1", "-n", "8",
				"--settle", "3", "--save", path)
			code := exitCode(t, cmd.Run())
			stdout, stderr := out.String(), errs.String()
			if strings.Contains(stderr, "a file system in memory") {
				t.Skip("set TMPDIR to a directory on a disk")
			}
			if code != 1 || stderr != test.stderr || !strings.Contains(stdout, "instant:5MB") {
				t.Fatalf("exit %d, %q, want 1 and %q\n%s", code, stderr, test.stderr, stdout)
			}
			var r harm.Report
			d := readSaved(t, path, results.Harm, &r)
			if r.Interrupted != (name == "interrupted") || len(r.Runs) < 2 || len(r.Runs)%2 != 0 ||
				r.TokenBytes < 40e6 || r.TokenBytes > r.ModelBytes || d.Interrupted != r.Interrupted {
				t.Fatalf("%+v", d)
			}
			for _, run := range r.Runs {
				if killed := run.Helped && name == "harm"; run.Outcome.IsLost() != killed || !run.TextSame ||
					run.PagesLeft > 0 {
					t.Errorf("%+v", run)
				}
			}
			left, err := fs.Glob(os.DirFS(dir), "*")
			if err != nil || len(left) != 1 {
				t.Errorf("files %q, %v; want one", left, err)
			}
		})
	}
}
