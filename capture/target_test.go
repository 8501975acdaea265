package capture

// This file tests what is guessed from a target's command line.

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestHints(t *testing.T) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	got := fileHints([]string{"llama-cli", "-m", "/models/a.gguf", "--model-draft=/models/b=c.gguf", "--model=d.gguf"},
		os.Getpid())
	for _, want := range []string{"/models/a.gguf", "/models/b=c.gguf", filepath.Join(dir, "d.gguf")} {
		if !slices.Contains(got, want) {
			t.Errorf("hints %q lack %q", got, want)
		}
	}
}
