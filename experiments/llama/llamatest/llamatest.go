// Package llamatest gives tests an installed llama.cpp and synthetic models.
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

// ForTest returns the installed llama.cpp. If this machine cannot have one (no npm, no network, no
// gcc), it skips the test with the reason; in CI (the variable CI is set) the test fails instead.
// It implies testenv.NeedMachine.
func ForTest(t testing.TB) *llama.Installation {
	t.Helper()
	testenv.NeedMachine(t)
	// The timeout is for a network that drops packets.
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
