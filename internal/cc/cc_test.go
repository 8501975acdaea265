package cc

// This file tests compiling a program, and the errors.

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const program = `#include <dlfcn.h>
#include <stdio.h>
int main(void) { puts(dlopen(NULL, RTLD_NOW) ? TEXT : "none"); return 0; }
`

func TestCompile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a program")
	err := Compile(t.Context(), path, program, `-DTEXT="it runs"`)
	if errors.Is(err, ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(path).Output(); err != nil || string(out) != "it runs\n" {
		t.Errorf("the program printed %q, %v; want it runs", out, err)
	}
	// Without TEXT the program is invalid.
	err = Compile(t.Context(), path, program)
	if err == nil || !strings.Contains(err.Error(), "exit status") || strings.Contains(err.Error(), "\n") {
		t.Errorf("an invalid program: error %v, want one line with the exit status", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cancel(reason)
	if err := Compile(ctx, path, program); !errors.Is(err, reason) {
		t.Errorf("after the end of the context: error %v, want %v", err, reason)
	}
	t.Setenv("PATH", t.TempDir())
	if err := Compile(t.Context(), path, program); !errors.Is(err, ErrNoCompiler) {
		t.Errorf("without a compiler: error %v, want %v", err, ErrNoCompiler)
	}
}
