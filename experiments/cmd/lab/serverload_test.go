package main

// This file tests "lab serverload": its flags, its errors and its output.

import (
	"strings"
	"testing"
)

func TestServerloadUsage(t *testing.T) {
	testUsage(t, "serverload", []usageTest{
		{nil, "no server"},
		{[]string{"--clients", "0", "--", "s"}, "--clients 0"},
		{[]string{"--requests", "0", "--", "s"}, "--requests 0"},
		{[]string{"--tokens", "0", "--", "s"}, "--tokens 0"},
		{[]string{"--rounds", "0", "--", "s"}, "--rounds 0"},
		{[]string{"--on", "0s", "--", "s"}, "--on 0s"},
	})
}

func TestServerloadFails(t *testing.T) {
	for _, server := range []string{"/nonexistent/llama-server", "false"} {
		if code, _, stderr := lab(t.Context(), "serverload", "--", server); code != 1 ||
			!strings.Contains(stderr, "server") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %q; want 1 and one line about the server", server, code, stderr)
		}
	}
}
