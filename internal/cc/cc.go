// Package cc compiles C programs and libraries that this project carries as source, for the machine that it runs on.
package cc

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
var ErrNoCompiler = errors.New("there is no C compiler (cc, gcc or clang): install one (Debian, Ubuntu: apt-get install gcc libc6-dev)")

// Flags are those that each source is compiled with, besides its own.
const Flags = "-std=gnu11 -O2"

// Compile compiles source to the file path, an executable unless the flags say else. It links with what dlopen needs. Other errors than
// [ErrNoCompiler] have the first line of what the compiler said; if ctx ends, the error is its cause.
func Compile(ctx context.Context, path, source string, flags ...string) error {
	compiler, err := find()
	if err != nil {
		return err
	}
	args := append(strings.Fields(Flags), flags...)
	args = append(args, "-o", path, "-x", "c", "-", "-ldl", "-lm") // the first is a library of its own before glibc 2.34
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

func find() (string, error) {
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoCompiler
}
