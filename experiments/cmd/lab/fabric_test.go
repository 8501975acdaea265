package main

// This file tests "lab fabric": its flags, its errors and its output.

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestFabricUsage(t *testing.T) {
	testUsage(t, "fabric", []usageTest{
		{nil, "want a model"},
		{[]string{"-m", "m.gguf", "--turns", "0"}, "0 turns"},
		{[]string{"-m", "m.gguf", "-n", "1"}, "1 tokens"},
		{[]string{"-m", "m.gguf", "--streams", "0"}, "[0] streams"},
		{[]string{"-m", "m.gguf", "--streams", "8", "--batch", "16"}, "[8] streams"},
		{[]string{"-m", "m.gguf", "--prompt", "0"}, "a prompt of 0"},
		{[]string{"-m", "m.gguf", "--figure", "f.bmp"}, "f.bmp"},
		{[]string{"-m", "m.gguf", "--pool", "1"}, "--pool"},
		{[]string{"argument"}, "argument"},
	})
}

func TestFabricFails(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.gguf")
	if code, stdout, stderr := lab(t.Context(), "fabric", "-m", missing); code != 1 || stdout != "" ||
		strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "missing.gguf") {
		t.Errorf("exit %d, %q, %q; want 1 and one line that names the file", code, stdout, stderr)
	}
}
