// Package cc compiles C programs and libraries, which this project contains as source, for the
// machine that it runs on.
package cc

// This file finds and runs the C compiler.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// ErrNoCompiler says that there is no C compiler in PATH.
var ErrNoCompiler = errors.New("there is no C compiler (cc, gcc or clang): " +
	"install one (Debian, Ubuntu: apt-get install gcc libc6-dev)")

// Flags are the flags with which every source is compiled, besides its own.
const Flags = "-std=gnu11 -O2"

// Compile compiles source to the file path. That is an executable unless the flags say otherwise.
// It is linked with the libraries that dlopen needs. Other errors than [ErrNoCompiler] have the
// first line of the compiler's output. If ctx ends, the error is its cause.
func Compile(ctx context.Context, path, source string, flags ...string) error {
	compiler, err := findCompiler()
	if err != nil {
		return err
	}
	args := append(strings.Fields(Flags), flags...)
	args = append(args, "-o", path, "-x", "c", "-", "-ldl", "-lm") // libdl is a separate library before glibc 2.34
	cmd := exec.CommandContext(ctx, compiler, args...)
	cmd.Stdin = strings.NewReader(source)
	cmd.WaitDelay = 2 * time.Second
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	first, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return fmt.Errorf("%s: %w: %s", compiler, err, first)
}

func findCompiler() (string, error) {
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoCompiler
}
