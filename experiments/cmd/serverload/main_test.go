package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "no server"},
		{[]string{"--clients", "0", "--", "s"}, "--clients 0"},
		{[]string{"--requests", "0", "--", "s"}, "--requests 0"},
		{[]string{"--tokens", "0", "--", "s"}, "--tokens 0"},
		{[]string{"--rounds", "0", "--", "s"}, "--rounds 0"},
		{[]string{"--on", "0s", "--", "s"}, "--on 0s"},
		{[]string{"--no-such-flag"}, "unknown flag"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), test.args, &stdout, &stderr)
		if code != 2 || !strings.HasPrefix(stderr.String(), "serverload: ") || !strings.Contains(stderr.String(), test.want) || strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("%q: exit %d, %q, want one line with %q", test.args, code, stderr.String(), test.want)
		}
	}
}

func TestFailureIsOneLine(t *testing.T) {
	for _, server := range []string{"/nonexistent/llama-server", "false"} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), []string{"--", server}, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "server") || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%s: exit %d, %q", server, code, stderr.String())
		}
	}
}
