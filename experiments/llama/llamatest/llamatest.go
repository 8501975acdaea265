// Package llamatest gives tests a llama.cpp.
package llamatest

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/internal/testenv"
)

// ForTest returns the installed llama.cpp. Where this machine cannot have one (no npm, no network, no gcc) it skips the test with
// the reason, except in CI (the variable CI is set): there a test that does not run is a failure. It implies testenv.NeedMachine.
func ForTest(t testing.TB) *llama.Installation {
	t.Helper()
	testenv.NeedMachine(t)
	// The bound is there for a network that swallows packets.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	in, err := llama.Install(ctx)
	switch {
	case err == nil:
		return in
	case os.Getenv("CI") == "" && errors.Is(err, llama.ErrUnavailable):
		t.Skip(err)
	default:
		t.Fatal(err)
	}
	return nil
}
