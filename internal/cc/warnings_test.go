package cc_test

// This file compiles the project's C code with warnings.

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/ggml"
	"tensorcast/internal/cc"
)

// All C code of the project that is not for the kernel compiles without a warning. On users'
// machines it is compiled without these flags, because their compilers may have other warnings.
func TestWarnings(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{"bpf", ".git", "bin", "dist"}, entry.Name()) {
			return filepath.SkipDir
		}
		if entry.IsDir() || filepath.Ext(path) != ".c" {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen[entry.Name()] = true
		// Package ggml inserts a table into some sources. Others stay unchanged.
		text := ggml.IncludeGathers(string(source))
		err = cc.Compile(t.Context(), filepath.Join(t.TempDir(), "out"), text,
			"-c", "-fPIC", "-Wall", "-Wextra", "-Werror",
			"-I", filepath.Dir(path), "-I", filepath.Join(root, "include"))
		if errors.Is(err, cc.ErrNoCompiler) {
			t.Skip(err)
		}
		if err != nil {
			name, _ := filepath.Rel(root, path)
			t.Errorf("%s: %v", name, strings.TrimSpace(err.Error()))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"shim.c", "llamarun.c", "tfmbs_device.c", "tfmbs_backend.c", "tfmbs_products.c", "tfmbs_intercept.c", "hog.c",
	} {
		if !seen[name] {
			t.Errorf("%s was not found", name)
		}
	}
}
