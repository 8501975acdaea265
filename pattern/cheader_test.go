package pattern_test

// This file compiles the C header of a cycle.

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/pattern"
)

// The header compiles as C and C++ without a warning, and a program that includes it finds the
// contents of the cycle.
func TestHeader(t *testing.T) {
	c := &pattern.Cycle{
		Files: []pattern.CycleFile{{Name: `odd *name??.gguf`, Size: 9_000_000_000,
			Fingerprint: strings.Repeat("0a", 16)},
			{Name: "b.gguf", Size: 5000, Fingerprint: strings.Repeat("1b", 16)}},
		Reads: []pattern.CycleRead{
			{Tensor: "token_embd.weight", Op: "GET_ROWS", Offset: 32, Length: 4096, Slice: 128, Slices: 1, Nanos: -1},
			{Tensor: `a "quote", a \, ??/ and é7`, Op: "MUL_MAT", Offset: 8_000_000_000, Length: 64, Nanos: 5},
			{File: 1, Tensor: "blk.0.ffn_down.weight", Op: "MUL_MAT", Offset: 96, Length: 4096, Nanos: 5},
			{File: 1, Tensor: "blk.0.ffn_down.weight", Op: "MUL_MAT", Offset: 96, Length: 4096, Nanos: 5},
		},
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var header, want strings.Builder
	if err := c.WriteHeader(&header, ""); err != nil {
		t.Fatal(err)
	}
	for _, r := range c.Reads {
		fmt.Fprintf(&want, "%s %d %d\n", r.Tensor, r.Offset, r.Length)
	}
	write("access_pattern.h", header.String())
	const program = `#include "access_pattern.h"
#include "access_pattern.h"
#include <stdio.h>
int main(void) {
	size_t i;
	for (i = 0; i < PER_TOKEN_PATTERN_LENGTH; i++)
		printf("%s %lu %lu\n", PER_TOKEN_PATTERN[i].name, (unsigned long)PER_TOKEN_PATTERN[i].offset, (unsigned long)PER_TOKEN_PATTERN[i].size);
	return 0;
}
`
	write("main.c", program)
	write("main.cc", program)
	for _, compiler := range [][]string{
		{"gcc", "-std=c89", "main.c"}, {"gcc", "-std=c99", "main.c"}, {"gcc", "-std=gnu17", "main.c"},
		{"g++", "-std=c++11", "main.cc"}, {"g++", "-std=c++20", "main.cc"},
	} {
		t.Run(strings.Join(compiler, " "), func(t *testing.T) {
			path, err := exec.LookPath(compiler[0])
			if err != nil {
				t.Skipf("no %s here", compiler[0])
			}
			program := filepath.Join(t.TempDir(), "program")
			cmd := exec.Command(path, append([]string{"-Wall", "-Wextra", "-Werror", "-pedantic", "-o", program},
				compiler[1:]...)...)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s\n%s", err, out, header.String())
			}
			if out, err := exec.Command(program).Output(); err != nil || string(out) != want.String() {
				t.Errorf("%v, it has\n%s\nwant\n%s", err, out, want.String())
			}
		})
	}
}

// No header is written for an invalid cycle.
func TestHeaderRefuses(t *testing.T) {
	for name, c := range map[string]*pattern.Cycle{
		"empty": {}, "no file": {Reads: []pattern.CycleRead{{Tensor: "a", Length: 1}}},
	} {
		var b strings.Builder
		if err := c.WriteHeader(&b, ""); !errors.Is(err, pattern.ErrInvalid) || b.Len() > 0 {
			t.Errorf("%s: %v, %d bytes; want %v, b.Len() at most 0", name, err, b.Len(), pattern.ErrInvalid)
		}
	}
}
