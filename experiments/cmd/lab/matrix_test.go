package main

// This file tests "lab matrix", also with a real llama.cpp.

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/matrix"
	"tensorcast/experiments/pressure"
	"tensorcast/experiments/results"
	"tensorcast/internal/testenv"
)

// matrixFileOf writes a matrix with a tiny model. In half of a smaller one, llama.cpp's libraries would take the room.
func matrixFileOf(t *testing.T, strategies string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "matrix.yaml")
	text := "repeat: 2\ntokens: 4\nskip: 1\nthreads: 1\nmodels:\n  - {name: tiny, synth: --size 60MB --type Q8_0}\n" +
		"memory:\n  - {name: half, share: 0.5}\nstrategies:\n" + strategies
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMatrixUsage(t *testing.T) {
	good := matrixFileOf(t, "  - {name: plain}\n")
	testUsage(t, "matrix", []usageTest{
		{[]string{"x"}, "unknown command"},
		{[]string{"-f", good, "--model", "big", "--plan"}, `there is no model "big": they are tiny`},
	})
	for _, test := range []struct{ strategies, want string }{
		{"  - {name: plain, hepler: x}\n", `unknown key "hepler": did you mean "helper"?`},
		{"  - {name: x, helper: '{prefetch} --wait'}\n", "commands are lab, prefetchd"},
		{"  - {name: plain}\ncommands: {name: x}\n", `command "x": path: say where it is`},
		{"  - {name: x, helper: '{own} --pid {pid}'}\ncommands: {name: own, path: /no/such/binary}\n",
			"/no/such/binary: no such"},
	} {
		strategies, want := test.strategies, test.want
		code, stdout, stderr := lab(t.Context(), "matrix", "--plan", "-f", matrixFileOf(t, strategies))
		if code != 1 || stdout != "" || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, %q%q; want 1 and one line with %q", strategies, code, stdout, stderr, want)
		}
	}
	for model, want := range map[string]string{
		"--size 12MB --tpye Q8_0":              `model "tiny": synth: unknown flag: --tpye`,
		"--size 12MB --layers 2":               `model "tiny": synth: --size chooses the dimensions`,
		"--embd 7 --layers 1 --ff 7 --heads 2": `model "tiny": synth: embd`,
	} {
		text, err := os.ReadFile(good)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "matrix.yaml")
		text = bytes.Replace(text, []byte("--size 60MB --type Q8_0"), []byte(model), 1)
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := lab(t.Context(), "matrix", "--plan", "-f", path)
		if code != 1 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %q; want 1 and one line with %q", model, code, stderr, want)
		}
	}
	code, stdout, stderr := lab(t.Context(), "matrix", "--plan", "-f", good)
	if code != 0 || stderr != "" || !strings.Contains(stdout, "All together are 2 runs, which take about") {
		t.Errorf("exit %d, %q%q; want the plan", code, stdout, stderr)
	}
}

// The project's matrix takes less than two hours by its estimate, and the quick part of it less than ten minutes. It
// says why each combination is left out, and nothing else but a model that is not there keeps one from being measured.
func TestProjectMatrix(t *testing.T) {
	root, err := results.FindCheckout(".")
	if err != nil {
		t.Fatal(err)
	}
	for most, quick := range map[time.Duration]bool{2 * time.Hour: false, 10 * time.Minute: true} {
		f, err := (&matrixOptions{file: filepath.Join(root, matrixFile), quick: quick}).read()
		if err != nil {
			t.Fatal(err)
		}
		t.Chdir(root) // as its paths are seen
		models := &matrixModels{dir: t.TempDir(), progress: func(int64, int64, string) {}}
		p, err := matrix.NewPlan(t.Context(), f, models)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range p.Series {
			if s.Missing != nil && s.Model.Name != "real" && s.Model.Name != "real-routes" {
				t.Errorf("%s: %v", s.Model.Name, s.Missing)
			}
		}
		if took := p.Estimate(); took > most || took < most/10 {
			t.Errorf("quick %v: %v, want at most %v", quick, took, most)
		}
	}
}

// SIGINT leaves a whole document, and the same command then makes what is missing. Without root one line says so.
func TestMatrix(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel() // the commands mostly wait
	llamatest.ForTest(t)
	file := matrixFileOf(t, "  - {name: plain}\n  - {name: none, flags: --load-mode=none}\n  - {name: again}\n"+
		"left-out:\n  - {strategies: none, because: It does not fit.}\n")
	dir := t.TempDir()
	out := filepath.Join(dir, "new", "out")
	args := []string{"matrix", "-f", file, "-o", out, "--models", filepath.Join(dir, "models")}
	cmd, stdout, stderr := labProcess(t, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	document := filepath.Join(out, "tiny.json")
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(document); err == nil {
			break
		}
		select {
		case err := <-ended:
			if strings.Contains(stderr.String(), "put the model on one") ||
				strings.Contains(stderr.String(), pressure.ErrNoDirectIO.Error()) {
				t.Skip(stderr)
			}
			t.Fatalf("%v: %s%s", err, stdout, stderr)
		default:
		}
		if time.Since(begun) > 2*time.Minute {
			t.Fatalf("no document: %s%s", stdout, stderr)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, <-ended); code == 0 || !strings.Contains(stderr.String(), "goes on where it was") {
		t.Fatalf("exit %d: %s%s; want that it was interrupted", code, stdout, stderr)
	}
	var r pressure.Report
	if d := readSaved(t, document, results.Pressure, &r); !d.Interrupted || len(r.Runs) == 0 || len(r.Runs) == 4 {
		t.Fatalf("%d runs, interrupted %v", len(r.Runs), d.Interrupted)
	}
	before := len(r.Runs)
	cmd, stdout, stderr = labProcess(t, args...)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	r = pressure.Report{}
	d := readSaved(t, document, results.Pressure, &r)
	var runs []string
	for _, run := range r.Runs {
		runs = append(runs, run.Variant)
	}
	if d.Interrupted || strings.Join(runs, " ") != "plain again again plain" || len(r.Resumed) != 1 ||
		r.Resumed[0].AfterRuns != before || !strings.Contains(d.Command, " matrix -f ") {
		t.Errorf("%q, %+v, %q; want four runs, and that they went on after %d", runs, r.Resumed, d.Command, before)
	}
	if !strings.Contains(stderr.String(), "tiny: 4 runs in ") {
		t.Errorf("%s; want a line for the model", stderr)
	}
	if files, err := filepath.Glob(filepath.Join(out, "*")); err != nil || len(files) != 1 {
		t.Errorf("%q, %v; want the document alone", files, err)
	}
}
