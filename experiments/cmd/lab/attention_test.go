package main

// This file tests "lab attention": its flags, its errors and its output.

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAttentionUsage(t *testing.T) {
	testUsage(t, "attention", []usageTest{
		{[]string{"--dim", "0"}, "--dim 0"},
		{[]string{"--positions", "2048,-1"}, "--positions -1"},
		{[]string{"--tolerance", "-0.5"}, "--tolerance"},
		{[]string{"--tolerance", "0.1,inf"}, "--tolerance"},
		{[]string{"--leave", "2"}, "--leave 2"},
		{[]string{"--key-digits", "3"}, "--key-digits 3"},
		{[]string{"--json", "--markdown"}, "json markdown"},
		{[]string{"--model", "m.gguf"}, "text"},
		{[]string{"more"}, "more"},
	})
}

func TestAttentionFails(t *testing.T) {
	code, _, stderr := lab(t.Context(), "attention", "--model", "/nonexistent/m.gguf", "--text", "/nonexistent/text")
	if code != 1 || !strings.Contains(stderr, "no such file") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %q; want 1 and one line that there is no such file", code, stderr)
	}
}

func TestAttention(t *testing.T) {
	args := []string{"attention", "--dim", "16", "--positions", "100,200", "--tolerance", "none", "--heads", "2",
		"--group", "2", "--pairs", "2"}
	for format, lines := range map[string]int{"": 1 + 6, "--markdown": 2 + 6, "--json": -1} {
		with := args
		if format != "" {
			with = append([]string{"attention", format}, args[1:]...)
		}
		code, stdout, stderr := lab(t.Context(), with...)
		if code != 0 || stderr != "" {
			t.Fatalf("%s: exit %d, %s; want 0", format, code, stderr)
		}
		if lines < 0 {
			var r attentionReport
			if err := json.Unmarshal([]byte(stdout), &r); err != nil || len(r.Rows) != 6 || r.Interrupted {
				t.Fatalf("%v: %+v, want 6 rows", err, r)
			}
			if r := r.Rows[5]; r.Workload != "outliers" || r.Top != 12 || r.Speedup <= 0 {
				t.Errorf("%+v", r)
			}
			continue
		}
		got := strings.Split(strings.TrimSpace(stdout), "\n")
		if len(got) != lines || !strings.Contains(got[lines-1], "outliers") || !strings.Contains(got[0], "speedup") {
			t.Errorf("%s:\n%s", format, stdout)
		}
	}
}

// An interrupted series prints the rows that it has.
func TestAttentionInterrupted(t *testing.T) {
	args := []string{"attention", "--dim", "16", "--positions", "100", "--heads", "2", "--group", "2", "--pairs",
		"100", "--tolerance", strings.Repeat("0.05,", 20_000) + "none"}
	for _, format := range []string{"text", "--markdown", "--json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			with := slices.Clone(args)
			if format != "text" {
				with = append(with, format)
			}
			code, stdout, stderr := interrupted(t, 2*time.Second, with...)
			if code != 1 || stderr != "lab attention: interrupted by SIGINT\n" {
				t.Fatalf("exit %d, %q; want 1 and that it was interrupted", code, stderr)
			}
			if format != "--json" {
				if !strings.Contains(stdout, "INTERRUPTED") || !strings.Contains(stdout, "flat") {
					t.Errorf("%s\nwant INTERRUPTED and a row", stdout)
				}
				return
			}
			var r attentionReport
			if err := json.Unmarshal([]byte(stdout), &r); err != nil || !r.Interrupted || len(r.Rows) == 0 ||
				len(r.Rows) >= 60_000 {
				t.Errorf("%v: %s", err, stdout)
			}
		})
	}
}
