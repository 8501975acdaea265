package llama

// This file compiles the driver llamarun.

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"tensorcast/ggml"
	"tensorcast/internal/cc"
)

const driverName = "llamarun"

//go:embed llamarun.c
var driverText string

// driverSource is the driver with its includes inserted.
var driverSource = ggml.IncludeGathers(driverText)

// compilerFlag is for glibc before 2.34.
const compilerFlag = "-pthread"

// compile writes the driver to the new file path.
func compile(ctx context.Context, path string) error {
	err := cc.Compile(ctx, path, driverSource, compilerFlag)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cc.ErrNoCompiler):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("compile %s: %w", driverName, err)
}
