package ggml

// This file tests which files are said to name functions of ggml.

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files with functions of ggml, and those that only call them, name them. A stripped program and other files do not,
// whatever text they have in them.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	library := compile(t, "-shared", "-fPIC")
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	build := func(name, source string, flags ...string) string {
		t.Helper()
		out := filepath.Join(dir, name)
		runCommand(t, "gcc", append([]string{"-w", "-o", out, write(name+".c", source)}, flags...)...)
		return out
	}
	const own = `int ggml_add(void) { return 0; } int main(void) { return ggml_add(); }`
	for path, want := range map[string]bool{
		library: true,
		build("caller.so", "int ggml_add(void); int call(void) { return ggml_add(); }", "-shared", "-fPIC"): true,
		build("static", own):         true,
		build("stripped", own, "-s"): false,
		build("speaker", `const char *s = "ggml_add"; int main(void) { return s != 0; }`):  false,
		build("other", `int my_ggml_add(void) { return 0; } int main(void) { return 0; }`): false,
		write("script", "#!/bin/sh\nggml_add\n"):                                           false,
		write("empty", ""):                                                                 false,
	} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got, err := Names(f); got != want || err != nil {
			t.Errorf("Names of %s = %v, %v; want %v", filepath.Base(path), got, err, want)
		}
	}
}

// A text is found wherever the pieces end in which it is read.
func TestContains(t *testing.T) {
	const text = "\x00ggml_"
	const piece = 64 << 10
	for _, before := range []int{0, 1, piece - 6, piece - 5, piece - 3, piece - 1, piece, piece + 1, 3*piece + 3} {
		for _, after := range []int{0, 1, 100 << 10} {
			all := strings.Repeat("g", before) + text + strings.Repeat("g", after)
			if found, err := contains(strings.NewReader(all), text); !found || err != nil {
				t.Errorf("%d bytes before and %d after: %v, %v", before, after, found, err)
			}
			all = strings.Repeat("g", before) + text[:5] + strings.Repeat("g", after)
			if found, err := contains(strings.NewReader(all), text); found || err != nil {
				t.Errorf("%d bytes before and %d after, cut: %v, %v", before, after, found, err)
			}
		}
	}
}
