// This file compiles the driver llamarun.

package llama

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"tensorcast/ggml"
)

const driverName = "llamarun"

//go:embed llamarun.c
var driverText string

// driverSource is the driver with its includes inserted.
var driverSource = ggml.IncludeGathers(driverText)

// -ldl and -pthread are needed for glibc before 2.34.
var compilerFlags = []string{"-std=gnu11", "-O2", "-x", "c", "-", "-ldl", "-pthread"}

// compile writes the driver to the new file path.
func compile(ctx context.Context, path string) error {
	cmd := exec.CommandContext(ctx, "gcc", append([]string{"-o", path}, compilerFlags...)...)
	cmd.Stdin = strings.NewReader(driverSource)
	cmd.WaitDelay = 2 * time.Second
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("compile %s: %w", driverName, context.Cause(ctx))
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w: gcc is not installed (on Debian or Ubuntu: apt-get install gcc libc6-dev)", ErrUnavailable)
	}
	first, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return fmt.Errorf("compile %s: %w: %s", driverName, err, first)
}
