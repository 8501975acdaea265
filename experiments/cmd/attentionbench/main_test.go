package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"tensorcast/fabric/attention/measure"
)

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--dim", "0"}, "--dim 0"},
		{[]string{"--positions", "2048,-1"}, "--positions -1"},
		{[]string{"--tolerance", "-0.5"}, "--tolerance"},
		{[]string{"--tolerance", "0.1,inf"}, "--tolerance"},
		{[]string{"--leave", "2"}, "--leave 2"},
		{[]string{"--key-digits", "3"}, "--key-digits 3"},
		{[]string{"--json", "--markdown"}, "json markdown"},
		{[]string{"--model", "m.gguf"}, "text"},
		{[]string{"more"}, "more"},
		{[]string{"--no-such-flag"}, "unknown flag"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), test.args, &stdout, &stderr)
		message := stderr.String()
		if code != 2 || !strings.HasPrefix(message, "attentionbench: ") || !strings.Contains(message, test.want) || strings.Count(message, "\n") != 1 ||
			stdout.Len() > 0 {
			t.Errorf("%q: exit %d, %q, want one line with %q", test.args, code, message, test.want)
		}
	}
}

func TestFailureIsOneLine(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"--model", "/nonexistent/m.gguf", "--text", "/nonexistent/text"}, &stdout, &stderr)
	if code != 1 || !strings.Contains(stderr.String(), "no such file") || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("exit %d, %q", code, stderr.String())
	}
}

func TestRun(t *testing.T) {
	args := []string{"--dim", "16", "--positions", "100,200", "--tolerance", "none", "--heads", "2", "--group", "2", "--pairs", "2"}
	for format, lines := range map[string]int{"": 1 + 6, "--markdown": 2 + 6, "--json": -1} {
		var stdout, stderr bytes.Buffer
		with := args
		if format != "" {
			with = append([]string{format}, args...)
		}
		if code := run(t.Context(), with, &stdout, &stderr); code != 0 || stderr.Len() > 0 {
			t.Fatalf("%s: exit %d, %s", format, code, stderr.String())
		}
		if lines < 0 {
			var rows []measure.Row
			if err := json.Unmarshal(stdout.Bytes(), &rows); err != nil || len(rows) != 6 {
				t.Fatalf("%v: %+v", err, rows)
			}
			if r := rows[5]; r.Workload != "outliers" || r.Top != 12 || r.Speedup <= 0 {
				t.Errorf("%+v", r)
			}
			continue
		}
		got := strings.Split(strings.TrimSpace(stdout.String()), "\n")
		if len(got) != lines || !strings.Contains(got[lines-1], "outliers") || !strings.Contains(got[0], "speedup") {
			t.Errorf("%s:\n%s", format, stdout.String())
		}
	}
}
