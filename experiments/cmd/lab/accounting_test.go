package main

// This file tests "lab accounting": its flags, its errors and its output.

import (
	"os"
	"strings"
	"testing"
)

func TestAccountingUsage(t *testing.T) {
	testUsage(t, "accounting", []usageTest{
		{[]string{"--ops", "0"}, "--ops 0"},
		{[]string{"--rate", "-1"}, "--rate -1"},
		{[]string{"more"}, "more"},
	})
}

func TestAccountingFails(t *testing.T) {
	code, _, stderr := lab(t.Context(), "accounting", "--tracer", "/nonexistent/tracer")
	want := "no such file"
	if os.Geteuid() != 0 {
		want = "needs root"
	}
	if code != 1 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %q; want 1 and one line with %q", code, stderr, want)
	}
}
