package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/experiments/pressure"
)

func TestPressureUsage(t *testing.T) {
	testUsage(t, "pressure", []usageTest{
		{nil, "no model"},
		{[]string{"-m", "x"}, "give the limit"},
		{[]string{"-m", "x", "--x", "0.5", "--limit", "1GB"}, "give the limit"},
		{[]string{"-m", "x", "--x", "-1"}, "--x -1"},
		{[]string{"-m", "x", "--x", "NaN"}, "--x NaN"},
		{[]string{"-m", "x", "--limit", "much"}, `--limit "much"`},
		{[]string{"-m", "x", "--x", "1", "--weights", "0"}, `--weights "0"`},
		{[]string{"-m", "x", "--x", "1", "--repeat", "0"}, "--repeat 0"},
		{[]string{"-m", "x", "--x", "1", "--tokens", "0"}, "--tokens 0"},
		{[]string{"-m", "x", "--x", "1", "--readahead", "-1"}, "--readahead -1"},
		{[]string{"-m", "x", "--x", "1", "--variant", "=h"}, "a name of its own"},
		{[]string{"-m", "x", "--x", "1", "--variant", "a", "--variant", "a=h"}, "a name of its own"},
		{[]string{"-m", "x", "--x", "1", "--variant", "a", "--variant", "a again", "--noise"}, "takes that name"},
	})
}

func TestPressureFails(t *testing.T) {
	code, _, stderr := lab(t.Context(), "pressure", "-m", filepath.Join(t.TempDir(), "none.gguf"), "--x", "0.5", "--", "true")
	want := "no such file"
	if os.Geteuid() != 0 {
		want = "needs root"
	}
	if code != 1 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

func TestParseVariant(t *testing.T) {
	for text, want := range map[string]pressure.Variant{
		"plain":                              {Name: "plain"},
		"both=bin/prefetchd --pid {pid}":     {Name: "both", Helper: "bin/prefetchd --pid {pid}"},
		"a=h --x=1 :: --load-mode=none -t 1": {Name: "a", Helper: "h --x=1", Flags: "--load-mode=none -t 1"},
		"unmapped :: --load-mode=none":       {Name: "unmapped", Flags: "--load-mode=none"},
		"odd name = h":                       {Name: "odd name", Helper: "h"},
	} {
		if got := parseVariant(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

// The file of --save is written besides the table.
func TestSave(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runs.json")
	var stdout bytes.Buffer
	if err := (&output{save: path}).print(&stdout, &pressure.Report{X: 2, Variants: []pressure.Variant{{Name: "plain"}}, Summaries: []pressure.Summary{{Runs: 1}}}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r pressure.Report
	if err := json.Unmarshal(b, &r); err != nil || r.X != 2 || !strings.HasPrefix(stdout.String(), "model: ") {
		t.Errorf("%s, %v; printed %q", b, err, stdout.String())
	}
}
