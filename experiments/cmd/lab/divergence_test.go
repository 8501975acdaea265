package main

// This file tests "lab divergence": its flags, its errors and its output.

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/experiments/divergence"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/results"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
)

func TestDivergenceUsage(t *testing.T) {
	with := func(args ...string) []string {
		return append([]string{"-m", "x", "--text", "y", "--candidate", "c=z"}, args...)
	}
	testUsage(t, "divergence", []usageTest{
		{nil, "no reference"},
		{[]string{"-m", "x"}, "nothing to compare"},
		{[]string{"-m", "x", "--candidate", "c=z"}, "no text"},
		{with("--candidate", "z"), "a name of its own and a file"},
		{with("--candidate", "=z"), "a name of its own and a file"},
		{with("--candidate", "d="), "a name of its own and a file"},
		{with("--candidate", "c=other"), "a name of its own and a file"},
		{with("--bytes", "d=1"), `no candidate has the name "d"`},
		{with("--bytes", "c"), "bytes per weight"},
		{with("--bytes", "c=-1"), "bytes per weight"},
		{with("--bytes", "c=NaN"), "bytes per weight"},
		{with("-c", "3"), "--ctx 3"},
		{with("--limit", "-1"), "--limit -1"},
		{with("-t", "0"), "--threads 0"},
		{with("-j", "-1"), "--parallel -1"},
		{with("more.gguf"), "unexpected argument"},
	})
}

func TestDivergence(t *testing.T) {
	llamatest.ForTest(t)
	model := llamatest.Model(t, synth.Config{Layers: 1, Embd: 64, FF: 96, Heads: 2, KVHeads: 1, Type: gguf.Q8_0,
		Seed: 1})
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("Once upon a time. ", 20)), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"divergence", "-m", model, "--candidate", "it=self=" + model, "--candidate", "same=" + model,
		"--bytes", "same=0.25", "--text", text, "-c", "32", "--limit", "3"}
	if code, _, stderr := lab(t.Context(), args...); code != 1 || !strings.Contains(stderr, "self=") ||
		strings.Count(stderr, "\n") != 1 {
		t.Errorf("a model that is not there: exit %d, %q; want 1 and one line that names it", code, stderr)
	}
	args[4] = "it=" + model
	for _, more := range [][]string{{}, {"--markdown"}} {
		if code, stdout, _ := lab(t.Context(), append(args, more...)...); code != 0 ||
			strings.Contains(stdout, "| same |") != (len(more) > 0) || !strings.Contains(stdout, "1.000000") {
			t.Errorf("%v: exit %d, %s", more, code, stdout)
		}
	}
	path := filepath.Join(t.TempDir(), "report.json")
	for _, flags := range [][]string{{"--json"}, {"--save", path}} {
		code, stdout, _ := lab(t.Context(), append(args, flags...)...)
		data := []byte(stdout)
		var r divergence.Report
		if len(flags) > 1 {
			data = readSaved(t, path, results.Divergence, &r).Report
		}
		if err := json.Unmarshal(data, &r); code != 0 || err != nil || len(r.Rows) != 2 ||
			r.Rows[1].BytesPerWeight != 0.25 || r.Rows[0].KL != 0 || r.Rows[0].Predictions != 45 {
			t.Errorf("exit %d, %v, %s", code, err, data)
		}
	}
}
