package main

// This file tests "lab getllama": its flags, its errors and its output.

import (
	"os"
	"path/filepath"
	"tensorcast/experiments/llama/llamatest"
	"testing"
)

func TestGetllamaSymlink(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	for _, target := range []string{"/first", "/second"} { // made, then replaced
		if err := symlink(target, link); err != nil {
			t.Fatal(err)
		}
		if got, err := os.Readlink(link); err != nil || got != target {
			t.Errorf("the link leads to %q, %v; want %s", got, err, target)
		}
	}

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("keep"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, dir, filepath.Join(dir, "none", "link")} {
		if err := symlink("/third", path); err == nil {
			t.Errorf("linked %s, want an error", path)
		}
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "keep" {
		t.Errorf("the file is %q, %v; want keep", content, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("left %v, %v; want 2 entries", entries, err)
	}
}

func TestGetllama(t *testing.T) {
	in := llamatest.ForTest(t)
	link := filepath.Join(t.TempDir(), "llama")
	code, stdout, stderr := lab(t.Context(), "getllama", "--link", link)
	if target, err := os.Readlink(link); code != 0 || stderr != "" || stdout != in.Dir+"\n" || err != nil ||
		target != in.Dir {
		t.Errorf("exit %d, %q, %q; the link leads to %q, %v; want %q", code, stdout, stderr, target, err, in.Dir)
	}
	testUsage(t, "getllama", []usageTest{{[]string{"more"}, "more"}})
}
