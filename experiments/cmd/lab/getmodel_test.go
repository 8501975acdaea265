package main

// This file tests "lab getmodel": its output, and that it leaves links of the right kind.

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/gguf"
)

func TestGetmodel(t *testing.T) {
	m := llamatest.Gemma(t)
	link := filepath.Join(t.TempDir(), "gemma.gguf")
	code, stdout, stderr := lab(t.Context(), "getmodel", "--link", link)
	if code != 0 || stdout != m.File+"\n" || strings.Count(stderr, "\n") != 1 ||
		!strings.Contains(stderr, "Gemma Terms of Use") || !strings.Contains(stderr, m.Terms) {
		t.Errorf("exit %d, %q, %q; want %s and whose model it is", code, stdout, stderr, m.File)
	}
	f, err := gguf.Open(link)
	if err != nil {
		t.Fatal(err)
	}
	if arch, _ := f.String("general.architecture"); arch != "gemma3" {
		t.Errorf("the model is a %q, want gemma3", arch)
	}
	if terms, err := os.ReadFile(m.Terms); err != nil || !strings.Contains(string(terms), "Gemma") {
		t.Errorf("%d bytes of terms, %v", len(terms), err)
	}
	testUsage(t, "getmodel", []usageTest{{[]string{"more"}, "more"}})
}
